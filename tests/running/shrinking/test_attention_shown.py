from __future__ import annotations

from typing import Any

import torch
from examples import CLAUSES, core, layer, plan, problem
from torch import Tensor

from conformance.calls.recording import RecordedCall, Recording
from conformance.clauses.subject import Subject
from conformance.declare.candidate import Candidate
from conformance.problems.problem import Problem
from conformance.running.shrinking.counterexample import attention
from conformance.running.shrinking.smallest import examine_recorded

FEW = {"batch": 1, "num_heads": 2, "num_kv_heads": 2, "query_length": 2, "key_length": 5}


def recorded_call(candidate: Candidate, example: Problem) -> tuple[Subject, RecordedCall]:
    """The call that the golden clause of masks makes."""
    subject = Subject(candidate, example.dtype)
    recording: Recording = examine_recorded(CLAUSES["mask.golden"], subject, example)[1]
    return subject, recording.calls[0]


def attention_tables(candidate: Candidate, **changes: Any) -> dict[str, Any]:
    """The weights of that call, by name."""
    subject, call = recorded_call(candidate, problem(**{**FEW, "mask": plan(), **changes}))
    tables: dict[str, Any] = attention(subject, call).get("attention", {})
    return tables


def inverted(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    """A core that reads the mask with the opposite polarity."""
    options["keep"] = ~options["keep"]
    answer: Tensor = core()(query, key, value, **options)
    return answer


def test_a_right_core_tells_the_weights_of_the_golden() -> None:
    """Values that are one at a single key give every weight, in calls of as many as fit."""
    tables = attention_tables(core(), value_head_size=2)
    assert tables["got"]["shape"] == tables["expected"]["shape"] == [1, 2, 2, 5]
    own, golden = (torch.tensor(tables[name]["values"]) for name in ("got", "expected"))
    torch.testing.assert_close(own, golden, atol=1e-6, rtol=0.0)


def test_a_wrong_core_tells_what_it_attends_to_instead() -> None:
    """Where the mask is inverted, the weights of what it hides are not zero."""
    subject, call = recorded_call(core(inverted, masks=["keep"]), problem(**FEW, mask=plan()))
    tables = attention(subject, call)["attention"]
    hidden = ~call.inputs.allowed(subject.declaration.semantics)
    own = torch.tensor(tables["got"]["values"], dtype=torch.float64)
    golden = torch.tensor(tables["expected"]["values"], dtype=torch.float64)
    assert bool((golden[hidden] == 0).all())
    assert bool((own[~hidden] == 0).all())
    assert float(own[hidden].sum()) > 0


def test_a_layer_has_the_expected_weights_alone() -> None:
    """The values of a layer come out of its projections, so its own weights stay unknown."""
    assert set(attention_tables(layer(), value_head_size=2)) == {"expected"}


def test_large_weights_are_not_shown() -> None:
    """Weights that a report would not write out are not determined either."""
    assert attention_tables(core(), key_length=40) == {}


def test_a_core_that_refuses_other_values_has_the_expected_weights_alone() -> None:
    """An exception in a further call leaves the failure as it was."""
    calls: list[int] = []

    def once(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
        calls.append(len(calls))
        if len(calls) > 1:
            msg = "no more"
            raise ValueError(msg)
        answer: Tensor = core()(query, key, value, **options)
        return answer

    assert set(attention_tables(core(once))) == {"expected"}
    assert len(calls) == 2


def test_a_refused_call_tells_nothing() -> None:
    """A call that raised has no weights: there is no answer to explain."""

    def never(query: Tensor, key: Tensor, value: Tensor, **_options: Any) -> Tensor:
        msg = f"{query.shape} {key.shape} {value.shape}"
        raise ValueError(msg)

    assert attention_tables(core(never)) == {}
