"""jax: its function of heads on a CPU, with masks, biases, windows and lengths."""

import jax

import conformance

REQUIREMENTS = ["jax==0.10.2", "jaxlib==0.10.2"]
CANDIDATES = {"function": "check", "function_window": "check", "function_lengths": "check"}
PROMISES = [
    {
        "sentence": "It is a boolean mask where `True` indicates the element should take part in attention.",
        "link": "https://docs.jax.dev/en/latest/_autosummary/jax.nn.dot_product_attention.html",
        "clauses": ["mask.golden"],
        "declares": {"masks": ["keep"]},
    },
    {
        "sentence": "bias array to be added to logits",
        "link": "https://docs.jax.dev/en/latest/_autosummary/jax.nn.dot_product_attention.html",
        "clauses": ["mask.bias"],
        "declares": {"masks": ["bias"]},
    },
]
# Rows without keys: the hidden scores are one large negative number, so that all keys count alike.
_HEADS = {
    "arrays": "jax",
    "layout": "BSHD",
    "geometry": {"value_head_size": "head_size"},
    "without": ["gradients"],
}
_EMPTY = {"keep": "mean-of-all", "causal": "mean-of-all"}


@conformance.core(
    **_HEADS,
    masks=["keep", "bias"],
    causal="top-left",
    empty_rows=_EMPTY,
    features=["scale", "gqa"],
)
def function(query, key, value, *, keep=None, bias=None, causal=False, scale=None):
    """``jax.nn.dot_product_attention``, whose values are as wide as its keys."""
    return jax.nn.dot_product_attention(
        query, key, value, mask=keep, bias=bias, is_causal=causal, scale=scale
    )


@conformance.core(**_HEADS, causal="top-left", empty_rows="mean-of-all", features=["window"])
def function_window(query, key, value, *, causal=False, window=None):
    """The same with its window, whose sides are as long as the sequence where they are open."""
    longest = query.shape[1] + key.shape[1]
    sides = None if window is None else tuple(longest if side < 0 else side for side in window)
    return jax.nn.dot_product_attention(
        query, key, value, is_causal=causal, local_window_size=sides
    )


@conformance.core(
    **_HEADS, masks=["lengths"], mask_shapes=["B"], causal="top-left", empty_rows="mean-of-all"
)
def function_lengths(query, key, value, *, lengths=None, causal=False):
    """The same with the lengths of keys."""
    given = None if lengths is None else lengths.astype("int32")
    return jax.nn.dot_product_attention(
        query, key, value, is_causal=causal, key_value_seq_lengths=given
    )
