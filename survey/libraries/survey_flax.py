"""flax: the function of its layers, on a CPU."""

from flax import linen

import conformance

REQUIREMENTS = ["flax==0.12.8", "jax==0.10.2", "jaxlib==0.10.2"]
CANDIDATES = {"function": "check"}
PROMISES = [
    {
        "sentence": "Attention weights are masked out if their corresponding mask value is ``False``.",
        "link": "https://flax.readthedocs.io/en/v0.6.10/api_reference/_autosummary/flax.linen.dot_product_attention.html",
        "clauses": ["mask.golden"],
        "declares": {"masks": ["keep"]},
    },
]


@conformance.core(
    arrays="jax", masks=["keep", "bias"], empty_rows="mean-of-all", without=["gradients"]
)
def function(query, key, value, *, keep=None, bias=None):
    """``linen.dot_product_attention``, whose heads come after the positions."""
    heads_last = (array.swapaxes(1, 2) for array in (query, key, value))
    return linen.dot_product_attention(*heads_last, mask=keep, bias=bias).swapaxes(1, 2)
