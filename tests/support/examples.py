"""Problems, candidates and runs for tests of the harness' own parts."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

import conformance
from candidates.eager import PROMISES, EagerCore, EagerLayer
from conformance.base.geometry import Geometry
from conformance.base.profile import PROFILES, Profile
from conformance.base.results import ClauseResult
from conformance.calls.calling import Answer, Forward, arguments, guarded, read_answer
from conformance.clauses.registry import Finding, all_clauses
from conformance.clauses.subject import Subject
from conformance.declare.candidate import Candidate
from conformance.problems.inputs import Inputs
from conformance.problems.problem import MaskPlan, Problem
from conformance.running.runner import CandidateRun, examine

SMALL: Profile = dataclasses.replace(PROFILES["quick"], examples=6)
CLAUSES = {clause.id: clause for clause in all_clauses()}
PLAIN_PROMISES: dict[str, Any] = {
    "masks": ["keep", "drop", "keep_int", "bias", "lengths"],
    "causal": "bottom-right",
    "empty_rows": "zeros",
    "features": ["scale", "gqa", "softcap", "window", "weights", "dropout"],
    "dtypes": ["float32", "float64"],
}

# What a core promises that takes no options, and that in float32 alone.
BARE: dict[str, Any] = {"masks": [], "causal": None, "features": [], "empty_rows": "any"}
BARE_FLOAT32: dict[str, Any] = {**BARE, "dtypes": ["float32"]}


def call_forward(forward: Forward, inputs: Inputs) -> Answer:
    """Call with fresh copies of the inputs; raises CandidateFailure for a bad answer."""
    return read_answer(guarded(forward, *arguments(inputs)), inputs)


def sizes(**changes: int) -> Geometry:
    """A geometry in which no two axes are of one size."""
    defaults = {
        "batch": 2,
        "num_heads": 4,
        "num_kv_heads": 4,
        "query_length": 5,
        "key_length": 7,
        "head_size": 3,
        "value_head_size": 6,
        "query_size": 11,
        "key_size": 13,
        "value_size": 9,
        "output_size": 10,
    }
    return Geometry(**{**defaults, **changes})


def problem(**changes: Any) -> Problem:
    """A problem in float32; sizes may be named as keywords."""
    fields = {field.name for field in dataclasses.fields(Problem)}
    geometry = sizes(**{name: changes.pop(name) for name in list(changes) if name not in fields})
    return Problem(**{"geometry": geometry, "dtype": "float32", "seed": 3, **changes})


def plan(pattern: str = "random", form: str = "keep", shape: str = "BHQK", **more: Any) -> MaskPlan:
    """A mask plan."""
    return MaskPlan(pattern=pattern, form=form, shape=shape, **more)


def core(function: Callable[..., Any] | None = None, **promises: Any) -> Candidate:
    """A core that promises nearly everything; without a function a correct one."""
    made: Candidate = conformance.core(name="core", **{**PLAIN_PROMISES, **promises})(
        function or EagerCore()
    )
    return made


def layer(builder: Callable[..., Any] | None = None, **promises: Any) -> Candidate:
    """A layer with the promises of the eager one; without a builder a correct one."""
    declared = {**PROMISES, "causal": "bottom-right", **promises}
    made: Candidate = conformance.layer(name="layer", **declared)(builder or EagerLayer)
    return made


def bare(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """The smallest correct core."""
    return torch.softmax(query @ key.transpose(-1, -2) / query.shape[-1] ** 0.5, -1) @ value


def try_on(candidate: Candidate, slug: str, example: Problem) -> Finding:
    """One example of a clause."""
    return examine(CLAUSES[slug], Subject(candidate, example.dtype), example)


def run_clause(
    candidate: Candidate,
    slug: str,
    *,
    examples: int = SMALL.examples,
    dtype: str = "float32",
    explain: bool = False,
) -> ClauseResult:
    """One clause as a run does it; to ``explain`` a failure, too, takes seconds."""
    run = CandidateRun(
        candidate,
        profile=dataclasses.replace(SMALL, examples=examples),
        dtypes=(dtype,),
        only=(slug,),
        explain=explain,
    )
    (planned,) = run.planned()
    return run.run(planned)


def failing(candidate: Candidate, slug: str, *, examples: int = 40) -> bool:
    """Whether a clause fails under some examples, without making the failure small or naming it."""
    run = CandidateRun(
        candidate,
        profile=dataclasses.replace(SMALL, examples=examples),
        dtypes=("float32",),
        only=(slug,),
        explain=False,
    )
    (planned,) = run.planned()
    return run.run(planned).status == "failed"


def quickly(candidate: Candidate, slug: str, dtype: str) -> ClauseResult:
    """One clause on the examples of the quick profile, without making a failure small."""
    run = CandidateRun(
        candidate, profile=PROFILES["quick"], dtypes=(dtype,), only=(slug,), explain=False
    )
    (planned,) = run.planned()
    return run.run(planned)
