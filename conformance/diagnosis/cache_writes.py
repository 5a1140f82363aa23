"""What a call writes into its caches, where these do not hold its new keys and values afterwards.

The caches after a few calls are compared with those of calls that write elsewhere, because they
misread the table or the lengths, or that write something else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import torch
from torch import Tensor

from ..calls.calling import CandidateFailure, arguments
from ..calls.devices import taken
from ..clauses.subject import Subject
from ..operators import moves
from ..operators.items import ASSUMED_SIZES
from ..problems.arrangements import slots_of, there
from ..problems.inputs import Inputs
from ..problems.paging import Slots, in_slots, new_tokens
from ..problems.problem import Problem
from .entries import named_entry
from .mistakes.paged import in_pages_of
from .mistakes.readings import Reading, readings
from .neighbours import neighbours

Caches = tuple[Tensor, Tensor]
_MOST_CALLS: Final = 24
# The fewest wrong calls that a way of writing must explain.
_FEWEST: Final = 2
_WRITTEN: Final = "written"
_FIX: Final = (
    "write new key i of item b to the slot of its token cache_lengths[b] + i, and to no other slot"
)


@dataclass(frozen=True, eq=False)
class _Call:
    """A call that writes: new tokens ``[B, Lq, H, D]``, and caches ``[N, slots, H, D]``."""

    at: Slots
    new: Caches
    before: Caches
    after: Caches

    def written(
        self, places: Tensor | None = None, new: Caches | None = None, rows: Tensor | None = None
    ) -> Caches:
        """The caches with tokens written to slots ``[B, Lq]``; given is what differs."""
        places = self.places(self.at) if places is None else places
        rows = self.rows if rows is None else rows
        first, second = (
            _put(cache, tokens, places, rows)
            for cache, tokens in zip(self.before, new or self.new, strict=True)
        )
        return first, second

    @property
    def _row(self) -> Tensor:
        return torch.arange(self.new[0].shape[1]).expand(len(self.at.lengths), -1)

    @property
    def rows(self) -> Tensor:
        """The rows of new tokens that are an item's own: bool ``[B, Lq]``."""
        return self._row < self.at.written[:, None]

    def ranks(self, at: Slots) -> Tensor:
        """The places of new tokens among those of their items, as the lengths say."""
        return (at.lengths - self.at.written)[:, None] + self._row

    def places(self, at: Slots) -> Tensor:
        """The slots of new tokens ``[B, Lq]`` in all pages, or caches, one after another.

        Raises IndexError where an item has no such place.
        """
        ranks = self.ranks(at)
        own = ranks[self.rows]
        if bool(((own < 0) | (own >= at.room)).any()):
            msg = f"an item has {at.room} places"
            raise IndexError(msg)
        return at.places(ranks.clamp(0, at.room - 1))


def _put(cache: Tensor, tokens: Tensor, places: Tensor, rows: Tensor) -> Tensor:
    flat = cache.flatten(0, 1).clone()
    for place, token in zip((places % len(flat))[rows].tolist(), tokens[rows], strict=True):
        flat[place] = token  # of two tokens in one slot the last stays
    return flat.reshape(cache.shape)


Write = Callable[[_Call], Caches]


def explain_writes(subject: Subject, problem: Problem | None) -> list[dict[str, Any]]:
    """Return the entry of what calls near a problem write otherwise; empty if caches are right.

    The plainest way of writing that leaves the caches of each call is named, else the slots that
    hold something else.
    """
    if problem is None or not _is_seen(subject.inputs(problem)):
        return []
    calls = [call for near in _near(subject, problem) for call in _observed(subject, near)]
    wrong = [call for call in calls if not _leaves(_Call.written, call)]
    if not wrong:
        return []
    right = [call for call in calls if call not in wrong]
    way = next(_explaining(wrong, right), "")
    text = f"the new keys and values are {way}" if way else _contents_of_wrong_slots(wrong)
    return [named_entry(text.removeprefix("the "), text, _FIX)]


def _explaining(wrong: Sequence[_Call], right: Sequence[_Call]) -> Iterator[str]:
    """Yield the ways of writing that leave the caches of every wrong call which they can make."""
    for words, write in _ways():
        made = 0
        for call in wrong:
            leaves = _leaves(write, call)
            if leaves is False:
                break
            made += bool(leaves)
        else:
            if made >= min(_FEWEST, len(wrong)):
                spares = any(_leaves(write, call) is False for call in right)
                yield f"{words} (not in every call)" if spares else words


def _near(subject: Subject, problem: Problem) -> Iterator[Inputs]:
    yield subject.inputs(problem)
    for near in neighbours(subject, problem)[:_MOST_CALLS]:
        inputs = subject.inputs(near)
        if _is_seen(inputs):
            yield inputs


def _is_seen(inputs: Inputs) -> bool:
    """Whether a call writes keys and values as they are, into a cache of each."""
    return inputs.writes and inputs.quantised is None and not inputs.head_layout.value_in_key


def _observed(subject: Subject, inputs: Inputs) -> Iterator[_Call]:
    """Yield the call, if it is answered, with its caches by slot."""
    given = arguments(inputs)
    axes = inputs.head_layout.cache_axes
    with suppress(CandidateFailure):
        subject.call_with(subject.forward(inputs), given, inputs)
        at, present = slots_of(inputs), there(inputs, "key", inputs.key)
        heads = inputs.key, inputs.value
        key, value = (new_tokens(one, at, present, inputs.query.shape[2]) for one in heads)
        before = (
            in_slots(one, at, present, junk, after=False)
            for one, junk in zip(heads, at.store.junk, strict=True)
        )
        written = map(taken, given[0][1:3])
        after = (one if axes.endswith("SHD") else one.transpose(1, 2) for one in written)
        call = _Call(at, (key, value), tuple(before), tuple(after))  # type: ignore[arg-type]
        if all(map(_have_equal_shapes, call.before, call.after)):
            yield call


def _have_equal_shapes(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape


def _leaves(write: Write, call: _Call) -> bool | None:
    """Whether a way of writing leaves the caches of a call; None where no such way exists."""
    try:
        return all(map(_same, write(call), call.after))
    except (IndexError, RuntimeError):
        return None


def _same(one: Tensor, other: Tensor) -> bool:
    return bool(_is_equal(one, other).all())


def _ways() -> Iterator[tuple[str, Write]]:
    """Yield ways to write, with what they do in words; the plainest first."""
    for one in readings():
        if one.part in ("the pages", "the length"):
            yield f"{_WRITTEN} as if {one.sentence}", partial(_elsewhere, reading=one)
    for size in ASSUMED_SIZES:
        for counted in (False, True):
            words = f"{_WRITTEN} as if a page had {size} slots"
            words += ", in memory as well" if counted else ""
            yield words, partial(_in_pages, size=size, counted=counted)
    for size in ASSUMED_SIZES[1:]:
        words = f"{_WRITTEN} to the slot of a page whose number is taken modulo {size}"
        yield words, partial(_modulo, size=size)
    for move in moves("BQHD"):
        words = move.words.replace("queries", "tokens").replace("query", "token")
        yield f"{_WRITTEN} as {words}", partial(_moved, change=move.change)


def _elsewhere(call: _Call, *, reading: Reading) -> Caches:
    part = "table" if reading.part == "the pages" else "lengths"
    return call.written(call.places(call.at.replace(**{part: reading.part_of(call.at)})))


def _in_pages(call: _Call, *, size: int, counted: bool) -> Caches:
    return call.written(in_pages_of(call.at, call.ranks(call.at), size, counted=counted))


def _modulo(call: _Call, *, size: int) -> Caches:
    return call.written(call.places(call.at) % size)


def _moved(call: _Call, *, change: Callable[[Tensor], Tensor]) -> Caches:
    key, value = map(change, call.new)
    return call.written(new=(key, value))


# -- slots that hold something else ---------------------------------------------------------------


# A property of every slot ``[N * slots]`` after a call, in the cache of keys (0) or of values (1).
Property = Callable[[_Call, int], Tensor]


def _contents_of_wrong_slots(wrong: Sequence[_Call]) -> str:
    """Say which slots hold what instead, in all calls."""
    told: dict[str, list[str]] = {}
    for cache, name in enumerate(("keys", "values")):
        slots = [(call, ~_same_slots(call.written(), call.after, cache)) for call in wrong]
        slots = [(call, own) for call, own in slots if bool(own.any())]
        if slots:
            where, what = (_plainest(some, slots, cache) for some in (_PLACES, _CONTENTS))
            told.setdefault(f"{what} in {where}", []).append(name)
    return "; ".join(
        f"the caches of {' and '.join(names)} hold {said}" for said, names in told.items()
    )


def _plainest(named: dict[str, Property], slots: Sequence[tuple[_Call, Tensor]], cache: int) -> str:
    """The first property that all wrong slots have; the last of them holds for every slot."""
    return next(
        words
        for words, holds in named.items()
        if all(bool(holds(call, cache)[own].all()) for call, own in slots)
    )


def _same_slots(one: Caches, other: Caches, cache: int) -> Tensor:
    return _is_equal(one[cache], other[cache]).flatten(2).all(-1).flatten()


def _is_equal(one: Tensor, other: Tensor) -> Tensor:
    return (one == other) | (one.isnan() & other.isnan())


def _is_any_of(tokens: Tensor, call: _Call, cache: int) -> Tensor:
    """Whether a slot holds one of some tokens ``[T, H, D]``."""
    held = call.after[cache].flatten(0, 1)[:, None]
    if held.shape[2:] != tokens.shape[1:]:
        return torch.zeros(len(held), dtype=torch.bool)
    return _is_equal(held, tokens[None]).flatten(2).all(-1).any(-1)


def _at(call: _Call, places: Tensor) -> Tensor:
    slots = torch.zeros(call.after[0].flatten(0, 1).shape[0], dtype=torch.bool)
    slots[places % len(slots)] = True
    return slots


def _of_new(call: _Call, _cache: int) -> Tensor:
    return _at(call, call.places(call.at)[call.rows])


def _behind_new(call: _Call, _cache: int) -> Tensor:
    """The slots behind the new tokens of an item, to the end of their page or cache."""
    size = call.after[0].shape[1]
    behind = torch.zeros(call.after[0].flatten(0, 1).shape[0], dtype=torch.bool)
    for places, count in zip(call.places(call.at).tolist(), call.at.written.tolist(), strict=True):
        if count:
            last = places[count - 1]
            behind[last + 1 : (last // size + 1) * size] = True
    return behind


def _held_before(call: _Call, _cache: int) -> Tensor:
    rank = torch.arange(call.at.room).expand(len(call.at.lengths), -1)
    return _at(call, call.at.places(rank)[rank < call.at.held[:, None]])


def _everywhere(call: _Call, _cache: int) -> Tensor:
    return torch.ones(call.after[0].flatten(0, 1).shape[0], dtype=torch.bool)


_PLACES: Final[dict[str, Property]] = {
    "the slots of the new tokens": _of_new,
    "the last slot": lambda call, _cache: _at(call, torch.tensor([-1])),
    "the slots behind the new tokens in their page": _behind_new,
    "the first slots of pages": lambda call, _cache: _at(
        call, torch.arange(len(call.after[0])) * call.after[0].shape[1]
    ),
    "slots of earlier tokens": _held_before,
    "slots of nobody": lambda call, cache: ~_of_new(call, cache) & ~_held_before(call, cache),
    "slots": _everywhere,
}
_CONTENTS: Final[dict[str, Property]] = {
    "what they held before": lambda call, cache: _same_slots(call.before, call.after, cache),
    "zeros": lambda call, cache: (call.after[cache] == 0).flatten(2).all(-1).flatten(),
    "new tokens": lambda call, cache: _is_any_of(call.new[cache][call.rows], call, cache),
    "new tokens of the other cache": lambda call, cache: _is_any_of(
        call.new[1 - cache][call.rows], call, cache
    ),
    "tokens of other slots": lambda call, cache: _is_any_of(
        call.before[cache].flatten(0, 1), call, cache
    ),
    "other numbers": _everywhere,
}
