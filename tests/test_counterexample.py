from __future__ import annotations

import json

from examples import core, plan, problem
from torch import Tensor

from conformance.counterexample import MOST_ELEMENTS, describe
from conformance.problem import problem_from_json
from conformance.results import plain
from conformance.subject import Subject


def test_small_tensors_are_written_out() -> None:
    """A small problem shows its tensors, what was expected and what came."""
    example = problem(
        batch=1, num_heads=1, num_kv_heads=1, query_length=1, key_length=2, mask=plan()
    )
    shown = describe(Subject(core(), "float32"), example)
    assert set(shown["inputs"]) == {"query", "key", "value", "keep"}
    assert shown["inputs"]["query"]["shape"] == [1, 1, 1, 3]
    assert len(shown["got"]["values"][0][0][0]) == len(shown["expected"]["values"][0][0][0]) == 6
    assert problem_from_json(json.loads(json.dumps(plain(shown)))["problem"]) == example


def test_large_tensors_show_their_shape_alone() -> None:
    """More than 64 elements are not written out; the problem rebuilds them."""
    shown = describe(Subject(core(), "float32"), problem())
    assert shown["inputs"]["query"] == {"shape": [2, 4, 5, 3]}
    assert MOST_ELEMENTS == 64


def test_exceptions_are_shown_instead_of_an_answer() -> None:
    """What a candidate raised stands where its answer would."""

    def kernel(_query: Tensor, _key: Tensor, _value: Tensor) -> Tensor:
        raise ZeroDivisionError

    candidate = core(kernel, masks=[], causal=None, features=[])
    shown = describe(Subject(candidate, "float32"), problem())
    assert shown["got"].startswith("raised ZeroDivisionError (test_counterexample.py:")
