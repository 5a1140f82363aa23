from __future__ import annotations

from typing import Any

from failing_records import failing

from conformance.views.html_failures import attention, calls, compared
from conformance.views.html_heat import WEIGHT_AXES


def tensor(values: list[Any], *shape: int, **more: Any) -> dict[str, Any]:
    """A tensor as records hold it."""
    return {"dtype": "float32", "shape": list(shape), "values": values, **more}


def call(**more: Any) -> dict[str, Any]:
    """A call of a core with a query of one number."""
    return {"arguments": {"query": tensor([[[[1.0]]]], 1, 1, 1, 1)}, "keywords": {}, **more}


def counterexample() -> dict[str, Any]:
    """That of a core that reads its mask the wrong way round."""
    clauses = failing()["candidates"][0]["clauses"]
    found: dict[str, Any] = next(one["counterexample"] for one in clauses if one["counterexample"])
    return found


def test_a_call_is_told_with_what_it_was_given() -> None:
    """Query, key, value and mask as tables, under the call as it would be written."""
    (one,) = calls(counterexample())
    assert [heat.title for heat in one.arguments] == ["query", "key", "value", "keep"]
    assert all(heat.grids for heat in one.arguments)
    assert "keep=" in one.title
    assert one.refused == ""


def test_a_single_answer_is_not_told_twice() -> None:
    """It stands in the comparison; of several calls each tells its own, and carries its number."""
    answer = tensor([[[[2.0]]]], 1, 1, 1, 1)
    assert calls({"calls": [call(output=answer)]})[0].answer == []
    first, second = calls({"calls": [call(output=answer), call(output=answer, right=answer)]})
    assert [heat.title for heat in first.answer] == ["answer"]
    assert [heat.title for heat in second.answer] == ["answer", "the right answer"]
    assert (first.title[:8], second.title[:8]) == ("call 1: ", "call 2: ")


def test_what_a_call_shares_with_the_one_before_is_not_repeated() -> None:
    """Only what changed is shown again."""
    first, second, third = calls(
        {"calls": [call(), call(), call(arguments={"query": tensor([[[[5.0]]]], 1, 1, 1, 1)})]}
    )
    assert [len(one.arguments) for one in (first, second, third)] == [1, 0, 1]


def test_an_exception_is_the_answer_of_a_call() -> None:
    """What it said stands where an answer would."""
    (one,) = calls({"calls": [call(refused={"kind": "raised", "message": "no <b>"})]})
    assert one.refused == "no <b>"


def test_an_older_record_lists_no_calls() -> None:
    """Nothing is made up for it."""
    assert calls({}) == []
    assert compared({}, {}) == []
    assert attention({}, {}) == []


def test_expected_and_got_have_one_scale() -> None:
    """Both matrices and their difference over the bound, named by their axes."""
    shape = (1, 1, 1, 2)
    data = {
        "expected": tensor([[[[1.0, 2.0]]]], *shape),
        "got": tensor([[[[1.0, 8.0]]]], *shape),
        "bound": tensor([[[[1.0, 1.0]]]], *shape),
    }
    expected, got, over = compared(data, {})
    assert [one.title for one in (expected, got, over)] == ["expected", "got", "error / bound"]
    assert over.scale == "ratio"
    assert expected.grids[0].row_axis == "query"
    assert expected.grids[0].rows[0][0] == got.grids[0].rows[0][0]
    assert over.grids[0].rows[0][1][0] == "6"


def test_weights_that_were_compared_are_shown_once() -> None:
    """A violation with a key among its places compared the weights: no second pair of them."""
    weights = tensor([[[[0.25, 0.75]]]], 1, 1, 1, 2)
    data = {"expected": weights, "got": weights, "calls": [call(attention={"expected": weights})]}
    shown = compared(data, {"key": 0})
    assert [one.title for one in shown] == ["expected weights", "got weights"]
    assert shown[0].grids[0].column_axis == WEIGHT_AXES[-1]
    assert attention(data, {"key": 0}) == []
    assert [one.title for one in attention(data, {})] == ["expected"]
