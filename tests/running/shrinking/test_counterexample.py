from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from examples import CLAUSES, core, layer, plan, problem
from torch import Tensor

from conformance.base.results import Violation, plain
from conformance.calls.recording import Recording
from conformance.clauses.subject import Subject
from conformance.declare.candidate import Candidate
from conformance.problems.problem import Problem, problem_from_json
from conformance.running.shrinking.counterexample import describe
from conformance.running.shrinking.smallest import Smallest, examine_recorded
from conformance.views import wording
from conformance.views.counterexample import block
from conformance.views.html_failures import compared

TINY = {"batch": 1, "num_heads": 1, "num_kv_heads": 1, "query_length": 2, "key_length": 2}


def described(candidate: Candidate, slug: str, example: Problem) -> dict[str, Any]:
    """What a report holds about one example that breaks a clause."""
    subject = Subject(candidate, example.dtype)
    finding, recording = examine_recorded(CLAUSES[slug], subject, example)
    assert finding.violation is not None
    smallest = Smallest(
        problem=example,
        violation=finding.violation,
        recording=recording,
        tries=0,
        repeated=True,
    )
    shown_failure: dict[str, Any] = json.loads(json.dumps(plain(describe(slug, subject, smallest))))
    return shown_failure


def first_row_doubled(query: Tensor, key: Tensor, value: Tensor, **keywords: Any) -> Tensor:
    """A core that is right but for its first row."""
    answer: Tensor = core()(query, key, value, **keywords)
    return torch.cat([2.0 * answer[..., :1, :], answer[..., 1:, :]], dim=-2)


def test_small_tensors_are_written_out() -> None:
    """A small problem shows its tensors, what was expected, what came and the bound."""
    example = problem(**TINY, mask=plan())
    shown = described(core(first_row_doubled), "mask.golden", example)
    assert set(shown["inputs"]) == {"query", "key", "value", "keep"}
    assert shown["inputs"]["query"]["shape"] == [1, 1, 2, 3]
    for name in ("expected", "got", "bound"):
        assert len(shown[name]["values"][0][0][0]) == 6
    assert shown["got"]["values"][0][0][0] != shown["expected"]["values"][0][0][0]
    assert problem_from_json(shown["problem"]) == example


def test_calls_show_arguments_keywords_and_answer() -> None:
    """The one call of a golden clause is there as it was made."""
    shown = described(core(first_row_doubled), "mask.golden", problem(**TINY, mask=plan()))
    (call,) = shown["calls"]
    assert list(call["arguments"]) == ["query", "key", "value"]
    assert list(call["keywords"]) == ["keep"]
    assert call["keywords"]["keep"]["dtype"] == "bool"
    assert call["output"]["values"] == shown["got"]["values"]
    assert "layers" not in shown


def test_law_shows_both_calls_and_how_they_relate() -> None:
    """Of two answers compared with each other, the report says which element is which."""
    shown = described(core(first_row_doubled), "equivariance.queries", problem(**TINY))
    assert len(shown["calls"]) == 2
    size = 6
    second, first = list(range(size, 2 * size)), list(range(size))
    assert shown["relation"] == {
        "expected": [{"call": 0, "elements": second + first}],
        "got": [{"call": 1}],
    }
    for call in shown["calls"]:
        doubled, same = call["output"]["values"][0][0]
        right = call["right"]["values"][0][0]
        assert doubled == pytest.approx([2.0 * value for value in right[0]], rel=1e-5)
        assert same == pytest.approx(right[1], rel=1e-5)
    assert shown["got"]["values"] == shown["calls"][1]["output"]["values"]


def test_layer_shows_what_it_was_built_of() -> None:
    """A layer's calls name the layer, whose sizes and weights are there."""

    def builder(_geometry: Any, weights: Any) -> Any:
        return lambda query, _key, value: (value @ weights.v.T).sum(-2, keepdim=True) + 0 * query

    example = problem(
        **TINY,
        head_size=1,
        value_head_size=1,
        query_size=1,
        key_size=1,
        value_size=1,
        output_size=1,
    )
    shown = described(
        layer(builder, masks=[], causal=None, empty_rows="any", features=[]),
        "numerics.golden",
        example,
    )
    assert shown["calls"][0]["layer"] == 0
    assert shown["layers"][0]["geometry"]["key_length"] == 2
    assert set(shown["layers"][0]["weights"]) >= {"q", "k", "v", "o"}


def test_strides_are_shown() -> None:
    """A tensor with gaps shows its strides and its storage."""

    def blind(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        answer: Tensor = core()(query, key, value)
        return answer if query.is_contiguous() else answer + 1.0

    candidate = core(blind, masks=[], causal=None, features=[])
    sizes = TINY | {"num_heads": 2, "num_kv_heads": 2}
    examples = [problem(**sizes, seed=seed) for seed in range(8)]
    shown = [described(candidate, "shape.strided", example) for example in examples]
    strided = [
        call["arguments"]["query"] for shown_failure in shown for call in shown_failure["calls"]
    ]
    with_storage = [argument for argument in strided if "storage" in argument]
    assert with_storage
    for argument in with_storage:
        storage = torch.tensor(argument["storage"])
        rebuilt = storage.as_strided(argument["shape"], argument["stride"], argument["offset"])
        assert rebuilt.tolist() == argument["values"]


def test_large_tensors_show_their_shape_alone() -> None:
    """More than 64 elements are not written out; the problem rebuilds them."""
    shown = described(core(first_row_doubled), "numerics.golden", problem())
    assert shown["inputs"]["query"] == {"shape": [2, 4, 5, 3], "dtype": "float32"}
    assert "values" not in shown["calls"][0]["arguments"]["query"]


def test_exceptions_are_shown_instead_of_an_answer() -> None:
    """What a candidate raised stands where its answer would."""

    def kernel(_query: Tensor, _key: Tensor, _value: Tensor) -> Tensor:
        raise ZeroDivisionError

    candidate = core(kernel, masks=[], causal=None, features=[])
    shown = described(candidate, "shape.output", problem())
    assert shown["got"] == "ZeroDivisionError"
    refused = shown["calls"][0]["refused"]
    assert refused["kind"] == "raised"
    assert refused["message"].startswith("raised ZeroDivisionError (test_counterexample.py:")


def test_failure_that_did_not_repeat_has_no_calls() -> None:
    """Without calls there is only the problem."""
    subject = Subject(core(), "float32")
    violation = Violation(kind="value", message="once", expected=1.0, got=2.0)
    smallest = Smallest(
        problem=problem(), violation=violation, recording=Recording(), tries=0, repeated=False
    )
    shown = describe("numerics.golden", subject, smallest)
    assert (shown["calls"], shown["repeated"], shown["got"]) == ([], False, 2.0)


def test_sizes_and_options_that_a_clause_chose_are_those_that_are_shown() -> None:
    """A softcap of the clause's own is shown; sizes of the problem that were asked stay."""

    def uncapped(query: Tensor, key: Tensor, value: Tensor, **keywords: Any) -> Tensor:
        answer: Tensor = core()(query, key, value, **{**keywords, "softcap": None})
        return answer

    shown = described(core(uncapped), "softcap.golden", problem(**TINY, seed=1))
    assert shown["chosen"] == {"softcap": 0.5}
    assert "keys 2" in wording.counterexample(shown)
    assert "softcap 0.5" in wording.counterexample(shown)
    assert "chosen" not in described(core(first_row_doubled), "numerics.golden", problem(**TINY))


def test_a_gradient_says_what_it_belongs_to_and_what_flowed_back() -> None:
    """The text and the tables of the page name the input and hold the gradient of the answer."""

    def detached(query: Tensor, key: Tensor, value: Tensor, **keywords: Any) -> Tensor:
        answer: Tensor = core()(query, key.detach() + 0.5 * (key - key.detach()), value, **keywords)
        return answer

    example = problem(**TINY, head_size=1, value_head_size=1)
    shown = described(core(detached), "gradients.golden", example)
    assert shown["gradient"] == "key"
    assert shown["upstream"]["shape"] == [1, 1, 2, 1]
    text = "\n".join(block(shown))
    assert "upstream  [" in text
    assert "(the gradient of key)" in text
    measured = {"batch": 0, "head": 0, "key": 0, "channel": 0}
    titles = [table.title for table in compared(shown, measured)]
    assert titles[:2] == ["upstream: the gradient of the answer", "expected: the gradient of key"]
