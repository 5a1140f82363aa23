"""flax: the functions and the layers of linen and nnx, on a CPU."""

from flax import linen, nnx

import conformance

REQUIREMENTS = ["flax==0.12.8", "jax==0.10.2", "jaxlib==0.10.2"]
CANDIDATES = {
    "function": "check",
    "nnx_function": "check",
    "nnx_function_values": "check",
    "nnx_function_recorded": "check",
    "layer": "check",
    "nnx_layer": "check",
}
DECIDED = [
    {
        "clause": "reached",
        "candidates": "nnx_function_values",
        "decided": "defect",
        "reason": "values of another depth than keys are handed on to jax, which refuses them",
        "finding": "040-flax-nnx-refuses-values-of-another-depth",
    },
    {
        "clause": ["numerics.options", "mask.empty-row-options"],
        "candidates": "nnx_function_recorded",
        "kind": "raised",
        "decided": "defect",
        "reason": "with is_causal a mask of one row raises: the triangle is broadcast to its shape",
        "finding": "040-flax-nnx-refuses-values-of-another-depth",
    },
]
PROMISES = [
    {
        "sentence": "Attention weights are masked out if their corresponding mask value is ``False``.",
        "link": "https://flax.readthedocs.io/en/v0.6.10/api_reference/_autosummary/flax.linen.dot_product_attention.html",
        "clauses": ["mask.golden"],
        "declares": {"masks": ["keep"]},
    },
]
_ARRAYS = {"arrays": "jax", "without": ["gradients"]}
_CORE = {**_ARRAYS, "layout": "BSHD", "masks": ["keep", "bias"]}
_EMPTY = {"keep": "mean-of-all", "causal": "mean-of-all"}
_LAYER = {
    **_ARRAYS,
    "masks": ["keep"],
    "mask_shapes": ["BHQK", "B1QK", "B11K", "11QK"],
    "empty_rows": "mean-of-all",
    "geometry": {"value_head_size": "head_size"},
}


@conformance.core(**_CORE, empty_rows={"keep": "mean-of-all"})
def function(query, key, value, *, keep=None, bias=None):
    """``linen.dot_product_attention``."""
    return linen.dot_product_attention(query, key, value, mask=keep, bias=bias)


@conformance.core(
    **_CORE,
    causal="top-left",
    features=["gqa"],
    empty_rows=_EMPTY,
    geometry={"value_head_size": "head_size"},
)
def nnx_function(query, key, value, *, keep=None, bias=None, causal=False):
    """``nnx.dot_product_attention``, which hands on to jax's."""
    return nnx.dot_product_attention(query, key, value, mask=keep, bias=bias, is_causal=causal)


@conformance.core(**_ARRAYS, layout="BSHD", geometry={"head_size": 4, "value_head_size": 6})
def nnx_function_values(query, key, value):
    """The same with values that are wider than keys, which its documentation allows."""
    return nnx.dot_product_attention(query, key, value)


@conformance.core(**_CORE, causal="top-left", features=["gqa"], empty_rows=_EMPTY)
def nnx_function_recorded(query, key, value, *, keep=None, bias=None, causal=False):
    """The same written out, as where a module records the weights."""
    options = {"mask": keep, "bias": bias, "is_causal": causal, "module": nnx.Module()}
    return nnx.dot_product_attention(query, key, value, **options)


def _parameters(geometry, weights):
    """The kernels [E, H, D] and [H, D, E] of both layers, with their biases."""
    heads = (geometry.num_heads, geometry.head_size)
    made = {}
    for name, role in (("query", "q"), ("key", "k"), ("value", "v")):
        kernel = getattr(weights, role).T
        made[name] = {"kernel": kernel.reshape(kernel.shape[0], *heads)}
        if weights.q_bias is not None:
            made[name]["bias"] = getattr(weights, f"{role}_bias").reshape(heads)
    made["out"] = {"kernel": weights.o.T.reshape(*heads, -1)}
    if weights.o_bias is not None:
        made["out"]["bias"] = weights.o_bias
    return made


@conformance.layer(**_LAYER)
def layer(geometry, weights):
    """``linen.MultiHeadDotProductAttention``."""
    module = linen.MultiHeadDotProductAttention(
        num_heads=geometry.num_heads,
        qkv_features=geometry.num_heads * geometry.head_size,
        out_features=geometry.output_size,
        use_bias=weights.q_bias is not None,
    )
    parameters = {"params": _parameters(geometry, weights)}

    def forward(query, key, value, *, keep=None):
        return module.apply(parameters, query, key, value, mask=keep)

    return forward


@conformance.layer(
    **{**_LAYER, "geometry": {"value_head_size": "head_size", "value_size": "key_size"}}
)
def nnx_layer(geometry, weights):
    """``nnx.MultiHeadAttention``, whose keys and values have one width."""
    module = nnx.MultiHeadAttention(
        num_heads=geometry.num_heads,
        in_features=geometry.query_size,
        in_kv_features=geometry.key_size,
        qkv_features=geometry.num_heads * geometry.head_size,
        out_features=geometry.output_size,
        use_bias=weights.q_bias is not None,
        decode=False,
        rngs=nnx.Rngs(0),
    )
    for name, own in _parameters(geometry, weights).items():
        for part, values in own.items():
            getattr(getattr(module, name), part)[...] = values

    def forward(query, key, value, *, keep=None):
        return module(query, key, value, mask=keep)

    return forward
