"""Triangles and windows: from which key to which each query attends, and where queries stand."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product
from typing import Final

import torch
from torch import Tensor

from ...problems.inputs import Inputs
from ..mistakes import DeclaredCall, NamedMistake
from ..mistakes._steps import BLOCKS, admitted_by_mask
from ..mistakes.named_mistake import InputsChange
from .reading import Reading, statement
from .visibility import with_table


@dataclass(frozen=True)
class Places:
    """Where queries stand among the keys: query i at ``i + shift``; ``words`` follow "from".

    ``keys`` is the size of tiles within which keys are counted anew, 0 for none. For each tile of
    ``queries`` before it a query stands so many places earlier.
    """

    words: str
    shift: Callable[[Inputs], int]
    queries: int = 1
    earlier: int = 0
    keys: int = 0


@dataclass(frozen=True)
class Distances:
    """How far keys lie ahead of queries, from their places and the number of keys.

    ``words`` follow "distances are", and are empty for plain ones.
    """

    words: str
    ahead: Callable[[Tensor, int], Tensor]


def _more_keys(inputs: Inputs) -> int:
    return inputs.geometry.key_length - inputs.geometry.query_length


def _at_zero(_inputs: Inputs) -> int:
    return 0


PLACES: Final = (
    Places("the last key", _more_keys),
    Places("the first key", _at_zero),
    Places("the first key that is not cached", lambda inputs: inputs.past),
    Places(
        "the last key, less the number of cached keys",
        lambda inputs: _more_keys(inputs) - inputs.past,
    ),
    Places("the middle of the keys", lambda inputs: _more_keys(inputs) // 2),
    Places(
        "the last key, or the first one where there are more queries than keys",
        lambda inputs: max(_more_keys(inputs), 0),
    ),
    Places(
        "the first key, less the number by which keys are more than queries",
        lambda inputs: -_more_keys(inputs),
    ),
    *(
        places
        for size in BLOCKS[3:]
        for places in (
            *(
                Places(f"{key}, {words} for each tile of {size} queries{end}", shift, size, earlier)
                for words, end, earlier in (
                    ("anew", "", size),
                    ("one less", " before", 1),
                    ("one more", " before", -1),
                )
                for key, shift in (("the last key", _more_keys), ("the first key", _at_zero))
            ),
            Places(f"the last key, and keys anew in each tile of {size}", _more_keys, keys=size),
            Places(f"the first key, and keys anew in each tile of {size}", _at_zero, keys=size),
        )
    ),
)
DISTANCES: Final = (
    Distances("", lambda ahead, _keys: ahead),
    Distances("taken modulo the number of keys", lambda ahead, keys: -((-ahead) % keys)),
    Distances("taken without their sign", lambda ahead, _keys: -ahead.abs()),
    Distances("taken with the other sign", lambda ahead, _keys: -ahead),
)


def _ahead(inputs: Inputs, places: Places, distances: Distances) -> Tensor:
    """How far each key lies ahead of each query: ``[Lq, Lk]``."""
    sizes = inputs.geometry
    queries, keys = torch.arange(sizes.query_length), torch.arange(sizes.key_length)
    queries = queries - queries // places.queries * places.earlier
    keys = keys % places.keys if places.keys else keys
    ahead = keys - (queries[:, None] + places.shift(inputs))
    return distances.ahead(ahead, sizes.key_length)


def band_statements(reading: Reading) -> Iterator[NamedMistake]:
    """Another triangle or window: from which key to which each query attends."""
    inputs = reading.call.inputs
    if not (inputs.causal or inputs.window):
        return
    seen = reading.visible
    kept = admitted_by_mask(reading.call).expand(seen.shape)
    if not seen.any() or bool((seen == reading.attention.allowed).all()):
        return
    left, right = (-1, -1) if inputs.window is None else inputs.window
    for places, distances, declared in _tellable(reading, hidden=bool((seen != kept).any())):
        ahead = _ahead(inputs, places, distances).expand(seen.shape)
        least, most = int(ahead[seen].min()), int(ahead[seen].max())
        if not bool((seen == (kept & (ahead >= least) & (ahead <= most))).all()):
            continue
        before: int | None = 0
        behind: int | None = 0  # an end that the call does not limit is taken to be right
        if left >= 0:
            before = least + left if least > int(ahead.min()) else None
        if inputs.causal or right >= 0:
            end = 0 if inputs.causal else right
            behind = most - end if most < int(ahead.max()) else None
        if declared and not distances.words and (moved := _limited(reading, before, behind)):
            yield _band(0, 0, moved, distances, stands=_stands(reading), own_last=False)
        if not declared or distances.words or (before, behind) != (0, 0):
            stands = "" if declared else _stands(reading)
            own_last = inputs.causal or right == 0
            yield _band(before, behind, places, distances, stands=stands, own_last=own_last)


def _limited(reading: Reading, before: int | None, behind: int | None) -> Places | None:
    """Places that lie no farther on, or back, from the first key than where they were read.

    None where the ends of the band are not moved alike, or queries stand at the first key anyway.
    """
    inputs = reading.call.inputs
    more = _more_keys(inputs)
    ends = {before} if inputs.window is not None and inputs.window[0] >= 0 else set()
    ends |= {behind} if inputs.causal or (inputs.window or (-1, -1))[1] >= 0 else set()
    moved = ends.pop() if len(ends) == 1 else None
    if not moved or reading.call.semantics.causal_alignment != "bottom-right":
        return None
    end = more + moved
    if moved < 0 <= end:
        said = f"the last key, but no more than {end} keys after the first"
        return Places(said, lambda call: min(_more_keys(call), end))
    if end <= 0 < moved:
        said = f"the last key, but no more than {-end} keys before the first"
        return Places(said, lambda call: max(_more_keys(call), end))
    return None


def _tellable(reading: Reading, *, hidden: bool) -> Iterator[tuple[Places, Distances, bool]]:
    """Places and distances that differ for the inputs of a reading, the plainest of those alike.

    The declared places come first, and alone where no key is ``hidden``. The third says whether
    places are the declared ones.
    """
    inputs = reading.call.inputs
    bottom_right = reading.call.semantics.causal_alignment == "bottom-right"
    aligned = "the last key" if bottom_right else "the first key"
    seen: list[Tensor] = []
    for distances in DISTANCES if hidden else DISTANCES[:1]:
        for places in sorted(PLACES, key=lambda one: one.words != aligned):
            ahead = _ahead(inputs, places, distances)
            if not any(torch.equal(ahead, other) for other in seen):
                seen.append(ahead)
                yield places, distances, places.words == aligned
            if not hidden:
                return


def _no_more_after(left: int, right: int, _past: int) -> tuple[int, int]:
    if left < 0:
        return left, right
    return left, left if right < 0 else min(left, right)


# How many more keys at the front than are read may be shown whatever a window hides.
MOST_FIRST: Final = 4
# Windows that are made of the right one, from its numbers of keys before and after the query and
# the number of cached keys.
WindowChange = Callable[[int, int, int], tuple[int, int]]
_AS_IT_SAYS: Final[tuple[str, WindowChange]] = (
    "as many keys on each side as it says",
    lambda left, right, _past: (left, right),
)
_WINDOWS: Final[tuple[tuple[str, WindowChange], ...]] = (
    ("half as many keys before the query", lambda left, right, _past: (left // 2, right)),
    ("half as many keys after the query", lambda left, right, _past: (left, right // 2)),
    _AS_IT_SAYS,
    (
        "as many keys before the query as after it, and the reverse",
        lambda left, right, _p: (right, left),
    ),
    ("one more key before the query", lambda left, right, _past: (left + (left >= 0), right)),
    ("one more key after the query", lambda left, right, _past: (left, right + (right >= 0))),
    ("half as many keys on both sides", lambda left, right, _past: (left // 2, right // 2)),
    ("twice as many keys before the query", lambda left, right, _past: (2 * left, right)),
    ("twice as many keys on both sides", lambda left, right, _past: (2 * left, 2 * right)),
    ("as many keys after the query as before it", lambda left, _right, _past: (left, left)),
    ("no more keys after the query than before it", _no_more_after),
    ("as many keys on both sides as on the larger one", lambda *sides: (max(sides[:2]),) * 2),
    ("as many keys on both sides as on the smaller one", lambda *sides: (min(sides[:2]),) * 2),
    (
        "as many keys on both sides as on the larger one, where both have a limit",
        lambda left, right, _p: (left, right) if min(left, right) < 0 else (max(left, right),) * 2,
    ),
    ("as many keys before the query as after it", lambda _left, right, _past: (right, right)),
    ("every key on a side that has none", lambda left, right, _past: (left or -1, right or -1)),
    (
        "every key before the query where it has none",
        lambda left, right, _past: (left or -1, right),
    ),
    ("every key after the query where it has none", lambda left, right, _past: (left, right or -1)),
    (
        "as many keys more before the query as are cached",
        lambda left, right, past: (left if left < 0 else left + past, right),
    ),
    (
        "as many keys more on both sides of the query as are cached",
        lambda left, right, past: (
            left if left < 0 else left + past,
            right if right < 0 else right + past,
        ),
    ),
)


@dataclass(frozen=True)
class Literal:
    """On which sides a window's minus one is taken for a number of keys; ``words`` follow it."""

    words: str
    before: bool
    after: bool
    unless_causal: bool = False


NO_LIMIT: Final = Literal("", before=False, after=False)
_NOT_CAUSAL: Final = "where the call is not causal"
_LITERAL: Final = (
    Literal(", with -1 as a number of keys", before=True, after=True),
    Literal(", with -1 before the query as a number of keys", before=True, after=False),
    Literal(", with -1 after the query as a number of keys", before=False, after=True),
    Literal(
        f", with -1 after the query as a number of keys {_NOT_CAUSAL}",
        before=False,
        after=True,
        unless_causal=True,
    ),
    Literal(
        f", with -1 as a number of keys, after the query only {_NOT_CAUSAL}",
        before=True,
        after=True,
        unless_causal=True,
    ),
)


def window_statements(reading: Reading) -> Iterator[NamedMistake]:
    """A window of other numbers of keys, made of the right ones."""
    if reading.call.inputs.window is None or bool(
        (reading.visible == reading.attention.allowed).all()
    ):
        return
    for places, distances, declared in _tellable(reading, hidden=True):
        if distances.words:
            break
        for (words, change), literal in _windows():
            inputs_for = _of_window(change, places, literal)
            changed = inputs_for(reading.call)
            if changed is None or not torch.equal(reading.visible, _table(changed)):
                continue
            more = literal.words
            more += "" if declared else f", counted from {places.words}"
            yield statement(
                f"band: {words}{more}",
                f"a window shows {words}{more}",
                "show as many keys on each side of the query as the window says, and all where it "
                "says -1",
                inputs=inputs_for,
            )
    yield from _besides(reading)


# Keys that are shown besides those of a window, from the mask ``[.., Lq, Lk]`` and their numbers.
Besides = Callable[[Tensor], Tensor]


def _besides(reading: Reading) -> Iterator[NamedMistake]:
    """Keys that the mask and causality admit, and that the window should hide, in every call."""
    allowed, admitted = reading.attention.allowed, admitted_by_mask(reading.call)
    more = (reading.visible & ~allowed).flatten(0, -2).any(0).nonzero().flatten().tolist()
    if not more or bool((allowed & ~reading.visible).any()):
        return

    def shown(count: int) -> Besides:
        return lambda mask: mask & (torch.arange(mask.shape[-1]) < count)

    ways: list[tuple[str, Besides, bool]] = [
        (f"the first {'key' if count == 1 else f'{count} keys'}", shown(count), True)
        for count in range(more[-1] + 1, min(more[-1] + 1 + MOST_FIRST, admitted.shape[-1] + 1))
    ]
    if reading.call.inputs.keep is not None:
        ways.append(("every key that the mask keeps", lambda mask: mask, False))
    for words, besides, masked in ways:
        inputs_for = _with_besides(besides, masked=masked)
        changed = inputs_for(reading.call)
        if changed is not None and torch.equal(reading.visible, _table(changed)):
            yield statement(
                f"band: a window, and {words}",
                f"a window shows {words} besides its own",
                "hide every key that the window, causality or the mask hides",
                inputs=inputs_for,
            )


def _with_besides(besides: Besides, *, masked: bool) -> InputsChange:
    """More keys beside a window's; ``masked`` says that the mask hides keys of the window's."""

    def inputs_for(call: DeclaredCall) -> Inputs | None:
        inputs = call.inputs
        if inputs.window is None or (inputs.keep is None and not masked):
            return None
        left, right = inputs.window
        bottom_right = call.semantics.causal_alignment == "bottom-right"
        ahead = _ahead(inputs, PLACES[0 if bottom_right else 1], DISTANCES[0])
        mask = admitted_by_mask(call).expand(inputs.score_shape)
        own = ((ahead >= -left) | (left < 0)) & ((ahead <= right) | (right < 0))
        own = (own & mask if masked else own) | besides(mask)
        return with_table(call, own & ((ahead <= 0) | (not inputs.causal)))

    return inputs_for


def _table(inputs: Inputs) -> Tensor:
    """The keys that a table keeps, for every query: ``[B, H, Lq, Lk]``."""
    kept = torch.ones(1, 1, 1, 1, dtype=torch.bool) if inputs.keep is None else inputs.keep
    return kept.expand(inputs.score_shape)


def _windows() -> Iterator[tuple[tuple[str, WindowChange], Literal]]:
    """The changed windows, and the right one, with a minus one for what it may be taken for."""
    yield from product(_WINDOWS, (NO_LIMIT, *_LITERAL[:1]))
    yield from product([_AS_IT_SAYS], _LITERAL[1:])


def _of_window(change: WindowChange, places: Places, literal: Literal) -> InputsChange:
    """A changed window, from where queries stand, with a minus one for what it is taken for."""

    def inputs_for(call: DeclaredCall) -> Inputs | None:
        inputs = call.inputs
        if inputs.window is None:
            return None
        left, right = change(*inputs.window, inputs.past)
        ahead = _ahead(inputs, places, DISTANCES[0])
        after = literal.after and not (literal.unless_causal and inputs.causal)
        kept = (ahead >= -left) | (left < 0 and not literal.before)
        kept &= (ahead <= right) | (right < 0 and not after)
        kept &= (ahead <= 0) | (not inputs.causal)
        return with_table(call, admitted_by_mask(call) & kept)

    return inputs_for


# Where query i stands by the declared alignment.
_STANDS: Final = {"bottom-right": "i + Lk - Lq", "top-left": "i"}


def _stands(reading: Reading) -> str:
    return _STANDS[reading.call.semantics.causal_alignment]


def _keys(count: int, more: str) -> str:
    return f"{abs(count)} {more} {'key' if abs(count) == 1 else 'keys'}"


def _band(
    before: int | None,
    behind: int | None,
    places: Places,
    distances: Distances,
    *,
    stands: str,
    own_last: bool,
) -> NamedMistake:
    """A band whose ends lie so many keys from where they should; None for an end that is lost.

    ``stands`` is the declared place of query i where it is counted from another, and ``own_last``
    says that the last key that a query may attend is its own in what was read.
    """

    def inputs_for(call: DeclaredCall) -> Inputs | None:
        inputs = call.inputs
        if not (inputs.causal or inputs.window):
            return None
        left, right = (-1, -1) if inputs.window is None else inputs.window
        ahead = _ahead(inputs, places, distances)
        kept = torch.ones_like(ahead, dtype=torch.bool)
        if before is not None and left >= 0:
            kept &= ahead >= before - left
        end = 0 if inputs.causal else right
        if behind is not None and (inputs.causal or right >= 0):
            kept &= ahead <= behind + end
        return with_table(call, admitted_by_mask(call) & kept)

    parts, fixes = _ends(before, behind, distances, own_last=own_last)
    said, moved = "; ".join(parts), ""
    if stands:
        moved = f", from {places.words}"
        counted = f"the places of queries are counted from {places.words}"
        said = f"{said}; {counted}" if said else counted
        fixes.append(f"let query i stand at key {stands}")
    return statement(
        f"band: {'; '.join(parts) or 'moved'}{moved}", said, "; ".join(fixes), inputs=inputs_for
    )


def _ends(
    before: int | None, behind: int | None, distances: Distances, *, own_last: bool
) -> tuple[list[str], list[str]]:
    """What is wrong with a band's distances and with each of its ends, and what to do instead."""
    parts = [f"distances are {distances.words}"] if distances.words else []
    fixes = ["take keys less queries as distances, with their sign"] if distances.words else []
    if before is None:
        parts.append("a window hides no key before the query")
        fixes.append("hide the keys before i - left from query i")
    elif before:
        fixes.append("let query i attend the keys from i - left on, and none before")
        verb = "is" if abs(before) == 1 else "are"
        parts.append(
            f"{_keys(before, 'fewer' if before > 0 else 'more')} before the query {verb} attended"
        )
    if behind is None and not distances.words:
        parts.append("keys after the query are not hidden")
        fixes.append("hide every key past i + right, and past i where the call is causal")
    elif behind is not None and behind < 0 and own_last:
        parts.append(f"a query does not attend {_last(-behind)}")
        fixes.append("let query i attend key i: tril(0) keeps the diagonal, tril(-1) does not")
    elif behind:
        fixes.append("let query i attend the keys up to i + right, up to i where it is causal")
        verb = "is" if abs(behind) == 1 else "are"
        parts.append(
            f"{_keys(behind, 'more' if behind > 0 else 'fewer')} after the query {verb} attended"
        )
    return parts, fixes


def _last(count: int) -> str:
    last = "key that it may, its own" if count == 1 else f"{count} keys that it may, its own too,"
    return f"the last {last} where the call is causal"
