from __future__ import annotations

from typing import Any

from conformance.views.counterexample import block, lines, put_notes_below


def table(values: Any, *sizes: int, **more: Any) -> dict[str, Any]:
    """A tensor as a report holds it."""
    return {"shape": list(sizes), "dtype": "float32", "values": values, **more}


QUERY = table([[1.0, 0.0]], 1, 2)
KEY = table([[1.0, 0.0], [0.0, 0.0]], 2, 2)


def call(output: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    """A call with two arguments."""
    answer = {} if output is None else {"output": output}
    return {"arguments": {"query": QUERY, "key": KEY}, "keywords": {}, **answer, **more}


def one_call(**more: Any) -> dict[str, Any]:
    """A counterexample of one call whose answer is wrong."""
    return {
        "candidate": "mine",
        "calls": [call(table([0.2689], 1), keywords={"causal": True, "keep": table([True], 1)})],
        "expected": table([0.330238451], 1),
        "got": table([0.2689], 1),
        "bound": table([9.287e-7], 1),
        **more,
    }


def test_call_is_shown_with_what_was_expected() -> None:
    """The call as code, its tensors, and the wrong element marked; nothing is said twice."""
    assert block(one_call()) == [
        "call      mine(query, key, causal=True, keep=keep)",
        "query     [[1, 0]]  [1, 2]",
        "key       [[1, 0],",
        "           [0, 0]]  [2, 2]",
        "keep      [True]  [1]",
        "expected  [0.330238]  [1]",
        "got       [0.2689*]  [1]  (* beyond the bound)",
        "bound     [9.3e-07]  [1]",
    ]


def test_a_note_that_does_not_fit_is_a_row_of_its_own() -> None:
    """Below the numbers, and whole."""
    rows = put_notes_below(block(one_call()), 32)
    assert rows[-3:-1] == ["got       [0.2689*]  [1]", "          (* beyond the bound)"]
    assert put_notes_below(rows, 32)[-3:] == rows[-3:]


def test_wrong_numbers_look_different_from_the_expected_ones() -> None:
    """As many digits are shown as tell a wrong element from what was expected, in both rows."""
    one, other = -0.266261160373, -0.266260892152
    shown = dict(
        lines(one_call(expected=table([one], 1), got=table([other], 1), bound=table([2.5e-7], 1)))
    )
    assert shown["expected"] == "[-0.2662612]  [1]"
    assert shown["got"] == "[-0.2662609*]  [1]  (* beyond the bound)"


def test_later_call_shows_what_changed() -> None:
    """Of the second call only what differs, both answers, and which of them is wrong."""
    wrong, right = table([2.0], 1), table([1.0], 1)
    moved = table([[0.0, 0.0], [1.0, 0.0]], 2, 2)
    second = call(wrong, arguments={"query": QUERY, "key": moved}, right=right)
    data = one_call(
        calls=[call(right, right=None), second],
        expected=right,
        got=wrong,
        relation={"expected": [{"call": 0, "elements": [0]}], "got": [{"call": 1}]},
    )
    shown = lines(data)
    assert [label for label, _ in shown].count("query") == 1
    assert ("call 2", "mine(query, key), with another key") in shown
    assert ("answer", "[1]  [1]  (right)") in shown
    assert ("answer", "[2]  [1]  (wrong)") in shown
    assert ("right is", "[1]  [1]") in shown
    assert ("expected", "[1]  [1]  (the answer of call 1, in another order)") in shown


def test_repeated_call_is_said_to_be() -> None:
    """What is the same again needs no tensors."""
    data = one_call(calls=[call(table([1.0], 1)), call(table([1.0], 1))])
    assert ("call 2", "mine(query, key), the same again") in lines(data)


def test_same_storage_is_told() -> None:
    """Tensors that were overwritten between two calls are said to be."""
    later = table([[5.0, 0.0]], 1, 2, same_as=[0, "query"])
    second = call(arguments={"query": later, "key": KEY})
    line = dict(lines(one_call(calls=[call(), second])))["call 2"]
    assert "written into the tensors of call 1" in line


def test_layer_shows_its_weights_once() -> None:
    """Weights stand with the first call that needs them."""
    layers = [{"geometry": {}, "weights": {"q": table([[2.0]], 1, 1)}}]
    data = one_call(calls=[call(layer=0), call(layer=0)], layers=layers)
    assert [label for label, _ in lines(data)].count("weights.q") == 1


def test_exception_stands_where_the_answer_would() -> None:
    """A refused answer is told in its own words."""
    refused = {"kind": "raised", "message": "raised KeyError: 'x' (attn.py:3)"}
    data = one_call(calls=[call(refused=refused)], got="KeyError", expected=None, bound=None)
    assert ("answer", "raised KeyError: 'x' (attn.py:3)") in lines(data)


def test_layout_and_edits_are_shown() -> None:
    """Strides are told, and what a call made of a tensor it was given."""
    edited = table([[1.0, 0.0]], 1, 2, stride=[4, 2], offset=1, after=table([[0.0, 0.0]], 1, 2))
    shown = lines(one_call(calls=[call(arguments={"query": edited})]))
    assert ("query", "[[1, 0]]  [1, 2], strides [4, 2]") in shown
    assert ("  after it", "[[0, 0]]  [1, 2]") in shown


def test_large_counterexample_is_not_printed() -> None:
    """Tensors without values, or with too many of them, are left to the report."""
    large = {"shape": [99], "dtype": "float32"}
    assert block(one_call(calls=[call(arguments={"query": large})])) == []
    long = table([0.5] * 100, 100)
    assert block(one_call(calls=[call(arguments={"query": long})])) == []
    assert block({"problem": {}}) == []
