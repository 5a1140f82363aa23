"""The picture of a failure: the candidate's weights beside the right ones.

The weights are read from answers to unit values, if these explain its answer: nothing is guessed.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import asdict
from itertools import chain
from typing import Any, Final

import torch
from torch import Tensor

from ..base.record import Number, PictureEntry
from ..base.results import elements_shown
from ..clauses.subject import Subject
from ..problems.inputs import Inputs
from ..problems.problem import Problem
from ..tolerance import model
from .agreement import within
from .dissection.layer_weights import MOST_KEYS_OF_LAYERS, read_layer
from .dissection.reading import ROOM, Reading, read, readable
from .mistakes import IMPOSSIBLE

# The most queries and keys of a picture: a window around the worst weight.
MOST_SHOWN: Final = 16
# The most failing problems of a diagnosis on which a picture is tried.
MOST_TRIES: Final = 4
# The relative bonus of a hidden key's error, which wins ties.
_OF_HIDDEN: Final = 1e-6
# Digits of two weights: the fewest in which they differ.
_DIGITS: Final = range(3, 18)


class Illustrator:
    """Draws a picture for each diagnosis of a candidate in one dtype, again on smaller problems."""

    def __init__(self, subject: Subject) -> None:
        self.subject = subject
        self._tries: Counter[str] = Counter()
        self._smallest: dict[str, int] = {}

    def illustrated(
        self, entries: list[dict[str, Any]], problem: Problem | None
    ) -> list[dict[str, Any]]:
        """Add a ``picture`` to the first entry of a report.

        Skipped if its name has a picture of a problem as small already.
        """
        if not entries or problem is None:
            return entries
        name = str(entries[0]["name"])
        sizes = asdict(problem.geometry)
        size = elements_shown(sizes, finite=True)
        if self._tries[name] >= MOST_TRIES or size >= self._smallest.get(name, math.inf):
            return entries
        self._tries[name] += 1
        drawn = picture(self.subject, self.subject.inputs(problem))
        if drawn is None:
            return entries
        finite = all(math.isfinite(float(one)) for one in chain.from_iterable(drawn["got"]))
        self._smallest[name] = elements_shown(sizes, finite=finite)
        return [{**entries[0], "picture": drawn}, *entries[1:]]


def picture(subject: Subject, inputs: Inputs) -> PictureEntry | None:
    """Return the picture of the item and head with the largest weight error, or None.

    None if no weight is wrong or weights cannot be read: values also used as keys, a nonlinear
    answer, an undeclared projection of values.
    """
    try:
        reading = _reading(subject, inputs)
    except IMPOSSIBLE:
        return None
    if reading is None or not reading.explained:
        return None
    exact = subject.golden(reading.given)
    expected, hidden = exact.weights, ~exact.core.allowed
    # Weights within their error count as zero: the equations of a layer leave rounding.
    got = reading.weights.masked_fill(reading.weights.abs() <= ROOM * reading.error, 0.0)
    judged = exact.representable_core
    if subject.oracle.empty_rule(reading.given) == "any":
        judged = judged & ~exact.empty
    wrong = judged.unsqueeze(-1) & ~within(got, expected, ROOM * reading.error)
    if not bool(wrong.any()):
        return None
    errors = (got - expected).abs().nan_to_num(nan=torch.inf) * (1.0 + _OF_HIDDEN * hidden)
    item, head, query, key = _place(torch.where(wrong, errors, -1.0))
    first = [_first(query, errors.shape[2]), _first(key, errors.shape[3])]
    window = (slice(first[0], first[0] + MOST_SHOWN), slice(first[1], first[1] + MOST_SHOWN))
    own = {
        name: table[item, head]
        for name, table in (("expected", expected), ("got", got), ("hidden", hidden))
    }
    sentence = _sentence([query, key], **{name: table[query, key] for name, table in own.items()})
    if reading.given is not inputs and reading.given.is_layer:
        sentence += _other_tokens(inputs, reading.given)
    drawn = PictureEntry(
        text=sentence,
        item=item,
        items=errors.shape[0],
        head=head,
        heads=errors.shape[1],
        first=first,
        sizes=list(errors.shape[2:]),
        worst=[query, key],
        expected=own["expected"][window].tolist(),
        got=own["got"][window].tolist(),
        hidden=own["hidden"][window].tolist(),
        wrong=wrong[item, head][window].tolist(),
    )
    logits = _logits(reading, own["expected"], item, head)
    if logits is not None:
        drawn["logits"] = {name: _cells(table[window]) for name, table in logits.items()}
    return drawn


def _reading(subject: Subject, inputs: Inputs) -> Reading | None:
    if not inputs.is_layer:
        return read(subject, inputs, finite=False) if readable(inputs) else None
    if not 0 < inputs.geometry.key_length <= MOST_KEYS_OF_LAYERS:
        return None
    return read_layer(subject, inputs)


def _place(errors: Tensor) -> list[int]:
    return [int(index) for index in (errors == errors.amax()).nonzero()[0]]


def _first(worst: int, size: int) -> int:
    return max(0, min(worst - MOST_SHOWN // 2, size - MOST_SHOWN))


def _sentence(place: list[int], *, expected: Tensor, got: Tensor, hidden: Tensor) -> str:
    query, key = place
    which = "the hidden key" if bool(hidden) else "key"
    pairs = ([f"{float(weight):.{digits}g}" for weight in (got, expected)] for digits in _DIGITS)
    read_as, right = next((pair for pair in pairs if len(set(pair)) > 1), ["?", "?"])
    return f"query {query} gives {which} {key} the weight {read_as} instead of {right}"


def _other_tokens(inputs: Inputs, given: Inputs) -> str:
    if given.geometry.value_size == inputs.geometry.value_size:
        return ""
    return f"; read with tokens of {given.geometry.value_size} numbers, which tell all keys apart"


def _logits(reading: Reading, expected: Tensor, item: int, head: int) -> dict[str, Tensor] | None:
    """Return log weights of one head, relative to each row's heaviest key, or None.

    ``[Lq, Lk]``, NaN where a weight has no logarithm. None if they are right, and if the wrong keys
    have weight: then the logits are not at fault.
    """
    got, error = reading.weights[item, head], ROOM * reading.error[item, head]
    if not expected.shape[-1] or bool(((got > error) != (expected > error)).any()):
        return None
    legible = reading.legible[item, head] & (expected > error)
    heaviest = expected.nan_to_num(nan=0.0).argmax(dim=-1, keepdim=True)
    tables = {}
    for name, weights in (("expected", expected), ("got", got)):
        logarithms = torch.where(legible, weights, torch.nan).log()
        tables[name] = logarithms - logarithms.gather(-1, heaviest)
    room = reading.logit_error[item, head]
    apart = (tables["got"] - tables["expected"]).abs() - model.LOGIT_READ_TO
    wrong = apart > room + room.gather(-1, heaviest)
    return tables if bool(wrong.any()) else None


def _cells(table: Tensor) -> list[list[Number | None]]:
    return [
        [None if isnan else cell for cell, isnan in zip(row, isnans, strict=True)]
        for row, isnans in zip(table.tolist(), table.isnan().tolist(), strict=True)
    ]
