"""Which keys have a weight: the fewest properties that tell lost and uncovered keys from others."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import combinations, product
from operator import and_
from typing import Final

import torch
from torch import Tensor

from ..._golden import golden
from ...problems.inputs import Inputs
from ...tolerance import model
from ..mistakes import DeclaredCall, NamedMistake, NotExpressible
from ..mistakes._steps import (
    BLOCKS,
    admitted_by_mask,
    admitted_by_structure,
    keys_ahead,
    relogited,
    unmasked_logits,
    weighing,
)
from ..mistakes.named_mistake import CoreChange
from .reading import Reading
from .statement import statement

# Properties that lost or uncovered keys may have together.
MOST_TOGETHER: Final = 2
# Kinds of keys that one reading cannot tell apart, of which others may tell the right one.
MOST_ALIKE: Final = 6
# Errors of a weight of which it must be a multiple for a small logit to be read from it.
CLEAR: Final = 20.0


@dataclass(frozen=True)
class Cells:
    """Some keys of some queries: ``words`` follow "the keys"; bool ``[B, H, Lq, Lk]``."""

    words: str
    holds: Callable[[DeclaredCall], Tensor | None]


def _index(axis: int, words: str, holds: Callable[[Tensor, int], Tensor]) -> Cells:
    def cells(call: DeclaredCall) -> Tensor:
        shape = call.inputs.score_shape
        index = torch.arange(shape[axis])
        view = [1, 1, 1, 1]
        view[axis] = -1
        return holds(index, shape[axis]).reshape(view).expand(shape)

    return Cells(words, cells)


def _ahead(words: str, holds: Callable[[Tensor], Tensor]) -> Cells:
    return Cells(words, lambda call: holds(keys_ahead(call)).expand(call.inputs.score_shape))


def _from_the_top(words: str, holds: Callable[[Tensor], Tensor]) -> Cells:
    return Cells(
        words,
        lambda call: holds(keys_ahead(call, bottom_right=False)).expand(call.inputs.score_shape),
    )


def _from_the_bottom(words: str, holds: Callable[[Tensor], Tensor]) -> Cells:
    return Cells(
        words,
        lambda call: holds(keys_ahead(call, bottom_right=True)).expand(call.inputs.score_shape),
    )


def _mask(words: str, change: Callable[[Tensor], Tensor]) -> Cells:
    """Keys that a changed mask keeps."""

    def cells(call: DeclaredCall) -> Tensor | None:
        shape = call.inputs.score_shape
        if not call.inputs.masked:
            return None
        changed = change(admitted_by_mask(call).expand(shape))
        return changed if changed.shape == shape else None

    return Cells(words, cells)


def _not(cells: Cells, words: str) -> Cells:
    def holds(call: DeclaredCall) -> Tensor | None:
        table = cells.holds(call)
        return None if table is None else ~table

    return Cells(words, holds)


def _cached(call: DeclaredCall) -> Tensor:
    shape = call.inputs.score_shape
    return (torch.arange(shape[-1]) < call.inputs.past).expand(shape)


def _by_structure(call: DeclaredCall) -> Tensor:
    return admitted_by_structure(call).expand(call.inputs.score_shape)


_EVERY: Final = Cells(
    "of every kind", lambda call: torch.ones(call.inputs.score_shape, dtype=torch.bool)
)
_KEPT: Final = _mask("that the mask keeps", lambda table: table)
_REACHED: Final = Cells("that causality and window leave", _by_structure)


def _tiles(size: int) -> Iterator[Cells]:
    """Keys by their place in tiles of a size."""
    yield _index(3, f"past the last whole tile of {size}", lambda i, n: i >= n // size * size)
    yield _index(3, f"past the first {size}", lambda i, _n: i >= size)
    yield _index(3, f"among the first {size}", lambda i, _n: i < size)
    yield _index(3, f"in the last tile of {size}", lambda i, n: i >= (n - 1) // size * size)
    yield _index(3, f"before the last tile of {size}", lambda i, n: i < (n - 1) // size * size)
    yield _index(3, f"that end a tile of {size}", lambda i, _n: i % size == size - 1)
    yield _index(3, f"that begin a tile of {size}", lambda i, _n: i % size == 0)
    for words, holds in (
        (f"in the query's own tile of {size}", torch.eq),
        (f"in the query's own tile of {size} or one before it", torch.le),
        (f"in a tile of {size} after the query's own", torch.gt),
    ):
        yield Cells(words, _of_tiles(size, holds))
    yield Cells(
        f"before a tile of {size} that is hidden as a whole, with a visible one behind it,",
        _before_a_hidden_tile(size),
    )


def _of_tiles(
    size: int, holds: Callable[[Tensor, Tensor], Tensor]
) -> Callable[[DeclaredCall], Tensor]:
    """Keys by the numbers of their tile and of that in which the query's index lies."""

    def cells(call: DeclaredCall) -> Tensor:
        shape = call.inputs.score_shape
        keys, queries = torch.arange(shape[-1]) // size, torch.arange(shape[-2]) // size
        return holds(keys, queries[:, None]).expand(shape)

    return cells


def _before_a_hidden_tile(size: int) -> Callable[[DeclaredCall], Tensor]:
    """Keys behind which a whole tile is hidden from the query and a later one is not."""

    def cells(call: DeclaredCall) -> Tensor:
        allowed = call.inputs.allowed(call.semantics).expand(call.inputs.score_shape)
        tile = torch.arange(allowed.shape[-1]) // size
        tiles = int(tile[-1]) + 1 if len(tile) else 0
        table = torch.zeros_like(allowed)
        for number in range(1, tiles - 1):
            hidden = ~allowed[..., tile == number].any(dim=-1, keepdim=True)
            later = allowed[..., tile > number].any(dim=-1, keepdim=True)
            table = table | (hidden & later & (tile < number))
        return table

    return cells


def _of_first_tiles() -> Iterator[tuple[str, Callable[[Tensor], Tensor]]]:
    """Masks whose part for the first tile of queries, or of keys, serves for every tile."""
    for size in BLOCKS[3:]:
        yield f"of the same place in the first tile of {size} queries", _repeated(2, size)
        yield f"of the same place in the first tile of {size} keys", _repeated(3, size)


def _repeated(axis: int, size: int) -> Callable[[Tensor], Tensor]:
    return lambda table: table.index_select(axis, torch.arange(table.shape[axis]) % size)


def _every_kind() -> Iterator[Cells]:
    yield from (_KEPT, _not(_KEPT, "that the mask hides"))
    yield from (_REACHED, _not(_REACHED, "that causality or window hides"))
    for axis, of, ofs in (
        (3, "(the {} key)", "({} keys)"),
        (2, "of the {} query", "of {} queries"),
    ):
        yield _index(axis, of.format("first"), lambda i, _n: i == 0)
        yield _index(axis, of.format("last"), lambda i, n: i == n - 1)
        yield _index(axis, ofs.format("all but the first"), lambda i, _n: i > 0)
        yield _index(axis, ofs.format("all but the last"), lambda i, n: i < n - 1)
        yield _index(axis, ofs.format("odd"), lambda i, _n: i % 2 == 1)
        yield _index(axis, ofs.format("even"), lambda i, _n: i % 2 == 0)
    for block in BLOCKS[1:]:
        yield from _tiles(block)
    yield _index(3, "in the second half", lambda i, n: i >= n // 2)
    yield _index(3, "in the first half", lambda i, n: i < n // 2)
    for words, make in (
        ("", _ahead),
        (", counted from the first key,", _from_the_top),
        (", counted from the last key,", _from_the_bottom),
    ):
        yield make(f"at the query's own place{words}", lambda ahead: ahead == 0)
        yield make(f"after the query{words}", lambda ahead: ahead > 0)
        yield make(f"before the query{words}", lambda ahead: ahead < 0)
        yield make(f"at or after the query{words}", lambda ahead: ahead >= 0)
        yield make(f"at or before the query{words}", lambda ahead: ahead <= 0)
        yield make(f"one after the query{words}", lambda ahead: ahead == 1)
        yield make(f"more than one after the query{words}", lambda ahead: ahead > 1)
        yield make(f"one before the query{words}", lambda ahead: ahead == -1)
    yield Cells("that are cached", _cached)
    yield _not(Cells("", _cached), "that are new")
    for words, change in (
        ("of the first batch item", lambda t: t[:1].expand_as(t)),
        ("of the last batch item", lambda t: t[-1:].expand_as(t)),
        ("of the first head", lambda t: t[:, :1].expand_as(t)),
        ("of the last head", lambda t: t[:, -1:].expand_as(t)),
        ("of the first query", lambda t: t[:, :, :1].expand_as(t)),
        ("of the last query", lambda t: t[:, :, -1:].expand_as(t)),
        ("of the first key", lambda t: t[..., :1].expand_as(t)),
        ("with queries and keys exchanged", lambda t: t.mT),
        ("read from the last key to the first", lambda t: t.flip(-1)),
        ("moved by one key", lambda t: t.roll(1, -1)),
        ("moved back by one key", lambda t: t.roll(-1, -1)),
        ("of any query", lambda t: t.any(2, keepdim=True).expand_as(t)),
        ("of every query", lambda t: t.all(2, keepdim=True).expand_as(t)),
        ("of any head", lambda t: t.any(1, keepdim=True).expand_as(t)),
        ("of every head", lambda t: t.all(1, keepdim=True).expand_as(t)),
        ("of any batch item", lambda t: t.any(0, keepdim=True).expand_as(t)),
        ("of every batch item", lambda t: t.all(0, keepdim=True).expand_as(t)),
        ("of the opposite batch item", lambda t: t.flip(0)),
        ("of the opposite head", lambda t: t.flip(1)),
        ("up to the first key that it hides", lambda t: t.cumprod(-1).bool()),
        ("from the first key that it keeps on", lambda t: t.cumsum(-1) > 0),
        ("up to the last key that it keeps", lambda t: t.flip(-1).cumsum(-1).flip(-1) > 0),
        ("from the last key that it hides on", lambda t: t.flip(-1).cumprod(-1).bool().flip(-1)),
        *_of_first_tiles(),
        ("of the query before", lambda t: t.roll(1, 2)),
        ("of the query after", lambda t: t.roll(-1, 2)),
    ):
        kept = _mask(f"that the mask {words} keeps", change)
        yield kept
        yield _not(kept, f"that the mask {words} hides")


def _alone(one: Cells, other: Cells, words: str) -> Cells:
    def holds(call: DeclaredCall) -> Tensor | None:
        table, others = one.holds(call), other.holds(call)
        return None if table is None or others is None else ~table & others

    return Cells(words, holds)


# What the mask keeps: without one, every key.
_LEFT: Final = Cells(
    "that no mask hides",
    lambda call: admitted_by_mask(call).expand(call.inputs.score_shape),
)
# Ways in which keys are hidden: a part of them may be uncovered.
HIDDEN: Final = (
    Cells("that are hidden", lambda call: ~call.inputs.allowed(call.semantics)),
    _alone(_KEPT, _REACHED, "that the mask alone hides"),
    _alone(_REACHED, _LEFT, "that causality or window alone hides"),
)
CELLS: Final = tuple(_every_kind())


def _tables(call: DeclaredCall) -> list[tuple[Cells, Tensor]]:
    """The kinds of keys of a call as tables, of those that it cannot tell apart the plainest."""
    alike: dict[bytes, list[tuple[Cells, Tensor]]] = {}
    for cells in CELLS:
        table = cells.holds(call)
        if table is not None:
            alike.setdefault(table.numpy().tobytes(), []).append((cells, table))
    return [each for some in alike.values() for each in some[:MOST_ALIKE]]


def table_statements(reading: Reading) -> Iterator[NamedMistake]:
    """Another table of keys in place of the mask, of causality and window, or of both."""
    seen = reading.visible
    kept, reached = _KEPT.holds(reading.call), _REACHED.holds(reading.call)
    if bool((seen == reading.attention.allowed).all()):
        return
    for cells, table in _tables(reading.call):
        if kept is not None and reached is not None and bool((seen == (table & reached)).all()):
            yield _replaced(cells, "the mask", keeps_structure=True, keeps_mask=False)
        if kept is not None and bool((seen == (table & kept)).all()):
            yield _replaced(cells, "causality and window", keeps_structure=False, keeps_mask=True)
        elif bool((seen == table).all()):
            yield _replaced(
                cells,
                "mask, causality and window",
                keeps_structure=False,
                keeps_mask=False,
            )


def _replaced(cells: Cells, what: str, *, keeps_structure: bool, keeps_mask: bool) -> NamedMistake:
    def inputs_for(call: DeclaredCall) -> Inputs:
        table = cells.holds(call)
        if table is None:
            raise NotExpressible
        if keeps_structure:
            table = table & admitted_by_structure(call)
        if keeps_mask:
            table = table & admitted_by_mask(call)
        return with_table(call, table)

    return statement(
        f"mask: keys {cells.words}",
        f"the keys {cells.words} are attended, in place of those that {what} should leave",
        f"attend the keys that {what} leave",
        inputs=inputs_for,
    )


def with_table(call: DeclaredCall, table: Tensor) -> Inputs:
    """The inputs of a call with exactly the keys of a table, whatever hid others before."""
    inputs, bias = call.inputs, call.inputs.bias
    finite = None if bias is None else bias.masked_fill(torch.isneginf(bias), 0.0)
    keep = ~table if call.semantics.mask_polarity == "drop" else table
    return inputs.replace(keep=keep, bias=finite, causal=False, window=None)


def visibility_statements(reading: Reading) -> Iterator[NamedMistake]:
    """The mistakes that lose the keys that are lost, and uncover those that are uncovered."""
    allowed = reading.attention.allowed
    seen = reading.visible
    expected = reading.attention.weights > 4 * reading.error
    rows = allowed.any(dim=-1, keepdim=True) & torch.isfinite(reading.weights).all(-1, keepdim=True)
    lost = expected & ~seen & rows
    uncovered = ~allowed & seen & rows
    if not lost.any() and not uncovered.any():
        return
    unread = ~lost & allowed & ~seen  # too small to be missed
    losing = _described(reading, lost, allowed & rows & ~unread & ~lost)
    fills = _fills(reading, uncovered)
    normalised = _sums_to_one(reading, rows)
    for hidden in HIDDEN:
        table = hidden.holds(reading.call)
        if table is None or bool((uncovered & ~table).any()):
            continue
        showing = _described(reading, uncovered, table & rows & ~uncovered)
        if hidden is HIDDEN[0] and not lost.any() and () in map(_without_every, showing or ()):
            yield from _filled(fills)
        for one, other, fill in product(losing or (), showing or (), fills):
            yield _as_mistake(one, other, hidden, fill=fill, normalised=normalised)


def _described(reading: Reading, chosen: Tensor, others: Tensor) -> list[tuple[Cells, ...]] | None:
    """The fewest properties that all chosen cells have and none of the others has together."""
    if not chosen.any():
        return [()]
    every = _tables(reading.call)
    tables = [(cells, table[others]) for cells, table in every if bool(table[chosen].all())]
    if not others.any():
        return [(_EVERY,), *((cells,) for cells, _ in tables[:4])]
    for count in range(1, MOST_TOGETHER + 1):
        found = [
            tuple(cells for cells, _ in some)
            for some in combinations(tables, count)
            if not bool(reduce(and_, (left for _, left in some)).any())
        ]
        if found:
            return found[:8]
    return None


def _sums_to_one(reading: Reading, rows: Tensor) -> bool:
    if reading.attention.sinks is not None:
        return True  # a sink takes its share: the sum alone does not tell
    sums = reading.weights.sum(dim=-1, keepdim=True)
    return bool(((sums - 1.0).abs()[rows] <= reading.same).all())


@dataclass(frozen=True)
class Fill:
    """The logit of keys that should be hidden: a number, alone or added to their own logit."""

    number: float
    added: bool

    @property
    def words(self) -> str:
        """What follows "keys with"."""
        return (
            f"{self.number:g} added to their logits"
            if self.added
            else f"a logit of {self.number:g}"
        )

    def logits(self, own: Tensor) -> Tensor:
        """The logits, from those that keys have without a mask."""
        return own + self.number if self.added else torch.full_like(own, self.number)


def _fills(reading: Reading, uncovered: Tensor) -> list[Fill | None]:
    """What the logits of uncovered keys may be: None for what they are without a mask."""
    if not uncovered.any():
        return [None]
    exact = unmasked_logits(reading.attention)
    logits = reading.weights.clamp_min(0.0).log()
    anchors = reading.legible & reading.attention.allowed
    apart = torch.where(anchors, logits - exact, torch.nan).nanmean(dim=-1, keepdim=True)
    clear = uncovered & (reading.weights > CLEAR * reading.error)
    fills: list[Fill | None] = []
    for own, added in ((torch.zeros_like(exact), False), (exact, True)):
        read = (logits - apart - own)[clear]
        read = read[torch.isfinite(read)]
        if not read.numel() or float(read.amax() - read.amin()) > model.FILL_READ_TO:
            continue
        middle = float(read.mean())
        whole = float(round(middle))
        number = whole if abs(middle - whole) < model.FILL_READ_TO else middle
        if number or not added:
            fills.append(Fill(number, added))
    return [*fills, None]


def _without_every(some: tuple[Cells, ...]) -> tuple[Cells, ...]:
    return tuple(one for one in some if one is not _EVERY)


def _filled(fills: Sequence[Fill | None]) -> Iterator[NamedMistake]:
    """Every hidden key with one logit, in all rows or in those that have other keys."""
    for fill in fills:
        if fill is None:
            continue
        words = f"keys that are hidden have {fill.words}, and so a weight"
        fix = "give keys that are hidden a logit of minus infinity"
        name = f"visibility: hidden keys with {fill.words}"
        yield statement(name, words, fix, core=_filled_where_others_are(fill))
        if fill.added:
            continue
        yield statement(
            f"{name}, in rows without other keys, too",
            f"{words}, in rows without other keys, too",
            fix,
            changes={"mask_fill": fill.number},
        )


def _filled_where_others_are(fill: Fill) -> CoreChange:
    def core(_call: DeclaredCall, attention: golden.Attention) -> golden.Attention:
        own = unmasked_logits(attention)
        logits = torch.where(attention.allowed, own, fill.logits(own))
        filled = relogited(attention, logits).weights
        empty = attention.empty[..., None]
        return weighing(attention, torch.where(empty, attention.weights, filled))

    return core


def _as_mistake(
    losing: Sequence[Cells],
    showing: Sequence[Cells],
    hidden: Cells,
    *,
    fill: Fill | None,
    normalised: bool,
) -> NamedMistake:
    def tables(call: DeclaredCall) -> tuple[Tensor, Tensor]:
        """The keys that are lost and those that are uncovered."""
        allowed = call.inputs.allowed(call.semantics)
        none = torch.zeros_like(allowed)
        return (
            allowed & _all_of(losing, call) if losing else none,
            _all_of((hidden, *showing), call) if showing else none,
        )

    def inputs_for(call: DeclaredCall) -> Inputs:
        lost, shown = tables(call)
        return with_table(call, (call.inputs.allowed(call.semantics) & ~lost) | shown)

    def core(call: DeclaredCall, attention: golden.Attention) -> golden.Attention:
        lost, shown = tables(call)
        logits = unmasked_logits(attention)
        if fill is not None:
            logits = torch.where(shown, fill.logits(logits), logits)
        admitted = attention.allowed | shown
        if normalised:
            return relogited(attention, logits.masked_fill(~(admitted & ~lost), float("-inf")))
        whole = golden.softmax(logits.masked_fill(~admitted, float("-inf")))
        return weighing(attention, whole.masked_fill(lost, 0.0))

    name, text, fix = _texts(losing, showing, hidden, fill=fill, normalised=normalised)
    if fill is None and normalised:
        return statement(name, text, fix, inputs=inputs_for)
    return statement(name, text, fix, core=core)


def _all_of(some: Sequence[Cells], call: DeclaredCall) -> Tensor:
    """The keys that have every property; none where one of them does not apply."""
    none = torch.zeros(call.inputs.score_shape, dtype=torch.bool)
    tables = [one.holds(call) for one in some]
    return reduce(and_, [none if table is None else table for table in tables], ~none)


def _texts(
    losing: Sequence[Cells],
    showing: Sequence[Cells],
    hidden: Cells,
    *,
    fill: Fill | None,
    normalised: bool,
) -> tuple[str, str, str]:
    """The name, what is wrong, and what to do instead."""
    names, texts, fixes = [], [], []
    if losing:
        words = " ".join(one.words for one in losing)
        late = "" if normalised else " after the softmax"
        names.append(f"without keys {words}{late}")
        texts.append(f"keys {words} have no weight{late}, though nothing hides them")
        fixes.append(f"let the softmax see keys {words}")
    if showing:
        words = " ".join((hidden.words, *(one.words for one in showing if one is not _EVERY)))
        logit = "" if fill is None else f", with {fill.words}"
        names.append(f"with keys {words}{logit}")
        texts.append(f"keys {words} have a weight{logit}")
        fixes.append(f"give keys {words} a logit of minus infinity")
    return f"visibility: {'; '.join(names)}", "; ".join(texts), "; ".join(fixes)
