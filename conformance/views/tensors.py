"""Tensors of a report as lines that a person can read: nested lists in aligned columns."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeGuard

_DIGITS: Final = 6
_LARGEST_INTEGER: Final = 1e6
_LINE: Final = 48
MARK: Final = "*"

Table = Mapping[str, Any]


def is_table(data: Any) -> TypeGuard[Table]:
    """Whether some data is a tensor as the report holds it."""
    return isinstance(data, Mapping) and "shape" in data


def is_shown(data: Any) -> TypeGuard[Table]:
    """Whether a tensor is there with its values."""
    return is_table(data) and "values" in data


def number(value: Any) -> str:
    """An element: integers as integers, others with six digits, truth values as they are."""
    if isinstance(value, (bool, str)):
        return str(value)
    value = float(value)
    if math.isfinite(value) and value == round(value) and abs(value) < _LARGEST_INTEGER:
        return str(round(value))
    return f"{value:.{_DIGITS}g}"


def lines(data: Table, marked: Sequence[bool] = ()) -> list[str]:
    """The values as nested lists, a line for each row; marked elements (row-major) have a star.

    Rows of one element stand in one line where there is room for them.
    """
    elements = flat(data["values"])
    marks = [*marked, *([False] * len(elements))] if any(marked) else []
    texts = [number(element) for element in elements]
    if marks:
        texts = [text + (MARK if mark else " ") for text, mark in zip(texts, marks, strict=False)]
    width = max(map(len, texts), default=0)
    sizes = list(data["shape"])
    if sizes and sizes[-1] == 1:
        (whole, *more) = _nested([text.strip() for text in texts], sizes, apart=False)
        if not more and len(whole) <= _LINE:
            return [whole]
    return _nested([text.rjust(width) for text in texts], sizes)


def _nested(texts: list[str], shape: list[int], *, apart: bool = True) -> list[str]:
    """Texts in nested brackets; each row in a line of its own if they are to be ``apart``."""
    if not shape:
        return texts
    each = math.prod(shape[1:])
    if len(shape) == 1 or not texts:
        return [f"[{', '.join(texts)}]"]
    parts = [texts[n * each : (n + 1) * each] for n in range(shape[0])]
    blocks = [_nested(part, shape[1:], apart=apart) for part in parts]
    if not apart:
        return [f"[{', '.join(block for (block,) in blocks)}]"]
    found: list[str] = []
    for place, block in enumerate(blocks):
        opened = ["[" if place == 0 and row == 0 else " " for row in range(len(block))]
        closed = "]" if place == len(blocks) - 1 else ","
        block[-1] += closed
        found.extend(sign + line for sign, line in zip(opened, block, strict=True))
    return found


def flat(values: Any) -> list[Any]:
    """The elements of nested lists in row-major order."""
    if not isinstance(values, list):
        return [values]
    return [element for entry in values for element in flat(entry)]


def shape(data: Table) -> str:
    """The shape of a tensor, with its dtype where it holds no floating-point numbers."""
    dtype = str(data.get("dtype", ""))
    return f"{list(data['shape'])}{'' if 'float' in dtype else f' {dtype}'}"


def beyond(
    got: Table, expected: Table, bound: Table, judged: Table | None, *, law: bool
) -> list[bool]:
    """Which elements of an answer are further off than the bound, or not finite where they must.

    Under a law the expected values are an answer, too, and must be finite; else nothing is judged
    where they are not.
    """
    columns = [flat(data["values"]) for data in (got, expected, bound)]
    counts = flat(judged["values"]) if judged is not None else [True] * len(columns[0])
    return [
        bool(counted) and not _within(*map(float, triple), law=law)
        for counted, *triple in zip(counts, *columns, strict=True)
    ]


def _within(got: float, expected: float, bound: float, *, law: bool) -> bool:
    if not math.isfinite(expected):
        return not law
    return abs(got - expected) <= bound
