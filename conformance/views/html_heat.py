"""Tensors as tables of coloured cells: expected, actual, error over bound.

Every cell holds its number, so colour only helps: a heat map is a readable table.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, Final

from . import counterexample
from .complete import Record
from .failure_picture import Picture, PictureTable
from .html_words import number

WEIGHT_AXES: Final = ("batch", "head", "query", "key")
# Upper ends of the steps of error over bound; beyond the last there is one more class.
RATIOS: Final = (0.01, 0.1, 0.5, 1.0, 10.0, 1e3)
# Colours on either side of zero, and of weights from 0 to 1.
SHADES: Final = 4
# Elements of a tensor that a page shows; records of this version write out 64 at most.
MOST_ELEMENTS: Final = 256

# Digits of an element: two are enough for a quotient.
_DIGITS: Final[Mapping[str, int]] = {
    "ratio": 2,
    "difference": 2,
    "weight": 3,
    "logit": 3,
    "signed": 4,
    "values": 4,
}

Style = Callable[[Any], str]


@dataclass(frozen=True, kw_only=True)
class Grid:
    """One matrix of a tensor: its place in the tensor, and rows of cells (text, classes).

    ``first`` are the indices of its first row and column.
    """

    caption: str
    row_axis: str
    column_axis: str
    rows: list[list[tuple[str, str]]]
    first: tuple[int, int] = (0, 0)


@dataclass(frozen=True, kw_only=True)
class Heat:
    """A tensor as matrices, with a title and a note on colours and omissions.

    ``scale`` names the colours: ``ratio``, ``signed``, ``weight``, ``values`` or a picture's scale.
    """

    title: str
    scale: str
    grids: list[Grid]
    note: str = ""


def heat(
    title: str,
    data: Record,
    *,
    scale: str = "values",
    largest: float = 0.0,
    axes: Sequence[str] = (),
) -> Heat | None:
    """A tensor of the record as a heat map; None where its values are not written out.

    ``largest`` is the absolute value at which the colours of ``signed`` end.
    """
    if not counterexample.is_shown(data):
        return None
    shape = [int(size) for size in data["shape"]]
    elements = counterexample.flat(data["values"])
    if math.prod(shape) != len(elements):
        return None
    style = _styles(scale, largest)
    note = counterexample.shape(data) if scale != "ratio" else "1 is at the bound"
    if None in elements:
        note = f"{note}, blank is not judged"
    if not elements:
        return Heat(title=title, scale=scale, grids=[], note=f"{note}: no elements")
    grids = list(_grids(shape, elements[:MOST_ELEMENTS], style, axes, _DIGITS[scale]))
    if len(elements) > MOST_ELEMENTS:
        note = f"{note}, the first {MOST_ELEMENTS} of {len(elements):,} elements"
    return Heat(title=title, scale=scale, grids=grids, note=note)


def _grids(
    shape: list[int], elements: list[Any], style: Style, axes: Sequence[str], digits: int
) -> Iterator[Grid]:
    names = axes if len(axes) == len(shape) else [f"axis {at}" for at in range(len(shape))]
    *outer, height, width = [1, 1, *shape][-max(2, len(shape)) :]
    row_axis, column_axis = ["", "", *names][-2:]
    for place, index in enumerate(product(*map(range, outer))):
        own = elements[place * height * width : (place + 1) * height * width]
        if not own:
            return
        caption = ", ".join(f"{name} {at}" for name, at in zip(names, index, strict=False))
        cells = [(text(element, digits), style(element)) for element in own]
        rows = [cells[at : at + width] for at in range(0, len(cells), width)]
        yield Grid(caption=caption, row_axis=row_axis, column_axis=column_axis, rows=rows)


def text(element: Any, digits: int) -> str:
    """Return an element with few enough digits for a cell; "" for None."""
    if element is None:
        return ""
    if isinstance(element, (bool, str)):
        return str(element)
    rounded = f"{float(element):.{digits}g}"
    shown = rounded if "e" in rounded else counterexample.number(float(rounded))
    return shown.replace("inf", "∞")


def _styles(scale: str, largest: float) -> Style:
    if scale == "ratio":
        return ratio_class
    if scale == "weight":
        return lambda element: _shade(element, 1.0)
    if scale == "signed":
        return lambda element: _shade(element, largest)
    return lambda element: "t" if element is True else ("x" if _is_odd(element) else "")


def _is_odd(element: Any) -> bool:
    value = number(element)
    return not isinstance(element, bool) and (value is None or not math.isfinite(value))


def _shade(element: Any, largest: float) -> str:
    """Return ``p1`` to ``p4`` above zero, ``n1`` to ``n4`` below, ``x`` if not finite."""
    if _is_odd(element):
        return "x"
    value = float(element)
    if value == 0 or not largest:
        return ""
    step = min(SHADES, math.ceil(SHADES * abs(value) / largest))
    return f"{'p' if value > 0 else 'n'}{max(1, step)}"


def ratio_class(element: Any) -> str:
    """``r0`` to ``r3`` within the bound, ``r4`` and more beyond; "" where none is judged."""
    ratio = number(element)
    if ratio is None:
        return ""
    return next((f"r{at}" for at, end in enumerate(RATIOS) if ratio <= end), f"r{len(RATIOS)}")


def ratios(got: Any, expected: Any, bound: Any, judged: Any) -> Record | None:
    """Return error over bound of every element as a tensor of the record, None if not judged.

    An element finite on one side only is infinitely far off. None where the shapes differ.
    """
    if not all(map(counterexample.is_shown, (got, expected, bound))):
        return None
    columns = [counterexample.flat(data["values"]) for data in (got, expected, bound)]
    count = len(columns[0])
    counts = counterexample.flat(judged["values"]) if counterexample.is_shown(judged) else []
    if any(len(column) != count for column in columns) or len(counts) not in (0, count):
        return None
    counted = counts or [True] * count
    values = [
        _ratio(*map(number, triple)) if bool(is_counted) else None
        for is_counted, *triple in zip(counted, *columns, strict=True)
    ]
    return {"shape": got["shape"], "dtype": "float", "values": values}


def _ratio(got: float | None, expected: float | None, bound: float | None) -> float | None:
    if got is None or expected is None or bound is None:
        return None
    if got == expected or (math.isnan(got) and math.isnan(expected)):
        return 0.0
    error = abs(got - expected)
    if not math.isfinite(error):
        return math.inf
    return error / bound if bound else math.inf


def largest_of(*tables: Any) -> float:
    """The largest finite absolute value of some tensors: where their common colours end."""
    values = [
        abs(value)
        for data in tables
        if counterexample.is_shown(data)
        for element in counterexample.flat(data["values"])
        if (value := number(element)) is not None and math.isfinite(value)
    ]
    return max(values, default=0.0)


# A cell of a difference explained by rounding.
SAME: Final = "="


def picture_heats(picture: Picture) -> list[Heat]:
    """The tables of a picture; the cells of hidden keys have the class ``hid``."""
    return [
        Heat(title=table.title, scale=table.scale, grids=[_picture_grid(picture, table)])
        for table in picture.tables
    ]


def _picture_grid(picture: Picture, table: PictureTable) -> Grid:
    rows = [
        [
            _picture_cell(table, element, is_hidden=is_hidden, is_wrong=is_wrong)
            for element, is_hidden, is_wrong in zip(*columns, strict=True)
        ]
        for columns in zip(table.cells, picture.hidden, picture.wrong, strict=True)
    ]
    return Grid(caption="", row_axis="query", column_axis="key", rows=rows, first=picture.first)


def _picture_cell(
    table: PictureTable, element: float | None, *, is_hidden: bool, is_wrong: bool
) -> tuple[str, str]:
    hatch = "hid" if is_hidden else ""
    if element is None:
        return "", hatch
    if table.scale == "difference" and not is_wrong:
        return SAME, hatch
    digits = _DIGITS[table.scale]
    sign = "+" if table.scale == "difference" and element > 0 else ""
    return f"{sign}{text(element, digits)}", f"{_shade(element, table.end)} {hatch}".strip()
