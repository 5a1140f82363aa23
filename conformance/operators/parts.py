"""Parts of an axis, which a loop may leave out or treat differently."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache, partial
from typing import Final

import torch
from torch import Tensor

from .moves import TILES, TOKENS
from .operator import AlongAxis, Operator, axes_of, insert_place

# Numbers of places that a loop may miss at an end.
_FEW: Final = (1, 2, 3)
# Further steps between overlapping tiles.
_STEPS: Final = [step for step in range(3, 32) if step not in TILES]
Part = Callable[[Tensor, int], Tensor]


def _first(number: int) -> Part:
    return lambda index, _count: index < number


def _last(number: int) -> Part:
    return lambda index, count: index >= count - number


def _past_whole(tile: int) -> Part:
    return lambda index, count: index >= count // tile * tile


def _rest_behind_tiles(tile: int) -> Part:
    return lambda index, count: (index >= count // tile * tile) & (count >= tile)


def _past(number: int) -> Part:
    return lambda index, _count: index >= number


def _second_tiles(tile: int) -> Part:
    return lambda index, _count: index // tile % 2 == 1


def _last_of_tiles(tile: int) -> Part:
    return lambda index, _count: index % tile == tile - 1


def _last_of_earlier_tiles(tile: int) -> Part:
    return lambda index, count: (index % tile == tile - 1) & (index < (count - 1) // tile * tile)


def _first_of_tiles(tile: int) -> Part:
    return lambda index, _count: (index % tile == 0) & (index > 0)


def _last_tile(tile: int) -> Part:
    return lambda index, count: (index >= (count - 1) // tile * tile) & (count > tile)


def _first_tile(tile: int) -> Part:
    return lambda index, count: (index < tile) & (count > tile)


def _any_last_tile(tile: int) -> Part:
    return lambda index, count: index >= (count - 1) // tile * tile


def _all_but_last_tile(tile: int) -> Part:
    return lambda index, count: index < (count - 1) // tile * tile


# Parts of an axis, in words and by the index of each place and their number.
PARTS: Final[tuple[tuple[str, Part], ...]] = (
    ("the first {}", _first(1)),
    ("the last {}", _last(1)),
    *((f"the first {n} {{}}s", _first(n)) for n in _FEW[1:]),
    *((f"the last {n} {{}}s", _last(n)) for n in _FEW[1:]),
    ("all {}s but the first", lambda index, _count: index > 0),
    ("all {}s but the last", lambda index, count: index < count - 1),
    ("every second {}", lambda index, _count: index % 2 == 1),
    ("every second {} from the first on", lambda index, _count: index % 2 == 0),
    ("the second half of the {}s", lambda index, count: index >= count // 2),
    ("the first half of the {}s", lambda index, count: index < count // 2),
    *((f"{{}}s past whole tiles of {n}", _past_whole(n)) for n in TILES),
    *((f"{{}}s past whole tiles of {n}, where there is one", _rest_behind_tiles(n)) for n in TILES),
    *((f"the last tile of {n} {{}}s, of several", _last_tile(n)) for n in TILES),
    *((f"{{}}s of the last tile of {n}", _any_last_tile(n)) for n in TILES),
    *((f"the first tile of {n} {{}}s, of several", _first_tile(n)) for n in TILES),
    *((f"all {{}}s but the last tile of {n}", _all_but_last_tile(n)) for n in TILES),
    *((f"{{}}s past the first {n}", _past(n)) for n in TILES[2:]),
    *((f"every second tile of {n} {{}}s", _second_tiles(n)) for n in TILES),
    *((f"the last {{}} of each tile of {n}", _last_of_tiles(n)) for n in TILES),
    *(
        (f"the last {{}} of each tile of {n} but the last", _last_of_earlier_tiles(n))
        for n in TILES
    ),
    *((f"the first {{}} of each tile of {n} but the first", _first_of_tiles(n)) for n in TILES),
)


def parts_lost(axes: str) -> Iterator[Operator]:
    """Yield zeros for a part of the places along each axis of a result."""
    for noun, along in axes_of(axes, pairs=True):
        for words, part in PARTS:
            lost = along(filled(part, 0.0))
            misplaces = noun not in TOKENS
            yield Operator(f"zero for {insert_place(words, noun)}", lost, misplaces=misplaces)


def parts_doubled() -> Iterator[Operator]:
    """Yield keys of the last axis that count twice, as in overlapping tiles."""
    for words, part in PARTS:
        yield Operator(f"doubled for {insert_place(words, 'key')}", partial(_doubled, part=part))
    for step in _STEPS:
        words = f"doubled for the keys at the indices {step}, {2 * step}, {3 * step}, …"
        yield Operator(words, partial(_doubled, part=_first_of_tiles(step)))


def _doubled(result: Tensor, *, part: Part) -> Tensor:
    count = result.shape[-1]
    chosen = part(torch.arange(count), count)
    return torch.where(chosen, 2.0 * result, result)


def filled(part: Part, number: float) -> AlongAxis:
    """Return the change that fills each place of a part with a number or truth value."""

    def change(result: Tensor, axis: int) -> Tensor:
        return result.masked_fill(_places(part, result.shape[axis], axis), number)

    return change


# Cached, since stages share lengths.
@lru_cache(maxsize=1 << 14)
def _places(part: Part, count: int, axis: int) -> Tensor:
    with torch.inference_mode(mode=False):
        return part(torch.arange(count), count).reshape(-1, *(1,) * (-axis - 1))
