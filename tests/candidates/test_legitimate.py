"""Correct attentions in many styles: none is flagged."""

from __future__ import annotations

import dataclasses

import pytest

from candidates.legitimate import CANDIDATES
from conformance.base.profile import DTYPES, PROFILES
from conformance.declare.candidate import Candidate
from conformance.declare.declaration import FEATURES, MASK_FORMS, SEQUENCES
from conformance.running.runner import CandidateRun
from conformance.session.expectations import judge

# benchmarks/soak tries them at length; this is a sample of each clause. Of the many styles one
# without loops over keys, which take three times as long, is tried each time, and all at night.
EACH_TIME = "complex_numbers_of_channel_pairs"
PROFILE = dataclasses.replace(PROFILES["quick"], examples=4, reductions=0)
HONEST = ("passed", "not-applicable", "expected-failure")
LATER = {"cross", "grad_weights"}


@pytest.mark.parametrize(
    "candidate",
    [
        pytest.param(made, marks=[] if made.name == EACH_TIME else pytest.mark.nightly)
        for made in CANDIDATES
    ],
    ids=lambda candidate: str(candidate.name),
)
def test_never_flagged(candidate: Candidate) -> None:
    """No clause of any level fails unannounced, is untestable or in error, and some pass."""
    run = CandidateRun(candidate, profile=PROFILE)
    announced = candidate.declaration.expected_failures
    results = [judge(run.run(planned), candidate.name, announced) for planned in run.planned()]
    accused = [f"{r.id} {r.dtype}: {r.reason}" for r in results if r.status not in HONEST]
    assert accused == []
    assert any(result.status == "passed" and result.level == "MUST" for result in results)


def test_there_are_many_of_different_names() -> None:
    """At least sixty, cores and layers, each with a name and a sentence of its own."""
    names = [candidate.name for candidate in CANDIDATES]
    assert len(set(names)) == len(names) >= 60
    assert {candidate.kind for candidate in CANDIDATES} == {"core", "layer", "positions"}


def test_every_promise_is_made_by_one() -> None:
    """Mask forms, alignments, rules for empty rows, features, inputs, dtypes and precisions."""
    promised = [candidate.declaration for candidate in CANDIDATES]
    assert {form for d in promised for form in d.masks} == {*MASK_FORMS, SEQUENCES}
    assert {d.causal for d in promised} == {"bottom-right", "top-left", None}
    assert {d.empty_rows for d in promised} == {
        "zeros",
        "nan",
        "mean-of-all",
        "mean-of-valid",
        "any",
    }
    assert {word for d in promised for word in d.features} >= set(FEATURES) - LATER
    assert {d.inputs for d in promised} == {"separate", "self", "memory"}
    assert {dtype for d in promised for dtype in d.dtypes} == set(DTYPES)
    assert {d.scores for d in promised} == {"eager", "fused"}
    assert {d.accumulate for d in promised} == {None, "float32", "native"}
    assert {d.batched for d in promised} == {True, False}
    assert any(d.tf32 for d in promised)
    assert any(not candidate.golden_known for candidate in CANDIDATES)
