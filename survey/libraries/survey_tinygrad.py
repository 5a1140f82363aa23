"""tinygrad: its function of heads, on a CPU."""

import numpy as np
from tinygrad import Tensor

import conformance

REQUIREMENTS = ["tinygrad==0.14.0"]
CANDIDATES = {"function": "check"}


@conformance.core(
    arrays="numpy",
    masks=["keep", "bias"],
    causal="top-left",
    empty_rows="any",
    without=["gradients"],
)
def function(query, key, value, *, keep=None, bias=None, causal=False):
    """``Tensor.scaled_dot_product_attention``."""
    mask = keep if keep is not None else bias
    more = {} if mask is None else {"attn_mask": Tensor(np.ascontiguousarray(mask))}
    heads = [Tensor(np.ascontiguousarray(array)) for array in (query, key, value)]
    return heads[0].scaled_dot_product_attention(*heads[1:], is_causal=causal, **more).numpy()
