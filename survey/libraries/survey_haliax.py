"""haliax: its function of named axes, on a CPU."""

import haliax as hax
from haliax.nn.attention import dot_product_attention

import conformance

REQUIREMENTS = ["haliax==1.3", "jax==0.4.30", "jaxlib==0.4.30"]
CANDIDATES = {"function": "check"}
_AXES = ("batch", "heads", "queries", "keys")


def _named(array, *names):
    """An array with named axes; what has one entry alone has no such axis."""
    sizes = [hax.Axis(name, size) for name, size in zip(names, array.shape, strict=True)]
    return hax.named(array, tuple(sizes))


def _mask(array, shapes):
    """A mask whose axes are as long as those that it is for."""
    wide = array
    for axis, size in enumerate(shapes):
        if array.shape[axis] == 1 and size != 1:
            wide = wide.repeat(size, axis)
    return _named(wide, *_AXES)


@conformance.core(
    arrays="jax",
    masks=["keep", "bias"],
    empty_rows={"keep": "mean-of-all"},
    without=["gradients"],
)
def function(query, key, value, *, keep=None, bias=None):
    """``haliax.nn.attention.dot_product_attention``."""
    heads = (
        _named(query, "batch", "heads", "queries", "channels"),
        _named(key, "batch", "heads", "keys", "channels"),
        _named(value, "batch", "heads", "keys", "values"),
    )
    shapes = (*query.shape[:3], key.shape[2])
    masks = [None if mask is None else _mask(mask, shapes) for mask in (keep, bias)]
    answer = dot_product_attention("keys", "channels", *heads, *masks)
    return answer.rearrange(("batch", "heads", "queries", "values")).array
