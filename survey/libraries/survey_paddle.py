"""paddlepaddle: its functions of heads and its layer, on a CPU."""

import numpy as np
import paddle

import conformance

REQUIREMENTS = ["paddlepaddle==3.3.1"]
CANDIDATES = {"function": "check", "compat_function": "check", "layer": "check"}
DECIDED = [
    {
        "clause": ["mask.causal*", "numerics.options", "numerics.any-length"],
        "candidates": "*function",
        "decided": "defect",
        "reason": "is_causal drops the mask, and adds -10000 to the scores of later keys",
        "finding": "041-paddle-causal-drops-the-mask",
    },
    {
        "clause": ["mask.no-leak", "mask.bias-counts"],
        "decided": "undocumented convention",
        "reason": "its softmax on a CPU takes nothing for less than exp(-64), which is the weight of hidden keys",
    },
]
PROMISES = [
    {
        "sentence": "The bool mask indicates the positions should take part in attention.",
        "link": "https://www.paddlepaddle.org.cn/documentation/docs/en/api/paddle/nn/functional/scaled_dot_product_attention_en.html",
        "clauses": ["mask.golden", "mask.causal-and-mask"],
        "candidates": "function",
        "declares": {"masks": ["keep"]},
    },
]
_CORE = {"arrays": "numpy", "masks": ["keep", "bias"], "without": ["gradients"]}


def _tensor(values):
    return None if values is None else paddle.to_tensor(np.ascontiguousarray(values))


@conformance.core(**_CORE, layout="BSHD", causal="top-left")
def function(query, key, value, *, keep=None, bias=None, causal=False):
    """``paddle.nn.functional.scaled_dot_product_attention``."""
    heads = map(_tensor, (query, key, value))
    mask = _tensor(keep if bias is None else bias)
    return paddle.nn.functional.scaled_dot_product_attention(
        *heads, attn_mask=mask, is_causal=causal
    ).numpy()


@conformance.core(
    **_CORE,
    causal="top-left",
    semantics=conformance.Semantics(causal_combination="refused"),
    features=["scale", "gqa"],
)
def compat_function(query, key, value, *, keep=None, bias=None, causal=False, scale=None):
    """``paddle.compat.nn.functional.scaled_dot_product_attention``, by the names of torch."""
    heads = map(_tensor, (query, key, value))
    mask = _tensor(keep if bias is None else bias)
    more = {"scale": scale, "enable_gqa": query.shape[1] != key.shape[1]}
    return paddle.compat.nn.functional.scaled_dot_product_attention(
        *heads, attn_mask=mask, is_causal=causal, **more
    ).numpy()


def _sizes(geometry):
    """Queries and the answer are as wide as all heads together."""
    width = geometry.num_heads * geometry.head_size
    same = {"num_kv_heads": geometry.num_heads, "value_head_size": geometry.head_size}
    return geometry.replace(**same, query_size=width, output_size=width)


@conformance.layer(
    arrays="numpy",
    masks=["keep", "bias"],
    mask_shapes=["BHQK", "B1QK", "B11K"],
    without=["gradients"],
    geometry=_sizes,
)
def layer(geometry, weights):
    """``paddle.nn.MultiHeadAttention``."""
    own = paddle.nn.MultiHeadAttention(
        geometry.query_size,
        geometry.num_heads,
        kdim=geometry.key_size,
        vdim=geometry.value_size,
        bias_attr=None if weights.q_bias is not None else False,
    )
    own.eval()
    for name, role in (("q_proj", "q"), ("k_proj", "k"), ("v_proj", "v"), ("out_proj", "o")):
        part = getattr(own, name)
        part.weight.set_value(np.ascontiguousarray(getattr(weights, role).T))
        if weights.q_bias is not None:
            part.bias.set_value(np.ascontiguousarray(getattr(weights, f"{role}_bias")))

    def forward(query, key, value, *, keep=None, bias=None):
        mask = _tensor(keep if bias is None else bias)
        with paddle.no_grad():
            return own(*map(_tensor, (query, key, value)), attn_mask=mask).numpy()

    return forward
