"""What enters an attention while its model runs, and what it answers there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from ..graphs.protocol import Array
from .operands import MaskInput
from .site import Site

_HEADS: Final = "BHLD"
_MASK: Final = "BHQK"
# What masks add to the scores of hidden keys lies below this one.
HIDES: Final = -1e3


@dataclass(frozen=True, kw_only=True, eq=False)
class Activations:
    """One attention of a model on the model's own activations.

    query, key, value, answer
        Heads ``[B, H, L, D]``; key and value may have fewer of them.
    keep, bias
        The masks together: bool, True attends, and what is added to the scores; four axes, those of
        size 1 do not vary. None where there is no such mask.
    sinks
        One more score for each head, None where there is none.
    """

    query: Array
    key: Array
    value: Array
    answer: Array
    keep: Array | None
    bias: Array | None
    sinks: Array | None = None

    @property
    def judged(self) -> Array:
        """Which queries have a key that neither mask hides, ``[B, H, Lq, 1]`` or of axes of one.

        A finite fill makes a mean of a row that has none: any answer is right there.
        """
        seen: Array = np.ones((1, 1, 1, 1), dtype=bool) if self.keep is None else self.keep
        if self.bias is not None:
            seen = seen & (self.bias > HIDES)
        return np.asarray(seen.any(axis=-1, keepdims=True))


def tapped(site: Site) -> list[str]:
    """The tensors inside the model that :func:`activations` needs of an attention."""
    edges = [*(edge.name for edge in site.edges.values()), *site.cache]
    edges += [] if site.sinks is None else [site.sinks.stored]
    return list(dict.fromkeys([*edges, *(mask.name for mask in site.masks), site.output]))


def activations(site: Site, values: dict[str, Array]) -> Activations | None:
    """What entered and left an attention; None where its axes are none that can be told apart.

    values
        The tensors of :func:`tapped` by name, and stored masks.
    """
    kv_heads = site.kv_heads or site.heads
    heads = {"query": site.heads, "key": kv_heads, "value": kv_heads}
    parts = {
        part: _as_heads(values[edge.name], edge.letters, heads[part])
        for part, edge in site.edges.items()
    }
    answer = _as_heads(values[site.output], site.output_letters, site.heads)
    if site.opaque:
        return None
    for part, tensor in zip(("key", "value"), site.cache, strict=False):
        earlier = values[tensor].astype(values[site.edges[part].name].dtype)
        parts[part] = None if parts[part] is None else np.concatenate([earlier, parts[part]], 2)
    keys = 0 if parts["key"] is None else parts["key"].shape[2]
    masks = [(mask, _as_mask(values[mask.name], mask, site.heads, keys)) for mask in site.masks]
    found = [*parts.values(), answer, *(value for _, value in masks)]
    if any(value is None for value in found):
        return None
    keep, bias = _together([(mask.role, value) for mask, value in masks if value is not None])
    sinks = (
        None
        if site.sinks is None
        else np.broadcast_to(
            values[site.sinks.stored].reshape(-1), (site.heads or values[site.sinks.stored].size,)
        )
    )
    return Activations(**parts, answer=answer, keep=keep, bias=bias, sinks=sinks)  # type: ignore[arg-type]  # none is None


def _as_heads(value: Array, letters: str, heads: int | None) -> Array | None:
    """A tensor with its axes in the order of heads."""
    if "M" in letters:  # heads and features in one axis, the last
        if letters != "BLM" or not heads:
            return None
        apart = value.reshape(*value.shape[:2], heads, -1)
        return np.moveaxis(apart, 2, 1)
    if "F" in letters:  # items and heads in one axis
        if not heads:
            return None
        ordered = np.transpose(value, [letters.index(letter) for letter in "FLD"])
        return ordered.reshape(-1, heads, *ordered.shape[1:])
    if sorted(letters) != sorted(_HEADS):
        return None
    return np.transpose(value, [letters.index(letter) for letter in _HEADS])


def _as_mask(value: Array, mask: MaskInput, heads: int | None, keys: int) -> Array | None:
    """A mask with four axes."""
    axes = mask.axes
    if mask.role == "lengths":
        value, axes = np.arange(keys) < value.reshape(-1, 1), "BK"
    elif mask.role == "bias" and mask.factor != 1:
        value = mask.factor * value
    if value.ndim != len(axes):
        return None
    if "F" in axes:
        if not heads or axes.index("F") != 0:
            return None
        value = value.reshape(-1, heads, *value.shape[1:])
        axes = f"BH{axes[1:]}"
    if "B" not in axes:  # it is broadcast over items, and perhaps heads, from the left
        return value.reshape((1,) * (len(_MASK) - value.ndim) + value.shape)
    missing = [at for at, letter in enumerate(_MASK) if letter not in axes]
    if len(axes) == len(_MASK):
        return value
    if "1" in axes or len(axes) + len(missing) != len(_MASK):
        return None
    return np.expand_dims(value, tuple(missing))


def _together(masks: list[tuple[str, Array]]) -> tuple[Array | None, Array | None]:
    """All masks of an attention as one that keeps and one that is added."""
    keep: Array | None = None
    bias: Array | None = None
    for role, value in masks:
        if role == "bias":
            bias = value if bias is None else bias + value
        else:
            shown = value != 0 if role.startswith("keep") else value == 0
            keep = shown if keep is None else keep & shown
    if bias is not None and not np.isfinite(bias).all():
        shown = bias > -np.inf
        keep, bias = shown if keep is None else keep & shown, np.where(shown, bias, 0)
    return keep, bias
