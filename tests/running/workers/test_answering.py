"""Candidates that never answer, that answer in one dtype only, and that refuse some sizes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

import conformance
from conformance.base.profile import GraphOptions
from conformance.declare.candidate import Candidate
from conformance.errors import UsageError
from conformance.running.workers import planning
from conformance.running.workers.messages import RunOptions
from conformance.running.workers.planning import (
    CandidatePlan,
    is_silent,
    plan_candidates,
    plan_targets,
)

OPTIONS = RunOptions(targets=(), profile="quick", only=("shape.*", "numerics.golden"))


def silent(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    msg = f"unhashable\n{query.shape}, {key.shape}, {value.shape}"
    raise TypeError(msg)


def not_in_half(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    if query.dtype == torch.float16:
        msg = "not implemented for 'Half'"
        raise RuntimeError(msg)
    return scaled_dot_product_attention(query, key, value)


def of_some_sizes(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    if query.shape[-1] % 8:
        msg = "the head size must be a multiple of 8"
        raise ValueError(msg)
    return scaled_dot_product_attention(query, key, value)


def to_run(plan: CandidatePlan) -> list[tuple[str, str]]:
    """The clauses that run, with their dtypes."""
    return [(clause.id, clause.dtype) for clause in plan.planned if not clause.reason]


def core(function: Any, **promises: Any) -> Candidate:
    """A declared core."""
    return conformance.core(function, **promises)


def test_a_candidate_that_never_answers_is_bad_input() -> None:
    """One sentence with the exception, and the way to it in lines of its own."""
    with pytest.raises(UsageError) as caught:
        plan_candidates([core(silent, dtypes=["float32", "float16"])], OPTIONS)
    sentence, *way = str(caught.value).splitlines()
    assert sentence.startswith("no call of silent succeeds: each of ")
    assert "the first TypeError: unhashable torch.Size(" in sentence
    assert [line.split(":")[0] for line in way] == ["  raised at test_answering.py"]


def test_one_that_raises_slowly_is_asked_clause_by_clause(monkeypatch: pytest.MonkeyPatch) -> None:
    """Trial calls end after a while: of one that raised in each so far nothing is said."""
    monkeypatch.setattr(planning, "_LONGEST_TRIAL", 0.0)
    (plan,) = plan_candidates([core(silent)], OPTIONS)
    assert ("shape.output", "float32") in to_run(plan)


def test_a_builder_that_always_raises_is_bad_input() -> None:
    """A layer that can never be built answers no call."""

    @conformance.layer()
    def build(geometry: Any, weights: Any) -> Any:
        msg = f"no {geometry}, no {weights}"
        raise RuntimeError(msg)

    with pytest.raises(UsageError, match=r"RuntimeError: no Geometry.* while building the layer"):
        plan_candidates([build], OPTIONS)


def test_one_clause_tells_of_a_dtype_without_answers() -> None:
    """The others do not run in it, and other dtypes are judged as ever."""
    (plan,) = plan_candidates([core(not_in_half, dtypes=["float32", "float16"])], OPTIONS)
    half = [clause for clause in to_run(plan) if clause[1] == "float16"]
    assert half == [("shape.output", "float16")]
    assert len(to_run(plan)) > 5
    reasons = {clause.reason for clause in plan.planned if clause.id == "numerics.golden"}
    assert reasons == {"", "not asked: every call in float16 raises, as shape.output tells"}
    result = plan.run.run(next(clause for clause in plan.planned if clause.dtype == "float16"))
    assert (result.status, result.violation and result.violation.kind) == ("failed", "raised")


def test_a_candidate_that_refuses_some_sizes_is_judged() -> None:
    """One answer is enough, and one silent candidate among others reddens itself alone."""
    refusing, dead = plan_candidates([core(of_some_sizes), core(silent)], OPTIONS)
    assert {clause.reason for clause in refusing.planned if clause.id == "numerics.golden"} == {""}
    assert to_run(dead) == [("shape.output", "float32")]


def test_what_may_be_refused_is_no_silence() -> None:
    """Selecting only what may be refused does not make a candidate one that never answers."""

    def no_empty_rows(
        query: Tensor, key: Tensor, value: Tensor, keep: Tensor | None = None
    ) -> Tensor:
        if keep is not None and not keep.any(-1).all():
            msg = "a row without keys"
            raise ValueError(msg)
        return scaled_dot_product_attention(query, key, value, keep)

    options = RunOptions(targets=(), profile="quick", only=("mask.empty-row*",))
    (plan,) = plan_candidates([core(no_empty_rows, masks=["keep"], empty_rows="zeros")], options)
    assert to_run(plan)
    assert not is_silent([], plan.planned)


@pytest.mark.parametrize("targets", [("a.py",), ("a.py", "b.py")], ids=["one", "several"])
def test_options_of_graphs_need_a_graph(targets: tuple[str, ...]) -> None:
    """Python targets refuse ``--source``, also several of them: it would be ignored."""
    options = RunOptions(targets=targets, graph_options=GraphOptions(source="pkg:module"))
    with pytest.raises(UsageError, match=r"a\.py is no ONNX graph, and --source can be given"):
        plan_targets(options)
