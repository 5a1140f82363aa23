"""Candidates computed by several ranks together: each rank's part of every tensor."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from ..base.geometry import NO_PINS, Geometry, Pins
from ..errors import DeclarationError, did_you_mean

if TYPE_CHECKING:  # scripts of failures are written without torch
    from torch import Tensor

PLACES: Final = ("replicated", "heads", "sequence", "zigzag", "batch")
# Features possible with ranks: other features compare memory or settings of one process.
FEATURES: Final = frozenset(
    {"cross", "gqa", "grad_bias", "grad_weights", "gradients", "scale", "softcap", "window"}
)
_MASKS: Final = ("keep", "drop", "keep_int", "bias", "lengths")
_AXES: Final[dict[str, dict[str, int]]] = {
    "heads": {"batch": 0, "heads": 1, "sequence": 2, "zigzag": 2},
    "tokens": {"batch": 0, "sequence": 1, "zigzag": 1},
}
# Parts per rank: in ring attention a part from the front and a part from the end balance the work.
_HALVES: Final = {"zigzag": 2}
_OF_THE_SEQUENCE: Final = frozenset({"sequence", "zigzag"})
# How many axes a tensor has: Shard(-2) counts from the last.
_DIMENSIONS: Final = {"heads": 4, "tokens": 3}
_MOST: Final = 64
_HEADS: Final = ("num_heads", "num_kv_heads")
_PLACED: Final = ("query", "key", "value", "output", "x", "context", "mask")


@dataclass(frozen=True)
class Ranks:
    """The number of ranks behind one answer, and each rank's part of every tensor.

    A place is ``"replicated"`` (the whole tensor), ``"heads"``, ``"sequence"`` or ``"batch"`` (a
    contiguous part of that axis), ``"zigzag"`` (of twice as many parts of the sequence, one from
    the front and one from the end), or a placement of ``torch.distributed.tensor``. Parts are cut
    like ``torch.chunk``: the last parts may be shorter, or empty. A replicated tensor has the whole
    gradient on every rank.

    count
        The number of ranks, unless a clause varies it.
    query, key, value, x, context
        The inputs, by their names in a call.
    output
        The answer; a placement may be ``Partial()``: the sum over all ranks.
    mask
        The mask in any form; along an axis of size 1 it is not divided.
    weights
        The weights of a layer: with ``"heads"`` the rows of query, key and value projections and
        the columns of the output projection go with their heads, and the output bias is replicated.
    even
        Whether the candidate takes only sizes divisible by the number of ranks; other sizes may
        raise, on all ranks.
    seconds
        The time limit of one call, and of a waiting collective.
    """

    count: int
    query: Any = "replicated"
    key: Any = "replicated"
    value: Any = "replicated"
    output: Any = "replicated"
    x: Any = "replicated"
    context: Any = "replicated"
    mask: Any = "replicated"
    weights: Any = "replicated"
    even: bool = False
    seconds: float = 20.0

    def __post_init__(self) -> None:
        if type(self.count) is not int or not 1 <= self.count <= _MOST:
            msg = f"Ranks is given {self.count!r} ranks: give a whole number from 1 to {_MOST}"
            raise DeclarationError(msg)
        if type(self.seconds) not in (int, float) or not 0.0 < self.seconds < math.inf:
            msg = f"seconds of Ranks is {self.seconds!r}: give the seconds that a call may take"
            raise DeclarationError(msg)
        if not isinstance(self.even, bool):
            msg = f"even of Ranks is {self.even!r}: give True or False"
            raise DeclarationError(msg)
        for name in _PLACED:
            _check_place(name, getattr(self, name))
        if self.weights not in ("replicated", "heads"):
            msg = f"weights of Ranks is {self.weights!r}: give 'replicated' or 'heads'"
            raise DeclarationError(msg)

    def places(self, name: str, axes: str) -> Placed:
        """The place of a tensor with axes "heads" ``[B, H, L, D]`` or "tokens" ``[B, L, E]``."""
        if name in _MASKS:
            return dataclasses.replace(placed(self.mask, _AXES["heads"]), broadcast=True)
        place = getattr(self, name, "replicated")
        return placed(place, _AXES[axes])

    def in_words(self, axes: str) -> Ranks:
        """A copy with words in place of torch's placements on these axes, where a word exists."""
        words = {
            name: _word(getattr(self, name), "heads" if name == "mask" else axes)
            for name in _PLACED
        }
        return dataclasses.replace(self, **words)

    def for_count(self, count: int) -> Ranks:
        """A copy for another number of ranks."""
        return dataclasses.replace(self, count=count)

    @property
    def divides_keys(self) -> bool:
        """Whether each rank has its own keys of the sequence; places must be words."""
        return not _OF_THE_SEQUENCE.isdisjoint((self.key, self.context, self.x))

    @property
    def divides_queries(self) -> bool:
        """Whether each rank has its own queries of the sequence; places must be words."""
        return not _OF_THE_SEQUENCE.isdisjoint((self.query, self.x))

    def _multiple(self, name: str, place: str) -> int:
        """The number of equal parts of a tensor along an axis: its size must be a multiple."""
        own = getattr(self, name)
        return self.count * _HALVES.get(own, 1) if own == place else 1

    @property
    def multiples(self) -> dict[str, int]:
        """The required divisor of each size; places must be words.

        Heads are always divided evenly: a query head needs the key/value head of its group.
        """
        shared = self._multiple("key", "heads") if self.weights != "heads" else self.count
        result = {
            "num_heads": max(self._multiple("query", "heads"), shared),
            "num_kv_heads": shared,
        }
        if not self.even:
            return result
        queries, keys = (
            max(self._multiple(name, place) for name in names for place in ("sequence", "zigzag"))
            for names in (("query", "output", "x"), ("key", "context", "x"))
        )
        items = max(self._multiple(name, "batch") for name in ("query", "key", "x"))
        return {**result, "query_length": queries, "key_length": keys, "batch": items}

    def fitted(self, geometry: Geometry, pins: Pins = NO_PINS) -> Geometry:
        """The nearest larger geometry that the ranks can divide, with the pinned number of heads.

        Groups of heads keep their size; if pins forbid this, query heads keep their number instead.
        """
        multiples = self.multiples
        heads, shared = multiples["num_heads"], multiples["num_kv_heads"]
        group = max(1, geometry.num_heads // geometry.num_kv_heads)
        kv_heads = _next(geometry.num_kv_heads, shared)
        while kv_heads * group % heads:
            kv_heads += shared
        other = _next(geometry.num_heads, heads)
        others = [n for n in range(shared, other + 1, shared) if other % n == 0]
        others.sort(key=lambda n: n < geometry.num_kv_heads)
        options = [(kv_heads * group, kv_heads), *((other, n) for n in others)]
        every = [geometry.replace(num_heads=n, num_kv_heads=m) for n, m in options]
        geometry = next((one for one in every if pins.obeyed(one, _HEADS)), every[0])
        return self._even_lengths(geometry) if self.even else geometry

    def _even_lengths(self, geometry: Geometry) -> Geometry:
        multiples = self.multiples
        queries, keys = multiples["query_length"], multiples["key_length"]
        if geometry.query_length == geometry.key_length:
            queries = keys = math.lcm(queries, keys)
        return geometry.replace(
            query_length=_next(geometry.query_length, queries),
            key_length=_next(geometry.key_length, keys),
            batch=_next(geometry.batch, multiples["batch"]),
        )

    def as_json(self) -> dict[str, Any]:
        """The places as words, for the report, without "replicated" entries."""
        entries = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return {
            name: entry if isinstance(entry, (int, float)) else str(entry)
            for name, entry in entries.items()
            if entry not in ("replicated", False)
        }


@dataclass(frozen=True)
class Placed:
    """The place of a tensor: divided along an axis (None: whole on each rank), or summed.

    A ``broadcast`` tensor is not divided along an axis of size 1.
    """

    axis: int | None = None
    halves: int = 1
    summed: bool = False
    broadcast: bool = False

    @property
    def whole(self) -> bool:
        """Whether each rank has the whole tensor, neither a part nor a summand."""
        return self.axis is None and not self.summed

    def spans(self, size: int, rank: int, count: int) -> list[tuple[int, int]]:
        """The (start, stop) indices of a rank's stretches of an axis."""
        if self.axis is None or (self.broadcast and size == 1):
            return [(0, size)]
        pieces = [rank] if self.halves == 1 else [rank, 2 * count - 1 - rank]
        step = -(-size // (count * self.halves))
        return [(min(place * step, size), min((place + 1) * step, size)) for place in pieces]

    def part(self, whole: Tensor, rank: int, count: int) -> Tensor:
        """A rank's part of a tensor."""
        if self.axis is None:
            return whole
        import torch  # noqa: PLC0415 (a declaration is read without it)

        spans = self.spans(whole.shape[self.axis], rank, count)
        parts = [whole.narrow(self.axis, start, stop - start) for start, stop in spans]
        return parts[0] if len(parts) == 1 else torch.cat(parts, dim=self.axis)

    def part_shape(self, shape: Sequence[int], rank: int, count: int) -> tuple[int, ...]:
        """The shape of a rank's part of a tensor."""
        sizes = list(shape)
        if self.axis is not None:
            spans = self.spans(sizes[self.axis], rank, count)
            sizes[self.axis] = sum(stop - start for start, stop in spans)
        return tuple(sizes)

    def put(self, whole: Tensor, part: Tensor, rank: int, count: int) -> None:
        """Write a rank's part into the whole tensor."""
        if self.axis is None:
            whole.copy_(part)
            return
        taken = 0
        for start, stop in self.spans(whole.shape[self.axis], rank, count):
            own = part.narrow(self.axis, taken, stop - start)
            whole.narrow(self.axis, start, stop - start).copy_(own)
            taken += stop - start

    def joined(self, parts: Sequence[Tensor], shape: Sequence[int]) -> Tensor:
        """The whole tensor from all parts, concatenated or summed; rank 0's if replicated."""
        if self.axis is None:
            total = parts[0]
            for part in parts[1:] if self.summed else ():
                total = total + part
            return total
        whole = parts[0].new_empty(tuple(shape))
        for rank, part in enumerate(parts):
            self.put(whole, part, rank, len(parts))
        return whole


WHOLE: Final = Placed()


def placed(place: Any, axes: dict[str, int]) -> Placed:
    """A declared place on a tensor's axes; raises DeclarationError for a missing axis."""
    if isinstance(place, str):
        if place == "replicated":
            return WHOLE
        if place not in axes:
            msg = f"a tensor of tokens is placed by {place!r}: it has no such axis; place the heads"
            raise DeclarationError(msg)
        return Placed(axes[place], _HALVES.get(place, 1))
    if place.is_shard():
        count = _DIMENSIONS["heads" if "heads" in axes else "tokens"]
        if not isinstance(place.dim, int) or not -count <= place.dim < count:
            msg = f"a tensor is placed by {place!r}, but has {count} axes: give one of these"
            raise DeclarationError(msg)
        return Placed(place.dim % count)
    return Placed(summed=place.is_partial())


def _word(place: Any, axes: str) -> Any:
    """The word for a placement of torch's, or the placement where no word exists."""
    if isinstance(place, str) or place.is_partial():
        return place
    if place.is_replicate():
        return "replicated"
    axis = place.dim % _DIMENSIONS[axes]
    named = {axis: word for word, axis in _AXES[axes].items() if word not in _HALVES}
    return named.get(axis, place)


def weight_place(role: str, weights: str) -> Placed:
    """The place of a projection whose rows (the output's columns) go with the heads."""
    if weights == "replicated" or role == "o_bias":
        return WHOLE
    return Placed(1 if role == "o" else 0)


def _check_place(name: str, place: Any) -> None:
    if isinstance(place, str):
        if place not in PLACES:
            msg = f"{name} of Ranks is {place!r}, which is no place{did_you_mean(place, PLACES)}"
            raise DeclarationError(msg)
        return
    known = all(hasattr(place, word) for word in ("is_shard", "is_replicate", "is_partial"))
    if known and place.is_shard():
        placed(place, _AXES["heads"])  # the kind that has the most axes
    if not known or (place.is_partial() and name != "output"):
        msg = (
            f"{name} of Ranks is {place!r}: give one of {', '.join(PLACES)}, or a placement of "
            "torch.distributed.tensor (Partial() for the output alone)"
        )
        raise DeclarationError(msg)


def _next(size: int, multiple: int) -> int:
    return -(-size // multiple) * multiple
