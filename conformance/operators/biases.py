"""Biases by distance with undeclared slopes or distances."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Final

import torch
from torch import Tensor

from .._golden import golden
from .keys import distances_from_first_key, distances_from_last_key
from .operator import Operator


def _geometric(heads: int, first: int, count: int) -> Tensor:
    """Return the slopes ``2 ** (-8 i / count)`` of ``heads`` heads, for i from ``first`` on."""
    exponents = torch.arange(first, first + heads, dtype=torch.float64)
    return 2.0 ** (-8.0 * exponents / count)


def _two_sequences(heads: int, first: int, further: int) -> Tensor:
    """Return slopes with other first exponents, also for heads beyond a power of two."""
    power = 2 ** (max(heads, 1).bit_length() - 1)
    finer = _geometric(2 * power, further, 2 * power)[::2]
    return torch.cat([_geometric(power, first, power), finer])[:heads]


def _group_slopes(sizes: golden.Sizes) -> Tensor:
    group = sizes.num_heads // max(sizes.num_kv_heads, 1)
    return golden.alibi_slopes(sizes.num_kv_heads).repeat_interleave(group)


# Wrong slopes of heads ``[H]``; slopes of other heads are moves, multiples are numbers.
_SLOPES: Final[tuple[tuple[str, Callable[[golden.Sizes], Tensor]], ...]] = (
    ("counted from 2 ** 0", lambda s: _two_sequences(s.num_heads, 0, 1)),
    ("counted from 2 ** 0 in both sequences", lambda s: _two_sequences(s.num_heads, 0, 0)),
    (
        "that go on with every other one from the second",
        lambda s: _two_sequences(s.num_heads, 1, 2),
    ),
    (
        "2 ** (-8 h / n), counted from 1",
        lambda s: _geometric(s.num_heads, 0, s.num_heads),
    ),
    (
        "2 ** (-8 (h + 1) / n) for every number n of heads",
        lambda s: _geometric(s.num_heads, 1, s.num_heads),
    ),
    ("of the key/value heads", _group_slopes),
    ("of one", lambda s: torch.ones(s.num_heads, dtype=torch.float64)),
    ("squared", lambda s: golden.alibi_slopes(s.num_heads).square()),
    ("as roots of the declared ones", lambda s: golden.alibi_slopes(s.num_heads).sqrt()),
)
_DISTANCES: Final[tuple[tuple[str, Callable[[Tensor], Tensor]], ...]] = (
    ("distances with their sign", lambda ahead: -ahead),
    ("distances with the other sign", lambda ahead: ahead),
    ("squares of distances", torch.square),
    ("roots of distances", lambda ahead: ahead.abs().sqrt()),
    ("logarithms of one and the distance", lambda ahead: ahead.abs().log1p()),
    ("distances less one", lambda ahead: ahead.abs() - 1.0),
    ("distances one too large but for the query's own place", lambda a: a.abs() + (a != 0)),
    ("distances one too small but for the query's own place", lambda a: (a.abs() - 1.0).relu()),
    ("distances of keys before the query alone", lambda ahead: (-ahead).relu()),
    ("distances of keys after the query alone", lambda ahead: ahead.relu()),
    ("distances counted from the first key", lambda ahead: distances_from_first_key(ahead).abs()),
    ("distances counted from the last key", lambda ahead: distances_from_last_key(ahead).abs()),
    *(
        (f"distances of at most {most}", lambda ahead, most=most: ahead.abs().clamp_max(most))
        for most in (1, 2, 3, 4, 5, 8, 10, 16, 20, 32, 50, 64, 100, 128)
    ),
)


def linear_biases() -> Iterator[Operator]:
    """Yield wrong slopes, and wrong functions of the distance to a key."""
    for words, slopes in _SLOPES:
        yield Operator(f"made with slopes {words}", partial(_sloped, slopes=slopes))
    for words, distance in _DISTANCES:
        yield Operator(f"made of {words}", partial(_function_of_distance, distance=distance))


def _sloped(
    bias: Tensor,
    ahead: Tensor,
    sizes: golden.Sizes,
    *,
    slopes: Callable[[golden.Sizes], Tensor],
) -> Tensor:
    made = -slopes(sizes)[:, None, None] * ahead.abs()
    return made.expand(bias.shape).to(bias)


def _function_of_distance(
    bias: Tensor, ahead: Tensor, slopes: Tensor, *, distance: Callable[[Tensor], Tensor]
) -> Tensor:
    made = -slopes[..., None, None] * distance(ahead.double())
    return made.expand(bias.shape).to(bias)
