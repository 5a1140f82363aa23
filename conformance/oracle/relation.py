"""How the two sides of a comparison are made of the candidate's answers, as plain data.

Laws such as "reordering the queries reorders the rows" compare one answer with another one seen in
another order. Which element goes where is read off by looking at numbered elements in that order,
so that a report, or a script without this project, can make the same comparison again.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ..base.results import Violation
from ..base.tables import told_whole
from ..calls.recording import Recording

View = Callable[[Tensor], Tensor]
Side = Sequence[tuple[Tensor, View | None]]


def with_relation(
    violation: Violation | None, recording: Recording | None, *, expected: Side, got: Side
) -> Violation | None:
    """A violation that says which answers each side is the sum of, where calls are recorded.

    Each side is a list of answers, as the candidate returned them, with how they are seen.
    """
    if violation is None or recording is None or not violation.compared:
        return violation
    sides = {"expected": _side(recording, expected), "got": _side(recording, got)}
    if not all(sides.values()):
        return violation
    return dataclasses.replace(violation, compared={**violation.compared, "relation": sides})


def _side(recording: Recording, answers: Side) -> list[dict[str, Any]]:
    """Call numbers and the elements taken of each; empty when a call is not recorded."""
    side: list[dict[str, Any]] = []
    for output, view in answers:
        number = recording.number(output)
        if number is None or not told_whole(output):
            return []
        side.append({"call": number, **({} if view is None else _elements(output, view))})
    return side


def _elements(output: Tensor, view: View) -> dict[str, Any]:
    """Which elements of an answer a view shows, in order; nothing when it shows it as it is."""
    numbered = torch.arange(output.numel()).reshape(output.shape)
    seen = view(numbered)
    return {} if torch.equal(seen, numbered) else {"elements": seen.flatten().tolist()}
