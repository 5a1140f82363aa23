"""keras on JAX: its function of heads, by jax's."""

import os

os.environ["KERAS_BACKEND"] = "jax"

import keras

import conformance

REQUIREMENTS = ["keras==3.15.1", "jax==0.10.2", "jaxlib==0.10.2"]
CANDIDATES = {"function": "check"}
PROMISES = [
    {
        "sentence": "It is a boolean mask where `True` indicates the element should take part in attention.",
        "link": "https://www.tensorflow.org/api_docs/python/tf/keras/ops/dot_product_attention",
        "clauses": ["mask.golden"],
        "declares": {"masks": ["keep"]},
    },
]


@conformance.core(
    arrays="jax",
    layout="BSHD",
    masks=["keep", "bias"],
    causal="top-left",
    empty_rows={"keep": "mean-of-all", "causal": "mean-of-all"},
    features=["scale", "gqa", "softcap"],
    geometry={"value_head_size": "head_size"},
    without=["gradients"],
)
def function(query, key, value, *, keep=None, bias=None, causal=False, scale=None, softcap=None):
    """``keras.ops.dot_product_attention``."""
    options = {"mask": keep, "bias": bias, "is_causal": causal, "scale": scale}
    return keras.ops.dot_product_attention(
        query, key, value, **options, attn_logits_soft_cap=softcap
    )
