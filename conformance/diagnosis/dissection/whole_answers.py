"""Mistakes visible in whole answers: constant rows, and axes in another order."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import permutations
from typing import Final

import torch
from torch import Tensor

from ..._golden import golden
from ...oracle.comparison import equal_numbers
from ...problems.inputs import Inputs
from ...tolerance import model
from ..agreement import BatteryAnswer
from ..mistakes import NamedMistake
from ..mistakes.named_mistake import answering
from .reading import statement

# The axes of an answer of heads, and of a layer, by the number of them.
_AXES: Final = {4: ("B", "H", "Lq", "D"), 3: ("B", "Lq", "E")}


def alike_row_statements(answer: BatteryAnswer) -> Iterator[NamedMistake]:
    """Yield one number, or NaN, in all rows of a core with keys, or in all without."""
    if answer.inputs.is_layer or not answer.fits:
        return
    empty = answer.exact.core.empty
    for without_keys, rows in ((False, ~empty), (True, empty)):
        read, right = answer.output[rows], answer.exact.output[rows]
        number = float(read.flatten()[0]) if read.numel() else 0.0
        same = read.isnan() if math.isnan(number) else read == number
        if not bool(same.all()) or bool(equal_numbers(read, right).all()):
            continue
        said = "NaN" if math.isnan(number) else f"{number:.4g}"
        words = "rows without keys" if without_keys else "rows that have a key"
        yield statement(
            f"answer: {said} in {words}",
            f"the answer is {said} in all {words}",
            _FIX_EMPTY if without_keys else _FIX_NAN if math.isnan(number) else _FIX_NUMBER,
            edits=(golden.Edit("output", change=_filled(number, without_keys=without_keys)),),
        )


_FIX_EMPTY: Final = "answer rows without keys as declared, whatever was added up"
_FIX_NUMBER: Final = "compute these rows from their keys and values"
_FIX_NAN: Final = (
    "look for what divides by zero, takes infinity off infinity or multiplies it by zero: before "
    "the first key a running maximum is minus infinity"
)


def _filled(number: float, *, without_keys: bool) -> Callable[[Tensor, Tensor], Tensor]:
    def change(output: Tensor, empty: Tensor) -> Tensor:
        return output.masked_fill((empty == without_keys)[..., None], number)

    return change


def answer_order_statements(answer: BatteryAnswer) -> Iterator[NamedMistake]:
    """Yield permuted axes of the answer, or its numbers viewed in another shape."""
    exact = answer.exact.output
    axes = _AXES.get(exact.dim())
    is_own = answer.inputs.head_layout.is_own  # else the letters would not be the user's
    if (
        not is_own
        or axes is None
        or answer.fits
        or sorted(answer.output.shape) != sorted(exact.shape)
    ):
        return
    open_rows = answer.subject.declaration.empty_rows == "any"
    for order in permutations(range(exact.dim())):
        for words, change in (
            ("its axes are", partial(torch.permute, dims=order)),
            ("its numbers, one after another, are viewed as", partial(_viewed_as, order=order)),
        ):
            changed = change(exact)
            if changed.shape == answer.output.shape and _answers(answer, changed):
                listed, own = (", ".join(names) for names in ([axes[at] for at in order], axes))
                yield statement(
                    f"answer: {words.removeprefix('its ')} {listed}",
                    f"the answer is [{own}], but {words} [{listed}]",
                    f"return the answer as [{own}], in the order of the query's axes",
                    edits=answering(_reordered(change, open_rows=open_rows)),
                )


def _viewed_as(output: Tensor, order: Sequence[int]) -> Tensor:
    return output.reshape([output.shape[axis] for axis in order])


def _reordered(
    change: Callable[[Tensor], Tensor], *, open_rows: bool
) -> Callable[[Tensor, Inputs, golden.Semantics], Tensor]:
    def reordered(answer: Tensor, inputs: Inputs, point: golden.Semantics) -> Tensor:
        if open_rows:
            empty = ~inputs.allowed(point).any(dim=-1)
            answer = answer.masked_fill(inputs.answer_rows(empty, point), torch.nan)
        return change(answer)

    return reordered


def _answers(answer: BatteryAnswer, expected: Tensor) -> bool:
    size = expected.abs().amax().clamp_min(model.SAME_READ**2)
    return bool(((answer.output - expected).abs() <= model.SAME_READ * size).all())
