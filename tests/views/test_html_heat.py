from __future__ import annotations

import math
from typing import Any

import pytest

from conformance.views.html_heat import MOST_ELEMENTS, heat, largest_of, ratio_class, ratios


def table(values: Any, *shape: int) -> dict[str, Any]:
    """A tensor as a record holds it."""
    return {"shape": list(shape), "dtype": "float64", "values": values}


def test_four_axes_are_a_matrix_for_each_head() -> None:
    """Batch and head are told above each matrix, query and channel beside it."""
    data = table([[[[1.0, 2.0]], [[3.0, 4.0]]]], 1, 2, 1, 2)
    heat_map = heat("got", data, axes=("batch", "head", "query", "channel"))
    assert heat_map is not None
    assert [grid.caption for grid in heat_map.grids] == ["batch 0, head 0", "batch 0, head 1"]
    assert (heat_map.grids[0].row_axis, heat_map.grids[0].column_axis) == (
        "query",
        "channel",
    )
    assert [[text for text, _ in row] for grid in heat_map.grids for row in grid.rows] == [
        ["1", "2"],
        ["3", "4"],
    ]


@pytest.mark.parametrize(
    ("values", "shape", "rows"),
    [
        (1.5, (), [["1.5"]]),
        ([1.0, 2.0], (2,), [["1", "2"]]),
        ([[1.0], [2.0]], (2, 1), [["1"], ["2"]]),
    ],
)
def test_fewer_axes_are_one_matrix(
    values: Any, shape: tuple[int, ...], rows: list[list[str]]
) -> None:
    """A number, a row and a matrix are shown as what they are."""
    heat_map = heat("x", table(values, *shape))
    assert heat_map is not None
    assert [[text for text, _ in row] for row in heat_map.grids[0].rows] == rows


def test_no_elements_are_said() -> None:
    """An empty batch has a note and no matrix."""
    heat_map = heat("x", table([], 0, 3))
    assert heat_map is not None
    assert heat_map.grids == []
    assert "no elements" in heat_map.note


def test_values_that_are_not_there_have_no_heat_map() -> None:
    """A large tensor is told by its shape alone, and one that contradicts itself not at all."""
    assert heat("x", {"shape": [9, 9], "dtype": "float32"}) is None
    assert heat("x", table([1.0], 2)) is None


def test_many_elements_are_cut_and_counted() -> None:
    """A record of somebody else's may write out more than a page can show."""
    count = MOST_ELEMENTS + 44
    heat_map = heat("x", table([float(n) for n in range(count)], count))
    assert heat_map is not None
    assert f"the first {MOST_ELEMENTS} of {count} elements" in heat_map.note


def test_colours_of_signed_values() -> None:
    """Above and below zero in four steps each, zero without, what is not finite apart."""
    data = table([0.0, 0.1, 4.0, -4.0, "nan", "inf"], 6)
    heat_map = heat("x", data, scale="signed", largest=4.0)
    assert heat_map is not None
    assert [style for _, style in heat_map.grids[0].rows[0]] == [
        "",
        "p1",
        "p4",
        "n4",
        "x",
        "x",
    ]


def test_true_is_marked() -> None:
    """What a mask keeps stands out, in words as well."""
    heat_map = heat("keep", table([True, False], 2))
    assert heat_map is not None
    assert heat_map.grids[0].rows[0] == [("True", "t"), ("False", "")]


@pytest.mark.parametrize(
    ("value", "style"),
    [(0.0, "r0"), (0.05, "r1"), (1.0, "r3"), (1.01, "r4"), (1e9, "r6"), (math.inf, "r6"),
     (math.nan, "r6"), (None, "")],
)  # fmt: skip
def test_colours_of_quotients(value: float | None, style: str) -> None:
    """Up to one a quotient is within the bound; an infinite one is as far beyond as can be."""
    assert ratio_class(value) == style


def test_quotients() -> None:
    """Error over bound where it is judged; what is not finite on one side is infinitely far off."""
    got = table([1.5, "nan", "inf", "nan", 3.0, 0.0], 6)
    expected = table([1.0, 1.0, "inf", "nan", 1.0, 1.0], 6)
    bound = table([0.25, 1.0, 1.0, 1.0, 0.0, 1.0], 6)
    judged = table([True, True, True, True, True, False], 6)
    tensor = ratios(got, expected, bound, judged)
    assert tensor is not None
    assert tensor["values"] == [2.0, math.inf, 0.0, 0.0, math.inf, None]


def test_quotients_need_tensors_of_one_size() -> None:
    """Where something is missing, or of another size, there are none."""
    one, two = table([1.0], 1), table([1.0, 2.0], 2)
    assert ratios(one, two, one, None) is None
    assert ratios(one, one, one, two) is None
    assert ratios(one, "an exception", one, None) is None


def test_not_judged_is_said() -> None:
    """A blank cell is explained."""
    heat_map = heat("error / bound", table([None, 2.0], 2), scale="ratio")
    assert heat_map is not None
    assert "blank is not judged" in heat_map.note
    assert heat_map.grids[0].rows[0] == [("", ""), ("2", "r4")]


def test_the_largest_value_is_finite() -> None:
    """Infinities do not wash the colours of all other values out."""
    assert largest_of(table([1.0, -3.0, "inf", "nan"], 4), None, "text") == 3.0
    assert largest_of() == 0.0
