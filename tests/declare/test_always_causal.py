"""Candidates that are causal in every call: judged as such, and told where they are not."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from always_causal import (
    AlwaysCausal,
    FiniteFill,
    HidesOwn,
    LosesItUnderMask,
    NeverCausal,
    SeesNext,
    core,
    language_model,
    layer,
)
from declared import never
from examples import CLAUSES, SMALL, bare, problem, run_clause

import conformance
from candidates.eager import EagerCore
from conformance.base.results import ClauseResult
from conformance.calls.calling import keyword_arguments
from conformance.declare.candidate import Candidate
from conformance.errors import DeclarationError
from conformance.problems.combinations import combinations
from conformance.problems.materialise import materialise
from conformance.problems.space import Space
from conformance.running.runner import CandidateRun

ORDERED = {
    "equivariance.tokens",
    "equivariance.queries",
    "equivariance.keys",
    "mask.bias-counts",
    "mask.padding-is-absence",
    "position.breaks-equivariance",
    "state.dropout",
}
# Where windows are offered, too.
OF_WINDOWS = {"window.alignment", "window.causal", "window.edge"}
REASON = "it always applies a causal rule"


def results(candidate: Candidate, **choices: Any) -> list[ClauseResult]:
    """Every clause on a candidate."""
    run = CandidateRun(candidate, profile=SMALL, **choices)
    return [run.run(planned) for planned in run.planned()]


@pytest.mark.parametrize(
    ("candidate", "dtype"),
    [
        pytest.param(core(AlwaysCausal, "top-left"), "float16", marks=pytest.mark.nightly),
        pytest.param(core(AlwaysCausal, "bottom-right"), "float32", marks=pytest.mark.nightly),
        pytest.param(
            layer(AlwaysCausal, "bottom-right", inputs="separate"),
            "float32",
            marks=pytest.mark.nightly,
        ),
        pytest.param(language_model(), "float32", marks=pytest.mark.nightly),
        (core(AlwaysCausal, "bottom-right", empty_rows="any", features=[]), "float32"),
        pytest.param(layer(AlwaysCausal, "top-left"), "float16", marks=pytest.mark.nightly),
        pytest.param(language_model(weights_known=False), "float32", marks=pytest.mark.nightly),
    ],
)
def test_correct_ones_conform(candidate: Candidate, dtype: str) -> None:
    """Nothing fails and nothing goes untested, though the flag is never passed (it is refused)."""
    clauses = results(candidate, dtypes=(dtype,))
    # Eager products in float16 pass its range: a SHOULD that these honestly fail.
    judged = [r for r in clauses if r.id != "numerics.overflow-half"]
    wrong = [(r.id, r.status, r.reason) for r in judged]
    assert [entry for entry in wrong if entry[1] not in ("passed", "not-applicable")] == []
    slugs = {result.id for result in clauses if REASON in result.reason}
    assert slugs <= ORDERED | OF_WINDOWS
    assert {r.id for r in clauses if r.status == "passed"} >= {"mask.causal", "state.no-memory"}


@pytest.mark.one_in(5)
@pytest.mark.parametrize(
    ("kind", "told", "slug"),
    [
        (NeverCausal, "causal flag is ignored", "mask.causal"),
        (SeesNext, "one too far", "mask.causal"),
        (HidesOwn, "one short", "mask.causal-alignment"),
        (LosesItUnderMask, "mask", "mask.causal-and-mask"),
        (FiniteFill, "-1e4", "mask.causal-first-key"),
    ],
)
@pytest.mark.parametrize("make", [core, layer])
def test_wrong_ones_are_caught_and_named(kind: Any, told: str, slug: str, make: Any) -> None:
    """No triangle, one moved by one, one lost beside a mask, one that a number fills."""
    masks = ["keep"] if kind is LosesItUnderMask else []
    candidate = make(kind, "top-left", masks=masks, features=[])
    result = run_clause(candidate, slug, explain=True)
    assert result.status == "failed"
    assert result.violation is not None
    assert told in str(result.as_json())


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    ("alignment", "own"), [("top-left", "bottom-right"), ("bottom-right", "top-left")]
)
@pytest.mark.parametrize("kind", ["core", "layer"])
def test_another_alignment_is_caught_and_named(alignment: str, own: str, kind: str) -> None:
    """The diagonal from the other corner shows where there are more or fewer keys than queries."""
    more = {"inputs": "separate"} if kind == "layer" else {}
    make: Any = {"core": core, "layer": layer}[kind]
    wrong = make(AlwaysCausal, alignment, own=own, masks=[], features=["cross"], **more)
    result = run_clause(wrong, "mask.causal-alignment", explain=True)
    assert result.status == "failed"
    assert own in str(result.as_json())


def test_every_clause_that_fails_is_about_the_triangle_or_the_answer() -> None:
    """Without any triangle the answers are wrong; laws that hold without one are not broken."""
    clauses = results(core(NeverCausal, "top-left", masks=[]), dtypes=("float32",), explain=False)
    failed = {result.id for result in clauses if result.status == "failed"}
    assert {"mask.causal", "mask.causal-alignment", "numerics.golden"} <= failed
    # Where the golden sees one key alone, the bound of a law is that of one key: numerics.key-shift
    # may fail by a rounding of all keys.
    assert not failed & {"equivariance.batch", "state.repeatable"}


def test_the_keyword_is_never_passed() -> None:
    """Every problem is causal, and no call says so; without the promise the flag is passed."""
    always, asked = core(AlwaysCausal, "top-left"), core(EagerCore, "top-left", always_causal=False)
    assert "causal" not in always.declaration.keywords
    assert "causal" in asked.declaration.keywords
    for flag in (False, True):
        inputs = materialise(problem(causal=flag), always)
        assert inputs.causal
        assert "causal" not in keyword_arguments(inputs)
    assert keyword_arguments(materialise(problem(causal=True), asked))["causal"] is True
    assert not materialise(problem(causal=False), asked).causal


def test_every_space_gets_causal_problems() -> None:
    """Also those that never ask for the flag; a problem that is not causal is in none of them."""
    candidate = core(AlwaysCausal, "top-left")
    for space in (clause.space for clause in CLAUSES.values()):
        if "core" in space.kinds:
            assert not space.admits(problem(causal=False), candidate)
    space = Space(mask="maybe", extras="maybe", edges="combinations")
    assert all(each.causal for each in combinations(candidate, space, dtype="float32").problems)


def test_a_signature_without_the_flag_is_enough() -> None:
    """A function that takes no flag can promise it, and must say at which alignment."""
    made = conformance.core(causal="top-left", always_causal=True)(bare)
    assert made.declaration.as_json()["always_causal"] is True
    with pytest.raises(DeclarationError, match=r"give its alignment.*'bottom-right' or 'top-left'"):
        conformance.core(always_causal=True)(never)


@pytest.mark.parametrize("slug", sorted(ORDERED))
def test_clauses_about_order_say_why_they_do_not_apply(slug: str) -> None:
    """The reason is the causal rule, not a missing feature, where nothing else stands against."""
    promises: dict[str, Any] = {"features": ["dropout", "gqa"]}
    kind = layer if slug.startswith("position") else core
    if slug.startswith("position"):
        promises = {"position": "rotary"}
    candidate = kind(AlwaysCausal, "bottom-right", **promises)
    assert CLAUSES[slug].not_applicable(candidate) == REASON
    plain = dataclasses.replace(candidate.declaration, always_causal=False)
    assert REASON not in CLAUSES[slug].not_applicable(
        dataclasses.replace(candidate, declaration=plain)
    )


def test_padding_shows_where_the_diagonal_starts_at_the_first_key() -> None:
    """Cross-attention at top-left keeps its rows when the last keys go."""
    slug = "mask.padding-is-absence"
    assert CLAUSES[slug].not_applicable(core(AlwaysCausal, "top-left")) == ""
    assert run_clause(core(AlwaysCausal, "top-left"), slug).status == "passed"
