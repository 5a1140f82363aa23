from __future__ import annotations

from typing import Any

import pytest

from conformance.views.counterexample import beyond, number, shape, tensor_lines


def table(values: Any, *sizes: int, dtype: str = "float32") -> dict[str, Any]:
    """A tensor as a report holds it."""
    return {"shape": list(sizes), "dtype": dtype, "values": values}


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1.0, "1"),
        (-0.0, "0"),
        (0.3302384507, "0.330238"),
        (1e30, "1e+30"),
        (1e-8, "1e-08"),
        (True, "True"),
        ("nan", "nan"),
        ("-inf", "-inf"),
        (float("inf"), "inf"),
        (7, "7"),
    ],
)
def test_numbers_are_short(value: Any, text: str) -> None:
    """Integers stand as integers, others with six digits, what JSON cannot hold by its name."""
    assert number(value) == text


def test_rows_are_aligned() -> None:
    """A row a line, in columns, with the brackets of the nested lists."""
    shown = tensor_lines(table([[[1.0, -0.5], [10.0, 2.0]]], 1, 2, 2))
    assert shown == ["[[[   1, -0.5],", "  [  10,    2]]]"]


def test_blocks_are_nested() -> None:
    """What stands apart in the tensor stands apart in its lists."""
    shown = tensor_lines(table([[[1.0, 2.0]], [[3.0, 4.0]]], 2, 1, 2))
    assert shown == ["[[[1, 2]],", " [[3, 4]]]"]


def test_single_column_takes_one_line() -> None:
    """Rows of one element are not worth a line each, unless there are many."""
    assert tensor_lines(table([[0.0], [1.0]], 2, 1)) == ["[[0], [1]]"]
    assert len(tensor_lines(table([[0.25]] * 20, 20, 1))) == 20


def test_wrong_elements_are_marked() -> None:
    """Elements beyond the bound have a star."""
    expected, got = table([1.0, 2.0, 3.0], 3), table([1.0, 2.5, "nan"], 3)
    bound = table([0.1, 0.1, 0.1], 3)
    marked = beyond(got, expected, bound, None, law=False)
    assert marked == [False, True, True]
    assert tensor_lines(got, marked) == ["[  1 , 2.5*, nan*]"]


def test_rows_that_are_not_judged_are_not_marked() -> None:
    """Only what was judged is wrong; a law wants numbers, the golden says nothing of NaN."""
    expected, got = table([1.0, "nan"], 2), table([9.0, 1.0], 2)
    bound, judged = table([0.1, 0.1], 2), table([False, True], 2, dtype="bool")
    assert beyond(got, expected, bound, judged, law=True) == [False, True]
    assert beyond(got, expected, bound, judged, law=False) == [False, False]


@pytest.mark.parametrize("values", [[], [[], []]])
def test_empty_tensors_are_shown(values: list[Any]) -> None:
    """No elements give brackets, not an error."""
    assert tensor_lines(table(values, len(values), 0))
    assert shape(table(values, len(values), 0, dtype="bool")).endswith("bool")
