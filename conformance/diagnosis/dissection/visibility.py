"""Which keys have a weight, and what an additive mask gives them.

The fewest properties that tell lost and uncovered keys from others; a mask read at another place.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import combinations, islice, product
from operator import and_
from typing import Any, Final
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from ..._golden import golden
from ...problems.inputs import Inputs
from ...tolerance import model
from ..conditions import limits
from ..mistakes import DeclaredCall, NamedMistake, NotExpressible
from ..mistakes._steps import (
    admitted_by_mask,
    admitted_by_structure,
    but_for_bias,
    keys_ahead,
    relogited,
    unmasked_logits,
    weighing,
)
from ..mistakes.fills import added_to_hidden, operated
from ..mistakes.named_mistake import CoreChange, InputsChange
from .cells import (
    CELLS,
    EVERY,
    HIDDEN,
    KEPT,
    REACHED,
    Cells,
    at_steps,
    before_last,
    from_distance,
    from_index,
    have_of,
    it_of,
    key_indices,
    keys_in_words,
    of_queries,
)
from .reading import ROOM, Reading, statement

# Properties that lost or uncovered keys may have together.
MOST_PROPERTIES: Final = 2
# Kinds of keys that one reading cannot tell apart, of which others may tell the right one.
MOST_ALIKE: Final = 6
# Errors of a weight of which it must be a multiple for a small logit, or its part of the right one,
# to be read from it.
CLEAR: Final = 20.0


_TABLES: Final[WeakKeyDictionary[DeclaredCall, list[tuple[Cells, Tensor]]]] = WeakKeyDictionary()


def _tables(call: DeclaredCall) -> list[tuple[Cells, Tensor]]:
    """The kinds of keys of a call as tables, of those that it cannot tell apart the plainest.

    Remembered: several statements are made of them.
    """
    if call not in _TABLES:
        _TABLES[call] = _told_apart(call)
    return _TABLES[call]


def _told_apart(call: DeclaredCall) -> list[tuple[Cells, Tensor]]:
    alike: dict[bytes, list[tuple[Cells, Tensor]]] = {}
    for cells in CELLS:
        table = cells.holds(call)
        if table is not None:
            alike.setdefault(table.numpy().tobytes(), []).append((cells, table))
    return [each for some in alike.values() for each in some[:MOST_ALIKE]]


def table_statements(reading: Reading) -> Iterator[NamedMistake]:
    """Another table of keys in place of the mask, of causality and window, or of both.

    What is obeyed is not replaced: some key is attended that it hides, or the table is made of it.
    """
    seen = reading.visible
    kept, reached = KEPT.holds(reading.call), REACHED.holds(reading.call)
    if reached is None or bool((seen == reading.attention.allowed).all()):
        return
    mask_broken = kept is not None and bool((seen & ~kept).any())
    structure_broken = bool((seen & ~reached).any())
    for cells, table in _tables(reading.call):
        no_mask = mask_broken or cells.of_mask
        if kept is not None and no_mask and bool((seen == (table & reached)).all()):
            yield _replaced(cells, "the mask", keeps_structure=True, keeps_mask=False)
        if not structure_broken:
            continue
        if kept is not None and bool((seen == (table & kept)).all()):
            yield _replaced(cells, "causality and window", keeps_structure=False, keeps_mask=True)
        elif (kept is None or no_mask) and bool((seen == table).all()):
            yield _replaced(
                cells,
                "causality and window" if kept is None else "mask, causality and window",
                keeps_structure=False,
                keeps_mask=False,
            )


def _replaced(cells: Cells, what: str, *, keeps_structure: bool, keeps_mask: bool) -> NamedMistake:
    def inputs_for(call: DeclaredCall) -> Inputs | None:
        table = cells.holds(call)
        if table is None:
            if cells.of_mask and not call.inputs.masked:
                return None  # without a mask there is nothing to replace
            raise NotExpressible
        if keeps_structure:
            table = table & admitted_by_structure(call)
        if keeps_mask:
            table = table & admitted_by_mask(call)
        return with_table(call, table)

    return statement(
        f"mask: keys {cells.words}",
        f"the keys {cells.words} are attended, in place of those that {what} should leave",
        f"attend the keys that {what} should leave",
        inputs=inputs_for,
    )


def with_table(call: DeclaredCall, table: Tensor) -> Inputs:
    """The inputs of a call with exactly the keys of a table, whatever hid others before."""
    inputs, bias = call.inputs, call.inputs.bias
    finite = None if bias is None else bias.masked_fill(torch.isneginf(bias), 0.0)
    return inputs.replace(keep=table, bias=finite, causal=False, window=None)


def visibility_statements(reading: Reading) -> Iterator[NamedMistake]:
    """The mistakes that lose the keys that are lost, and uncover those that are uncovered."""
    allowed = reading.attention.allowed
    seen = reading.visible & ~_are_alike(reading)
    expected = reading.attention.weights > 4 * reading.error
    rows = allowed.any(dim=-1, keepdim=True) & torch.isfinite(reading.weights).all(-1, keepdim=True)
    lost = expected & ~seen & rows
    uncovered = ~allowed & seen & rows
    if not lost.any() and not uncovered.any():
        return
    unread = ~lost & allowed & ~seen  # too small to be missed
    losing = _described(reading, lost, allowed & rows & ~unread & ~lost)
    fills = _fills(reading, uncovered)
    normalised = _is_renormalised(reading, rows)
    whole = bool((lost.any(-1) & ~seen.any(-1)).any())
    for hidden in HIDDEN:
        table = hidden.holds(reading.call)
        if table is None or bool((uncovered & ~table).any()):
            continue
        showing = _described(reading, uncovered, table & rows & ~uncovered)
        if hidden is HIDDEN[0] and not lost.any() and () in map(_without_every, showing or ()):
            yield from filled_keys(fills)
        for one, other, fill in product(losing or (), showing or (), fills):
            summing = normalised or not one  # other sums are another mistake where none is lost
            made = _as_mistake(one, other, hidden, fill=fill, normalised=summing, whole=whole)
            yield made
            if not one and made.inputs is not None and reading.call.inputs.keep is not None:
                yield _but_for_bias(made, made.inputs)


def _are_alike(reading: Reading) -> Tensor:
    """Rows whose keys all have the same weight, as where finite numbers hide all of them.

    Not those whose weights should be the same; none where no row has other weights. Bool
    ``[B, H, Lq, 1]``.
    """
    alike = [
        (weights - weights[..., :1]).abs().amax(-1, keepdim=True) <= ROOM * reading.error.amax()
        for weights in (reading.weights, reading.attention.weights)
    ]
    return alike[0] & ~alike[1] & ~alike[0].all()


def _but_for_bias(made: NamedMistake, change: InputsChange) -> NamedMistake:
    """The same mistake of tables alone: minus infinities that are added still hide their keys."""
    return statement(
        f"{made.name}, unless an additive mask hides them",
        f"{made.sentence}, unless an additive mask hides them: a row of such keys alone is NaN",
        made.fix,
        **but_for_bias(change),
    )


def _described(reading: Reading, chosen: Tensor, others: Tensor) -> list[tuple[Cells, ...]] | None:
    """The fewest properties that all chosen cells have and none of the others has together.

    Of those of one number alone the first few, and limits: other calls tell them apart.
    """
    if not chosen.any():
        return [()]
    limits_of_keys = list(_limited(reading, chosen, others))
    every = [*_tables(reading.call), *limits_of_keys]
    tables = [(cells, table[others]) for cells, table in every if bool(table[chosen].all())]
    if not others.any():
        return [(EVERY,), *((cells,) for cells, _ in tables[:4])]
    left = [int.from_bytes(table.numpy().tobytes()) for _, table in tables]
    exact = {cells for (cells, _), more in zip(tables, left, strict=True) if not more}
    for count in range(1, MOST_PROPERTIES + 1):
        together = (
            some for some in combinations(range(len(left)), count) if not _common(left, some)
        )
        described = [tuple(tables[i][0] for i in some) for some in islice(together, MOST_ALIKE)]
        if described:
            limits_alone = [(cells,) for cells, _ in limits_of_keys if cells in exact]
            return [*described, *(one for one in limits_alone if one not in described)]
    return None


def _common(left: Sequence[int], some: Sequence[int]) -> int:
    return reduce(and_, (left[index] for index in some))


def _limited(reading: Reading, chosen: Tensor, others: Tensor) -> Iterator[tuple[Cells, Tensor]]:
    """Keys on one side of an index or a distance, such that some others are on the other side."""
    for limited, numbers in ((from_index, key_indices), (from_distance, keys_ahead)):
        values = numbers(reading.call).expand(chosen.shape)
        for number, above in limits(values[chosen].tolist(), values[others].tolist()):
            cells = limited(number, above=above)
            table = cells.holds(reading.call)
            if table is not None:
                yield cells, table
    further = chosen.shape[-1] - 1 - int(chosen.flatten(0, -2).any(0).nonzero().amax())
    for cells in (*keys_at_steps(chosen), *map(before_last, [further] if further else [])):
        table = cells.holds(reading.call)
        if table is not None:
            yield cells, table


def keys_at_steps(chosen: Tensor) -> Iterator[Cells]:
    """Keys at regular indices, where those of all rows are that."""
    indices = chosen.flatten(0, -2).any(0).nonzero().flatten()
    steps = indices.diff().unique()
    if len(indices) > 2 and len(steps) == 1:  # noqa: PLR2004 (any two are as far apart as they are)
        yield at_steps(int(indices[0]), int(steps[0]))


def _is_renormalised(reading: Reading, rows: Tensor) -> bool:
    """Whether what lost keys had is shared out among the rest: they are lost before the softmax.

    Rows then sum to one. Beside sinks, which have a share, the weights of other keys are larger.
    """
    if reading.attention.sinks is not None:
        apart = (reading.weights - reading.attention.weights).abs()
        return bool((apart > ROOM * reading.error)[rows & reading.visible].any())
    rows = rows & reading.visible.any(dim=-1, keepdim=True)  # a row that has lost all sums to zero
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

    def instead(self, own: Tensor, allowed: Tensor) -> Tensor:
        """The logits of keys that are allowed, and of those that are not."""
        return torch.where(allowed, own, self.logits(own))


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
    return tuple(one for one in some if one is not EVERY)


def fill_statements(reading: Reading) -> Iterator[NamedMistake]:
    """What hidden keys have as a logit, where they are seen beside one that is kept."""
    yield from filled_keys(_fills(reading, ~reading.attention.allowed & reading.visible))


def filled_keys(fills: Sequence[Fill | None]) -> Iterator[NamedMistake]:
    """Hidden keys with one logit, in all rows or in those that have other keys."""
    fix = "give keys that are hidden a logit of minus infinity"
    too = ", in rows without other keys, too"
    for fill, (hidden, part) in product(fills, _HIDING.items()):
        if fill is None:
            continue
        name = f"visibility: {hidden} with {fill.words}"
        words = f"{hidden} have {fill.words}, and so a weight"
        for more, empty_too in (("", False), (too, True)):
            steps = _with_fill(fill, part, empty_too=empty_too)
            yield statement(f"{name}{more}", f"{words}{more}", fix, **steps)


def _with_fill(fill: Fill, part: str, *, empty_too: bool) -> dict[str, Any]:
    if fill.added:
        return {"inputs": added_to_hidden(part, fill.number, empty_too=empty_too)}
    if empty_too and part == "both":
        return {"changes": {"mask_fill": fill.number}}
    core = operated(part, fill.instead)
    return {"core": core if empty_too else _where_others_are(core)}


_HIDING: Final = {"hidden keys": "both", "keys that the mask hides": "mask"}


def _where_others_are(change: CoreChange) -> CoreChange:
    """A change in rows with a key."""

    def core(call: DeclaredCall, attention: golden.Attention) -> golden.Attention | None:
        made, empty = change(call, attention), attention.empty[..., None]
        if made is None:
            return None
        return weighing(attention, torch.where(empty, attention.weights, made.weights))

    return core


def _as_mistake(
    losing: Sequence[Cells],
    showing: Sequence[Cells],
    hidden: Cells,
    *,
    fill: Fill | None,
    normalised: bool,
    whole: bool,
) -> NamedMistake:
    """Keys that are lost and keys that are shown; ``whole`` rows that lose all answer zero."""

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
            left = relogited(attention, logits.masked_fill(~(admitted & ~lost), float("-inf")))
            return weighing(left, left.weights.masked_fill(lost, 0.0))
        seen = logits.masked_fill(~admitted, float("-inf"))
        every = golden.softmax(seen, sinks=attention.sinks)
        return weighing(attention, every.masked_fill(lost, 0.0))

    name, text, fix = _texts(losing, showing, hidden, fill=fill, normalised=normalised)
    if fill is None and normalised and not whole:
        return statement(name, text, fix, inputs=inputs_for)
    return statement(name, text, fix, core=core)


def _all_of(some: Sequence[Cells], call: DeclaredCall) -> Tensor:
    """The keys that have every property; none where one of them does not apply."""
    none = torch.zeros(call.inputs.score_shape, dtype=torch.bool)
    tables = [one.holds(call) for one in some]
    return reduce(and_, [none if table is None else table for table in tables], ~none)


# What a causal attention hides, and how it is declared.
_CAUSAL: Final = {
    "after the query": "bottom-right",
    "after the query, counted from the first key,": "top-left",
}


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
        keys, queries = keys_in_words(losing), of_queries(losing)
        names.append(f"no weight{late} for {keys}")
        if queries:
            attend = "attends" if queries.startswith("the ") else "attend"
            texts.append(f"{queries} {attend} no key{late}, though nothing hides them")
        else:
            texts.append(
                f"{keys} {have_of(keys)} no weight{late}, though nothing hides {it_of(keys)}"
            )
        fixes.append(f"let {queries} attend keys" if queries else f"let the softmax see {keys}")
        if words.startswith("more than ") and words.endswith(" after the query"):
            # Meant as a causal mask it hides too little, and nobody wants to see those keys.
            fixes[-1] += "; if it is meant to be causal, hide every key after the query: triu(1)"
        elif words == "after the query" and late:
            fixes[-1] += "; if it is meant to be causal, declare that, and hide before the softmax"
        elif words in _CAUSAL:
            declared = f'causal="{_CAUSAL[words]}", always_causal=True'
            fixes[-1] = f"{fixes[-1].removesuffix(',')}; if every call is meant to be causal, "
            fixes[-1] += f"declare it: {declared}"
        elif words == "before the query":
            fixes[-1] += "; if it is meant to be causal, hide those after it: tril, not triu"
    if showing:
        keys = keys_in_words([one for one in showing if one is not EVERY], hidden)
        logit = "" if fill is None else f", with {fill.words}"
        names.append(f"a weight for {keys}{logit}")
        texts.append(f"{keys} {have_of(keys)} a weight{logit}")
        fixes.append(f"give {keys} a logit of minus infinity")
    name = "; ".join(one.removesuffix(",") for one in names)
    fix = "; ".join(one.removesuffix(",") for one in fixes)
    return f"visibility: {name}", "; ".join(texts), fix


def zeroed_token_statements(inputs: Inputs) -> Iterator[NamedMistake]:
    """Tokens that a mask sets to zero in place of hiding them: for every query the same ones."""
    if inputs.mask_form is None or inputs.keep is None or inputs.mode == "self":
        return
    for roles, words in ((("key",), "keys"), (("key", "value"), "keys and values")):
        yield statement(
            f"mask: {words} of zeros",
            f"tokens of {words} that the mask hides are set to zero, and attended",
            "give hidden keys a logit of minus infinity: a token of zeros has a weight",
            inputs=_zeroed(roles),
        )


def _zeroed(roles: tuple[str, ...]) -> InputsChange:
    def inputs_for(call: DeclaredCall) -> Inputs | None:
        inputs = call.inputs
        if inputs.keep is None:
            return None
        keep = inputs.keep
        if keep.shape[1:3] != (1, 1) or (inputs.mode == "memory" and len(roles) == 1):
            raise NotExpressible  # another key for each query is no token of zeros
        kept = keep[:, 0, 0, :, None] if inputs.is_layer else keep[:, 0, 0, None, :, None]
        return inputs.with_tokens(**{r: getattr(inputs, r) * kept for r in roles}).replace(
            keep=None
        )

    return inputs_for
