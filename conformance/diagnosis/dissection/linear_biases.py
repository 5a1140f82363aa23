"""Linear biases by distance (ALiBi) with other slopes, other distances, or from another corner."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

import torch
from torch import Tensor

from ..._golden import golden
from ...base.geometry import Geometry
from ..mistakes import DeclaredCall
from ..mistakes._steps import capped_scores, keys_ahead
from .terms import Term, TermValues


def _geometric(heads: int, first: int, count: int) -> Tensor:
    """Slopes ``2 ** (-8 i / count)`` of so many heads, i counted from a first number."""
    exponents = torch.arange(first, first + heads, dtype=torch.float64)
    return 2.0 ** (-8.0 * exponents / count)


def _by_key_head(sizes: Geometry) -> Tensor:
    group = sizes.num_heads // sizes.num_kv_heads
    return golden.alibi_slopes(sizes.num_kv_heads).repeat_interleave(group)


# Slopes of the heads ``[H]`` and functions of distances in place of the declared ones.
_SLOPES: Final[tuple[tuple[str, Callable[[Geometry], Tensor]], ...]] = (
    ("as declared", lambda sizes: golden.alibi_slopes(sizes.num_heads)),
    ("counted from 2 ** 0", lambda sizes: _from_zero(sizes.num_heads)),
    (
        "2 ** (-8 h / n), counted from 1",
        lambda sizes: _geometric(sizes.num_heads, 0, sizes.num_heads),
    ),
    (
        "2 ** (-8 (h + 1) / n) for every number n of heads",
        lambda sizes: _geometric(sizes.num_heads, 1, sizes.num_heads),
    ),
    ("in reversed order", lambda sizes: golden.alibi_slopes(sizes.num_heads).flip(0)),
    ("of the head before", lambda sizes: golden.alibi_slopes(sizes.num_heads).roll(1)),
    ("of the head after", lambda sizes: golden.alibi_slopes(sizes.num_heads).roll(-1)),
    (
        "of the first head",
        lambda sizes: golden.alibi_slopes(sizes.num_heads)[:1].expand(sizes.num_heads),
    ),
    ("of the key/value heads", _by_key_head),
    ("of one", lambda sizes: torch.ones(sizes.num_heads, dtype=torch.float64)),
    ("twice as large", lambda sizes: 2.0 * golden.alibi_slopes(sizes.num_heads)),
    ("half as large", lambda sizes: golden.alibi_slopes(sizes.num_heads) / 2.0),
    ("squared", lambda sizes: golden.alibi_slopes(sizes.num_heads).square()),
    ("as roots of the declared ones", lambda sizes: golden.alibi_slopes(sizes.num_heads).sqrt()),
)
_DISTANCES: Final[tuple[tuple[str, Callable[[Tensor], Tensor]], ...]] = (
    ("", torch.abs),
    ("distances with their sign", lambda ahead: -ahead),
    ("distances with the other sign", lambda ahead: ahead),
    ("negative distances", lambda ahead: -ahead.abs()),
    ("squares of distances", torch.square),
    ("roots of distances", lambda ahead: ahead.abs().sqrt()),
    ("logarithms of one and the distance", lambda ahead: ahead.abs().log1p()),
    ("distances less one", lambda ahead: ahead.abs() - 1.0),
    ("distances of keys before the query alone", lambda ahead: (-ahead).relu()),
    ("distances of keys after the query alone", lambda ahead: ahead.relu()),
    *(
        (f"distances of at most {most}", lambda ahead, most=most: ahead.abs().clamp_max(most))
        for most in (1, 2, 4, 8, 16, 32, 64, 128)
    ),
)


def _from_zero(heads: int) -> Tensor:
    """The declared slopes of each sequence with its exponents counted from zero."""
    power = 2 ** (max(heads, 1).bit_length() - 1)
    finer = _geometric(2 * power, 1, 2 * power)[::2]
    return torch.cat([_geometric(power, 0, power), finer])[:heads]


def _no_slopes(sizes: Geometry) -> Tensor:
    return torch.zeros(sizes.num_heads, dtype=torch.float64)


def _other_slopes() -> Iterator[Term]:
    """The scores with another linear bias than the declared one, or with its distances changed."""
    text = "the scores without the bias by distance"
    yield Term(text, text, _with_slopes(_no_slopes, torch.abs), operand=True)
    for words, slopes in _SLOPES[1:]:
        text = f"the scores and a bias by distance with slopes {words}"
        yield Term(text, text, _with_slopes(slopes, torch.abs), operand=True)
    for words, change in _DISTANCES[1:]:
        text = f"the scores and the declared slopes times {words} taken off"
        yield Term(text, text, _with_slopes(_SLOPES[0][1], change), operand=True)
    for corner, bottom_right in (("last", True), ("first", False)):
        text = f"the scores and a bias by distance with places counted from the {corner} key"
        values = _with_slopes(_SLOPES[0][1], torch.abs, bottom_right=bottom_right)
        yield Term(text, text, values, operand=True)


def _with_slopes(
    slopes: Callable[[Geometry], Tensor],
    change: Callable[[Tensor], Tensor],
    *,
    bottom_right: bool | None = None,
) -> TermValues:
    def values(call: DeclaredCall, attention: golden.Attention) -> Tensor | None:
        if attention.alibi is None:
            return None
        ahead = keys_ahead(call, bottom_right=bottom_right).double()
        modified = golden.modify(capped_scores(attention), attention.semantics)
        return modified - slopes(call.inputs.geometry)[:, None, None] * change(ahead)

    return values


LINEAR_BIASES: Final = tuple(_other_slopes())
