"""mlx: its function of heads and its layer, on a CPU under Linux."""

import mlx.core as mx
import numpy as np
from mlx import nn

import conformance

REQUIREMENTS = ["mlx==0.32.4", "mlx-cpu==0.32.4"]
CANDIDATES = {"function": "check", "layer": "check"}
PROMISES = [
    {
        "sentence": 'The ``"causal"`` mask uses lower-right alignment where the last query aligns with the last key.',
        "link": "https://ml-explore.github.io/mlx/build/html/python/_autosummary/mlx.core.fast.scaled_dot_product_attention.html",
        "clauses": ["mask.causal-alignment"],
        "candidates": "function",
        "declares": {"causal": "bottom-right"},
    },
]
_REFUSED = conformance.Semantics(causal_combination="refused", causal_alignment="bottom-right")


def _array(values):
    return None if values is None else mx.array(np.ascontiguousarray(values))


@conformance.core(
    arrays="numpy",
    masks=["keep", "bias"],
    causal="bottom-right",
    semantics=_REFUSED,
    features=["scale", "gqa", "sinks"],
    without=["gradients"],
)
def function(query, key, value, *, keep=None, bias=None, causal=False, scale=None, sinks=None):
    """``mx.fast.scaled_dot_product_attention``, where a mask stands in the place of "causal"."""
    if causal and (keep is not None or bias is not None):
        msg = "its one mask is an array or causal"
        raise ValueError(msg)
    mask = "causal" if causal else _array(keep if bias is None else bias)
    factor = query.shape[-1] ** -0.5 if scale is None else scale
    heads = map(_array, (query, key, value))
    return np.array(
        mx.fast.scaled_dot_product_attention(*heads, scale=factor, mask=mask, sinks=_array(sinks))
    )


@conformance.layer(
    arrays="numpy",
    masks=["bias"],
    without=["gradients"],
)
def layer(geometry, weights):
    """``nn.MultiHeadAttention``, whose mask is added."""
    own = nn.MultiHeadAttention(
        geometry.num_heads * geometry.head_size,
        geometry.num_heads,
        geometry.query_size,
        geometry.key_size,
        geometry.value_size,
        geometry.num_heads * geometry.value_head_size,
        geometry.output_size,
        bias=weights.q_bias is not None,
    )
    names = {"query_proj": "q", "key_proj": "k", "value_proj": "v", "out_proj": "o"}
    for name, role in names.items():
        part = getattr(own, name)
        part.weight = _array(getattr(weights, role))
        if weights.q_bias is not None:
            part.bias = _array(getattr(weights, f"{role}_bias"))

    def forward(query, key, value, *, bias=None):
        return np.array(own(*map(_array, (query, key, value)), mask=_array(bias)))

    return forward
