"""jax: its function of heads, on a CPU."""

import jax

import conformance

REQUIREMENTS = ["jax==0.10.2", "jaxlib==0.10.2"]
CANDIDATES = {"function": "check"}


@conformance.core(
    arrays="jax",
    masks=["keep", "bias"],
    causal="top-left",
    empty_rows="mean-of-all",
    features=["scale"],
    without=["gradients"],
)
def function(query, key, value, *, keep=None, bias=None, causal=False, scale=None):
    """``jax.nn.dot_product_attention``, whose heads come after the positions."""
    heads_last = (array.swapaxes(1, 2) for array in (query, key, value))
    options = {"mask": keep, "bias": bias, "is_causal": causal, "scale": scale}
    return jax.nn.dot_product_attention(*heads_last, **options).swapaxes(1, 2)
