"""Online softmaxes: tiles of keys whose sums are rescaled too seldom or too often.

A kernel that goes over the keys tile by tile keeps the largest logit so far, and multiplies what it
has added up by ``exp(old - new)`` whenever that grows (Milakov and Gimelshein, 2018).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any, Final

import torch
from torch import Tensor

from ..._golden import golden
from ..mistakes import DeclaredCall, NamedMistake, NotExpressible
from ..mistakes._steps import BLOCKS, require, weighing
from .reading import Reading, statement

_RESCALE: Final = (
    "take exponentials less the largest logit so far, and multiply both sums once by "
    "exp(old maximum - new maximum)"
)
_TIMES: Final = {0: "not", 1: "once", 2: "twice"}


@dataclass(frozen=True)
class Loop:
    """How a kernel goes over tiles of keys.

    ``summed`` and ``totalled`` say how often the weighted sum and the sum of the weights are
    rescaled when the maximum grows; ``relative``, whether exponentials are taken of logits less the
    largest so far.
    """

    size: int
    summed: int
    totalled: int
    relative: bool

    def weights(self, call: DeclaredCall, attention: golden.Attention) -> Tensor:
        """The weights that come of it."""
        return _divided(attention, *self.sums(call, attention))

    def answer(self, call: DeclaredCall, attention: golden.Attention) -> golden.Attention:
        """What it answers: exponentials of the working dtype may vanish before they are divided."""
        if self.relative:
            return weighing(attention, self.weights(call, attention))
        working = call.inputs.query.dtype
        powers, total = self.sums(call, attention)
        output = (powers.to(working) @ attention.value.to(working)).double() / total
        output = torch.where(attention.empty[..., None], attention.output, output)
        return dataclasses.replace(attention, output=output)

    def sums(self, call: DeclaredCall, attention: golden.Attention) -> tuple[Tensor, Tensor]:
        """What values are weighed with, and what the sum is divided by."""
        return self.sums_of(call, attention, *growth(attention.logits, self.size))

    def sums_of(
        self, call: DeclaredCall, attention: golden.Attention, grown: Tensor, largest: Tensor
    ) -> tuple[Tensor, Tensor]:
        """The same where it is known how the maximum grows, as :func:`growth` says."""
        logits = attention.logits
        if self.relative:
            powers, shift = (logits - largest).exp(), -1
        else:  # they overflow where the working dtype does
            powers, shift = logits.to(call.inputs.query.dtype).exp().double(), 0
        total = (powers * ((self.totalled + shift) * grown).exp()).sum(dim=-1, keepdim=True)
        if attention.sinks is not None:
            total = total + (attention.sinks.double()[:, None, None] - largest).exp()
        total = torch.where(total == 0.0, 1.0, total)
        return powers * ((self.summed + shift) * grown).exp(), total

    @property
    def is_right(self) -> bool:
        """Whether this is an online softmax as it should be."""
        return self.relative and self.summed == self.totalled == 1

    @property
    def words(self) -> list[str]:
        """What is wrong with it, in clauses."""
        clauses = [
            f"the {what} so far is {'rescaled twice' if times else 'not rescaled'}"
            for what, times in (
                ("weighted sum", self.summed),
                ("sum of the weights", self.totalled),
            )
            if times != 1
        ]
        if not self.relative:
            clauses.append("exponentials are not relative to the largest logit so far")
        return clauses


def growth(logits: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """How far the maximum up to the end of each key's tile is from that of its row, and that."""
    count = logits.shape[-1]
    ends = ((torch.arange(count) // size + 1) * size - 1).clamp_max(count - 1)
    largest = logits.amax(dim=-1, keepdim=True)
    largest = torch.where(torch.isneginf(largest), 0.0, largest)
    running = logits.cummax(dim=-1).values[..., ends]
    running = torch.where(torch.isneginf(running), largest, running)
    return running - largest, largest


def _divided(attention: golden.Attention, powers: Tensor, total: Tensor) -> Tensor:
    return torch.where(attention.empty[..., None], attention.weights, powers / total)


def tile_statements(reading: Reading) -> Iterator[NamedMistake]:
    """The weighted sum, or the sum of the weights, rescaled a wrong number of times.

    Or tiles whose softmaxes do not know of each other.
    """
    call, attention = reading.call, reading.attention
    if reading.nearly_right:
        return
    for cut in _cuts(reading.sizes.key_length):
        tiles, softmaxes = _own_softmaxes(cut, attention)
        for words, share in _SHARES.items():
            if reading.agree(reading.weights, _shared(attention, share(tiles), softmaxes)):
                yield statement(
                    f"{cut.name}: a softmax of each, {words}",
                    f"{cut.each} has a softmax of its own, and their answers are {words}",
                    f"weigh the answer of each {cut.one} by exp(its log-sum-exp - that of the "
                    "whole row)",
                    core=_of_own_softmaxes(cut, share),
                )
    for size in BLOCKS[1:]:
        if reading.sizes.key_length <= size:
            continue
        grown = growth(attention.logits, size)
        for loop in (Loop(size, *how) for how in product(_TIMES, _TIMES, (True, False))):
            if loop.is_right:
                continue
            weights = _divided(attention, *loop.sums_of(call, attention, *grown))
            if bool(torch.isfinite(weights).all()) and reading.agree(reading.weights, weights):
                yield _statement(loop)

        yield from _partly_rescaled(reading, size, grown[1])
        yield from _peaks_of_tiles(reading, size)


def _from(first: int) -> Callable[[Tensor, int], Tensor]:
    return lambda tile, _count: tile >= first


# At which tiles, by their number from 0 and how many there are, a sum is not rescaled.
_NOT_AT: Final[dict[str, Callable[[Tensor, int], Tensor]]] = {
    "from the third tile on": _from(2),
    "from the fourth tile on": _from(3),
    "from the fifth tile on": _from(4),
    "at the second tile": lambda tile, _count: tile == 1,
    "at the last tile": lambda tile, count: tile == count - 1,
}
SUMS: Final = {
    "the weighted sum so far is": (True, False),
    "the sum of the weights so far is": (False, True),
    "both sums so far are": (True, True),
}


def _partly_rescaled(reading: Reading, size: int, largest: Tensor) -> Iterator[NamedMistake]:
    """Sums that are rescaled at some tiles alone."""
    attention = reading.attention
    for (where, some), (words, sums) in product(_NOT_AT.items(), SUMS.items()):
        weights = _left_unscaled(attention, size, some, sums, largest)
        if bool(torch.isfinite(weights).all()) and reading.agree(reading.weights, weights):

            def core(
                _call: DeclaredCall,
                attention: golden.Attention,
                how: tuple[Any, tuple[bool, bool]] = (some, sums),
            ) -> golden.Attention:
                largest = growth(attention.logits, size)[1]
                weights = _left_unscaled(attention, size, *how, largest)
                require(bool(torch.isfinite(weights).all()))
                return weighing(attention, weights)

            yield statement(
                f"tiles of {size}: {words} not rescaled {where}",
                f"with tiles of {size} keys {words} not rescaled {where} when the maximum grows",
                _RESCALE,
                core=core,
            )


def _left_unscaled(
    attention: golden.Attention,
    size: int,
    some: Callable[[Tensor, int], Tensor],
    sums: tuple[bool, bool],
    largest: Tensor,
) -> Tensor:
    """The weights where sums, the weighted one and that of the weights, miss some rescalings."""
    logits = attention.logits
    count = logits.shape[-1]
    ends = torch.arange(size - 1, count + size - 1, size).clamp_max(count - 1)
    running = logits.cummax(dim=-1).values[..., ends]
    running = torch.where(torch.isneginf(running), largest, running)
    grown = torch.nn.functional.pad(running.diff(dim=-1), (1, 0))
    missed = grown.masked_fill(~some(torch.arange(len(ends)), len(ends)), 0.0)
    later = missed.sum(-1, keepdim=True) - missed.cumsum(-1)
    powers = (logits - largest).exp()
    unscaled = powers * later.exp().repeat_interleave(size, dim=-1)[..., :count]
    mixed, total = (unscaled if one else powers for one in sums)
    total = total.sum(-1, keepdim=True)
    if attention.sinks is not None:
        total = total + (attention.sinks.double()[:, None, None] - largest).exp()
    return _divided(attention, mixed, torch.where(total == 0.0, 1.0, total))


def _peaks_of_tiles(reading: Reading, size: int) -> Iterator[NamedMistake]:
    """Sums that are rescaled from each tile's maximum to the next."""
    if reading.attention.sinks is not None:
        return
    weights = _with_peaks_of_tiles(size, reading.call, reading.attention, None)
    if not (bool(torch.isfinite(weights).all()) and reading.agree(reading.weights, weights)):
        return

    def core(call: DeclaredCall, attention: golden.Attention) -> golden.Attention:
        require(attention.sinks is None)
        output = _with_peaks_of_tiles(size, call, attention, attention.value)
        return dataclasses.replace(attention, output=output)

    yield statement(
        f"tiles of {size}: the maximum is that of the tile, not the largest so far",
        f"with tiles of {size} keys the maximum is that of each tile: a tile whose keys are all "
        "hidden makes a later one forget those before",
        "keep the largest logit so far: new_maximum = maximum(maximum, that of the tile)",
        core=core,
    )


def _with_peaks_of_tiles(
    size: int, call: DeclaredCall, attention: golden.Attention, value: Tensor | None
) -> Tensor:
    """The answer where sums are rescaled from each tile's maximum to the next; weights for None.

    Right where each tile has a key that is not hidden, and no power overflows.
    """
    working = call.inputs.query.dtype
    logits = attention.logits.to(working)
    if value is None:
        value = torch.eye(logits.shape[-1]).expand(*logits.shape[:2], -1, -1)
    peak, total = torch.full_like(logits[..., :1], -torch.inf), torch.zeros_like(logits[..., :1])
    mixed = logits.new_zeros(*logits.shape[:-1], value.shape[-1])
    for tile, values in zip(logits.split(size, -1), value.to(working).split(size, 2), strict=True):
        largest = tile.amax(-1, keepdim=True)
        shift = torch.where(torch.isneginf(largest), 0.0, largest)
        powers, decay = (tile - shift).exp(), (peak - shift).exp()
        mixed, total = mixed * decay + powers @ values, total * decay + powers.sum(-1, keepdim=True)
        peak = largest
    return (mixed / torch.where(total == 0.0, 1.0, total)).double()


def _statement(loop: Loop) -> NamedMistake:
    def core(call: DeclaredCall, attention: golden.Attention) -> golden.Attention:
        answer = loop.answer(call, attention)
        if loop.relative and not bool(torch.isfinite(answer.weights).all()):
            raise NotExpressible
        return answer

    return statement(
        f"tiles of {loop.size}: {'; '.join(loop.words)}",
        f"with tiles of {loop.size} keys {' and '.join(loop.words)} when the maximum grows",
        _RESCALE,
        core=core,
    )


# Numbers of parts that keys are split into.
_PARTS: Final = (2, 3, 4, 8)
Tiles = Sequence[Tensor]


def _by_exponentials(numbers: Tiles) -> Tiles:
    parts: Tiles = golden.softmax(torch.cat(list(numbers), -1)).split(1, -1)
    return parts


def _rescaled(tiles: Tiles, *, at_each: bool, divisions: int) -> Tiles:
    """Answers of a loop that rescales what it has so far, whose exponentials are divided in it.

    By the sum of their own tile, or with ``at_each`` all that it has so far by the sum so far; so
    many ``divisions`` by the sum of all follow.
    """
    own = torch.cat([tile.logsumexp(-1, keepdim=True) for tile in tiles], -1)
    most = torch.cat([tile.amax(-1, keepdim=True) for tile in tiles], -1).cummax(-1).values
    most = torch.where(torch.isneginf(most), 0.0, most)
    sums = own.logcumsumexp(-1) - most  # what is added up at each tile, as its logarithm
    sums = torch.where(torch.isneginf(sums), 0.0, sums)
    shares = most - most[..., -1:] - divisions * sums[..., -1:]
    if at_each:
        shares = shares + own - most - sums.flip(-1).cumsum(-1).flip(-1)
    parts: Tiles = shares.exp().split(1, -1)
    return parts


# How the answers of tiles become one: the share of each, of the logits of all.
_SHARES: Final[dict[str, Callable[[Tiles], Tiles]]] = {
    "averaged": lambda tiles: [torch.ones(()) / len(tiles)] * len(tiles),
    "added": lambda tiles: [torch.ones(())] * len(tiles),
    "averaged by their numbers of keys": lambda tiles: [
        torch.tensor(tile.shape[-1] / sum(one.shape[-1] for one in tiles)) for tile in tiles
    ],
    "weighed by the exponentials of their largest logits": lambda tiles: _by_exponentials(
        [tile.amax(-1, keepdim=True) for tile in tiles]
    ),
    "weighed by sums of exponentials that are less the largest logit of each, and not of all": (
        lambda tiles: _by_exponentials(
            [tile.logsumexp(-1, keepdim=True) - tile.amax(-1, keepdim=True) for tile in tiles]
        )
    ),
    "rescaled in turn, then divided by the sum of all": partial(
        _rescaled, at_each=False, divisions=1
    ),
    "rescaled in turn and added": partial(_rescaled, at_each=False, divisions=0),
    "added in turn, each time divided by the sum so far": partial(
        _rescaled, at_each=True, divisions=0
    ),
    "added in turn, each time divided by the sum so far, then by that of all": partial(
        _rescaled, at_each=True, divisions=1
    ),
}


@dataclass(frozen=True)
class _Cut:
    """How keys are cut: the lengths, of a number of keys; a name, and words for each and for one.

    What gets no key is no tile.
    """

    name: str
    each: str
    one: str
    lengths: Callable[[int], list[int]]


def _cuts(keys: int) -> Iterator[_Cut]:
    """Tiles of one size, and as many parts of however many keys: as they are split for decoding."""
    for size in BLOCKS[1:]:
        if keys > size:
            yield _Cut(
                f"tiles of {size}", f"each tile of {size} keys", "tile", partial(_tiles_of, size)
            )
    for count in _PARTS:
        if keys >= count:
            for words, lengths in ((" (longer ones last)", _even), ("", _longest_first)):
                each = f"each of {count} parts of the keys{words}"
                cut = partial(lengths, count)
                yield _Cut(f"{count} parts of the keys{words}", each, "part", cut)


def _tiles_of(size: int, keys: int) -> list[int]:
    return [min(size, keys - start) for start in range(0, keys, size)]


def _even(count: int, keys: int) -> list[int]:
    """Cut at the multiples of a fraction of the keys, rounded down."""
    return [(part + 1) * keys // count - part * keys // count for part in range(count)]


def _longest_first(count: int, keys: int) -> list[int]:
    """Cut as torch.chunk does."""
    return _tiles_of(-(-keys // count), keys) if keys else []


def _own_softmaxes(cut: _Cut, attention: golden.Attention) -> tuple[Tiles, Tiles]:
    """The logits of each tile, and their softmaxes."""
    lengths = [length for length in cut.lengths(attention.logits.shape[-1]) if length]
    require(bool(lengths))
    tiles = attention.logits.split(lengths, -1)
    return tiles, [golden.softmax(tile) for tile in tiles]


def _shared(attention: golden.Attention, shares: Tiles, softmaxes: Tiles) -> Tensor:
    """Weights of which each tile has a share; right ones in rows without keys."""
    parts = [share * own for share, own in zip(shares, softmaxes, strict=True)]
    empty = attention.empty[..., None]
    return torch.where(empty, attention.weights, torch.cat(parts, dim=-1))


def _of_own_softmaxes(
    cut: _Cut, share: Callable[[Tiles], Tiles]
) -> Callable[[DeclaredCall, golden.Attention], golden.Attention]:
    def core(_call: DeclaredCall, attention: golden.Attention) -> golden.Attention:
        tiles, softmaxes = _own_softmaxes(cut, attention)
        return weighing(attention, _shared(attention, share(tiles), softmaxes))

    return core
