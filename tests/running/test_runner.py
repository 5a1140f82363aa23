from __future__ import annotations

import dataclasses
import gc
import json
import math
import subprocess
import sys
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import torch
from examples import BARE, SMALL, bare, core, run_clause
from torch import Tensor
from workspaces import KERNEL, UNSCALED, write

import conformance
from conformance.base.geometry import Geometry
from conformance.base.record import Reading
from conformance.base.results import ClauseResult, Violation
from conformance.clauses import registry
from conformance.clauses.registry import Finding, clause
from conformance.clauses.subject import Subject
from conformance.declare.candidate import Candidate
from conformance.diagnosis import Diagnostician
from conformance.problems.problem import Problem, problem_from_json
from conformance.problems.space import Space
from conformance.running import causes
from conformance.running.clause_run import ClauseRun
from conformance.running.runner import CandidateRun, examine


def plain(function: Callable[..., object] = bare, **promises: Any) -> Candidate:
    """A core that promises nothing but attention."""
    return core(function, **{**BARE, **promises})


def wrong_scale(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """A scale that is off by a half."""
    return torch.softmax(1.5 * query @ key.mT / math.sqrt(query.shape[-1]), -1) @ value


@pytest.fixture
def own_clause(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., str]]:
    """Registers a clause with a check; returns its slug."""
    monkeypatch.setattr(registry, "REGISTRY", dict(registry.REGISTRY))

    def register(check: Callable[[Subject, Problem], Finding], **more: Any) -> str:
        clause("shape.mine", level="MUST", sentence="Mine.", source="me", space=Space(), **more)(
            check
        )
        return "shape.mine"

    registry.all_clauses()
    return register


def test_correct_candidate_passes() -> None:
    """A pass counts its examples, how many bind, and the margin."""
    result = run_clause(plain(), "numerics.golden")
    assert (result.status, result.reason) == ("passed", "")
    assert result.examples >= SMALL.examples
    assert 0 < result.binding <= result.examples
    assert result.margin is not None
    assert 0.0 < result.margin <= 1.0
    assert result.seconds > 0.0


_LOADS_WHAT: Final = """
import sys
from conformance.base.profile import PROFILES
from conformance.identification.opening import resolve
from conformance.running.runner import CandidateRun
for candidate in resolve([sys.argv[1]]):
    run = CandidateRun(candidate, profile=PROFILES["smoke"])
    (scale,) = (one for one in run.planned() if one.id == "numerics.scale")
    print(run.run(scale).status, "conformance.diagnosis" in sys.modules)
"""


def test_the_diagnosis_is_loaded_with_the_first_failure(tmp_path: Path) -> None:
    """A run in which nothing fails spares the time and the memory that it takes."""
    write(tmp_path, {"attn.py": KERNEL + UNSCALED})
    target = str(tmp_path / "attn.py")
    done = subprocess.run(
        [sys.executable, "-c", _LOADS_WHAT, target], capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines() == ["passed False", "failed True"]


def test_wrong_candidate_fails_with_everything_needed() -> None:
    """A failure has its violation, a margin beyond the bound, a reason and a counterexample."""
    result = run_clause(plain(wrong_scale), "numerics.scale", explain=True)
    assert result.status == "failed"
    assert result.violation is not None
    assert result.reason == result.violation.message
    assert result.margin is not None
    assert result.margin > 1.0
    assert result.counterexample is not None


@pytest.mark.parametrize("reading", [None, Reading()])
def test_recommendations_are_named_where_they_were_declared_alone(reading: Reading | None) -> None:
    """Of code that was only read no verdict depends on their names, which take seconds."""
    candidate = dataclasses.replace(plain(wrong_scale), reading=reading)
    run = CandidateRun(candidate, profile=SMALL, only=("numerics.scale",))
    planned, *_ = run.planned()
    required, recommended = (
        run.run(dataclasses.replace(planned, level=level)) for level in ("MUST", "SHOULD")
    )
    assert (required.status, recommended.status) == ("failed", "failed")
    assert required.diagnosis
    assert bool(recommended.diagnosis) is (reading is None)


@pytest.mark.parametrize(
    ("place", "error"),
    [
        ("running.causes.Diagnostician.explain", OverflowError("too large\nfor anything")),
        ("diagnosis.chance.random_entry", MemoryError()),
    ],
)
def test_an_error_of_a_diagnosis_leaves_the_failure(
    place: str, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The clause fails with its counterexample, and the entry says that the search broke."""

    def broken(*_arguments: object) -> None:
        raise error

    monkeypatch.setattr(f"conformance.{place}", broken)
    data = run_clause(plain(wrong_scale), "numerics.scale", explain=True).as_json()
    assert (data["status"], data["violation"]["kind"]) == ("failed", "value")
    assert data["counterexample"]["problem"]["geometry"]["batch"] == 1
    (entry,) = data["diagnosis"]
    assert (entry["name"], entry["confidence"]) == ("unknown-mistake", 0.0)
    line = broken.__code__.co_firstlineno + 1
    said = f"{type(error).__name__}: {str(error).partition(chr(10))[0]} (test_runner.py:{line})"
    assert said in entry["text"]
    assert entry["text"].endswith("please report it")


def _raises(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    raise ValueError(query.shape, key.shape, value.shape)


def _writes(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return query.mul_(0.5) @ key.mT @ value


@pytest.mark.parametrize(
    ("place", "function", "slug"),
    [
        ("refused_sizes.resize", _raises, "numerics.golden"),
        ("earlier_calls.Copying", _writes, "state.inputs-unchanged"),
    ],
)
def test_an_error_of_any_search_leaves_the_failure(
    place: str, function: Any, slug: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The searches for sizes that are refused, and for inputs that are changed, may break, too."""
    asked = []

    def broken(*_arguments: object) -> None:
        asked.append(place)
        raise OverflowError

    monkeypatch.setattr(f"conformance.diagnosis.{place}", broken)
    assert run_clause(plain(function), slug, explain=True).status == "failed"
    assert asked


def test_an_interrupt_ends_a_diagnosis(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is no error passes through the search for a name."""

    def interrupted(*_arguments: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Diagnostician, "explain", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run_clause(plain(wrong_scale), "numerics.scale", explain=True)


def test_scale_error_survives_the_reduction() -> None:
    """A reduced example too small to fit a scale reports what the first one fits."""
    result = run_clause(plain(wrong_scale), "numerics.scale", explain=True)
    violation = result.violation
    assert violation is not None
    assert violation.measured["scale_error"] == pytest.approx(0.5, rel=1e-3)
    assert violation.message.endswith(
        "; the unreduced example fits a scale with a relative error of +0.5"
    )
    assert result.reason == violation.message


def test_scale_error_is_reported_once() -> None:
    """An example that cannot be reduced tells its own scale error, not another's as well."""
    result = run_clause(
        plain(wrong_scale, geometry={"query_length": 9}), "numerics.scale", explain=True
    )
    assert result.violation is not None
    count = result.violation.message.count("fits a scale with a relative error of +0.5")
    assert (count, result.violation.measured["scale_error"]) == (1, pytest.approx(0.5, rel=1e-3))


def test_counterexample_rebuilds_and_still_fails() -> None:
    """The counterexample of the JSON report is a small problem that fails again."""
    candidate = plain(wrong_scale)
    result = run_clause(candidate, "numerics.scale", explain=True)
    data = json.loads(json.dumps(result.as_json(), allow_nan=False))
    again = problem_from_json(data["counterexample"]["problem"])
    sizes = again.geometry
    assert (sizes.batch, sizes.num_heads, sizes.query_length) == (1, 1, 1)
    finding = examine(registry.REGISTRY["numerics.scale"], Subject(candidate, "float32"), again)
    assert finding.violation is not None
    assert finding.violation.kind == data["violation"]["kind"]


def test_check_that_raises_is_the_harness_fault(own_clause: Callable[..., str]) -> None:
    """A clause whose own code raises is an error with its place, not a verdict."""

    def check(_subject: Subject, _problem: Problem) -> Finding:
        message = "no such thing\nmore"
        raise LookupError(message)

    result = run_clause(plain(), own_clause(check))
    line = check.__code__.co_firstlineno + 2
    assert result.status == "error"
    assert result.reason == (
        f"the harness failed: LookupError: no such thing (test_runner.py:{line})"
    )


def test_a_rule_of_sizes_that_raises_for_some_is_no_fault_of_the_harness() -> None:
    """When it is declared it is called once: what it cannot do shows when problems are drawn."""
    odd: list[str] = []

    def fit(geometry: Geometry) -> Geometry:
        if odd:
            raise ValueError(*odd)
        return geometry

    run = CandidateRun(plain(geometry=fit), profile=SMALL, only=("numerics.golden",))
    planned, *_ = run.planned()
    odd.append("odd")
    result = run.run(planned)
    assert result.status == "untestable"
    assert result.reason.startswith(
        "it cannot be asked: geometry is a function that raised ValueError: odd ("
    )


def test_not_applicable_says_why_and_runs_nothing() -> None:
    """A clause that does not apply keeps its reason, and the candidate is not called."""

    def never(_query: Tensor, _key: Tensor, _value: Tensor) -> Tensor:
        raise AssertionError

    result = run_clause(plain(never), "mask.golden")
    assert (result.status, result.reason) == ("not-applicable", "no mask is declared")
    assert result.examples == 0


def test_clause_that_never_binds_is_untestable(own_clause: Callable[..., str]) -> None:
    """Examples that could not have shown anything make no pass."""
    slug = own_clause(lambda _s, _p: Finding(binding=False), counterfactual="another world")
    result = run_clause(plain(), slug)
    assert result.status == "untestable"
    assert result.reason == (
        f"none of {result.examples} examples could have shown it (another world)"
    )


def test_example_that_does_not_bind_still_fails(own_clause: Callable[..., str]) -> None:
    """A violation counts whether or not the example binds."""
    violation = Violation(kind="value", message="off")
    slug = own_clause(lambda _s, _p: Finding(binding=False, violation=violation))
    assert run_clause(plain(), slug).status == "failed"


@pytest.mark.parametrize(
    ("slug", "status"),
    [("numerics.scale", "not-applicable"), ("numerics.golden", "untestable")],
)
def test_single_key_shows_neither_scale_nor_softmax(slug: str, status: str) -> None:
    """With one key the weight is one whatever the scale: nothing was tested, and nothing passes."""

    def one_key(geometry: Geometry) -> Geometry:
        return geometry.replace(key_length=1)

    result = run_clause(plain(geometry=one_key), slug)
    assert result.status == status
    assert result.reason


def test_pinned_single_key_is_not_applicable() -> None:
    """Where a declaration itself pins one key, the scale is not checked."""
    result = run_clause(plain(geometry={"key_length": 1}), "numerics.scale")
    assert (result.status, result.reason) == (
        "not-applicable",
        "its geometry pins key_length below 2",
    )


def test_candidate_that_raises_once_fails_that_clause_alone() -> None:
    """A candidate that raises on some inputs fails with its own exception, and the others go on."""

    def kernel(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        if query.shape[2] > key.shape[2]:
            message = "more queries than keys"
            raise NotImplementedError(message)
        return bare(query, key, value)

    run = CandidateRun(plain(kernel), profile=SMALL, only=("numerics.golden", "shape.expanded"))
    results = {planned.id: run.run(planned) for planned in run.planned()}
    failed = results["numerics.golden"]
    line = kernel.__code__.co_firstlineno + 3
    assert failed.status == "failed"
    assert failed.reason == (
        f"raised NotImplementedError: more queries than keys (test_runner.py:{line})"
    )
    assert failed.counterexample is not None
    sizes = failed.counterexample["problem"]["geometry"]
    assert (sizes["query_length"], sizes["key_length"]) == (2, 1)
    assert set(results) == {"numerics.golden", "shape.expanded"}


def test_reduction_keeps_the_kind() -> None:
    """A failure that would turn into an exception when smaller stays what it was."""

    def kernel(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        if key.shape[2] < 4:
            raise ValueError
        return wrong_scale(query, key, value)

    candidate = plain(kernel, geometry={"key_length": [2, 5, 8]})
    run = CandidateRun(candidate, profile=SMALL, only=("numerics.scale",))
    result = run.run(run.planned()[0])
    assert result.violation is not None
    assert result.violation.kind in ("value", "raised")
    assert result.counterexample is not None
    length = result.counterexample["problem"]["geometry"]["key_length"]
    assert length == (5 if result.violation.kind == "value" else 2)


def test_failure_that_does_not_repeat_is_still_failed() -> None:
    """A wrong answer that cannot be had again is reported with the problem it came for."""
    calls: list[int] = []

    def kernel(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        calls.append(1)
        return bare(query, key, value) + (len(calls) == 3)

    result = run_clause(plain(kernel), "numerics.golden", explain=True)
    assert result.status == "failed"
    assert result.violation is not None
    assert result.counterexample is not None


def test_interrupt_propagates() -> None:
    """Ctrl-C in a candidate ends the run."""

    def kernel(_query: Tensor, _key: Tensor, _value: Tensor) -> Tensor:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_clause(plain(kernel), "shape.output", explain=True)


def test_system_exit_is_a_failure() -> None:
    """A candidate cannot end the run by leaving."""

    def kernel(_query: Tensor, _key: Tensor, _value: Tensor) -> Tensor:
        raise SystemExit(0)

    result = run_clause(plain(kernel), "shape.output", explain=True)
    assert result.status == "failed"
    assert result.violation is not None
    assert result.violation.kind == "raised"


def slugs(**options: Any) -> list[str]:
    """The planned slugs."""
    run = CandidateRun(plain(), profile=SMALL, dtypes=("float32",), **options)
    return [planned.id for planned in run.planned()]


def test_plan_is_the_whole_specification_in_order() -> None:
    """Every clause is planned, the not-applicable ones too, in the order of the specification.

    But for those about whole models, which say nothing of an attention.
    """
    every = registry.all_clauses()
    assert slugs() == [clause.id for clause in every if clause.family != "model"]


def test_globs_select() -> None:
    """``only`` admits, ``skip`` refuses, and both are globs."""
    families = {slug.split(".")[0] for slug in slugs(only=("shape.*", "state.repeat*"))}
    assert families == {"shape", "state"}
    assert "state.repeatable" in slugs(only=("shape.*", "state.repeat*"))
    assert not any(slug.startswith("mask.") for slug in slugs(skip=("mask.*",)))
    assert slugs(only=("mask.*",), skip=("mask.*",)) == []


def test_plan_repeats_for_each_dtype() -> None:
    """Clauses are planned for one dtype after the other; chosen dtypes replace the declared."""
    declared = CandidateRun(plain(dtypes=["float32", "float64"]), profile=SMALL).planned()
    half = len(declared) // 2
    assert {planned.dtype for planned in declared[:half]} == {"float32"}
    assert {planned.dtype for planned in declared[half:]} == {"float64"}
    clauses = CandidateRun(plain(), profile=SMALL, dtypes=("float64",)).planned()
    assert {planned.dtype for planned in clauses} == {"float64"}


def test_levels_follow_the_kind() -> None:
    """A plan says the level for this kind of candidate."""
    by_id = {p.id: p.level for p in CandidateRun(plain(), profile=SMALL).planned()}
    assert by_id["shape.empty-batch"] == "MUST"
    assert by_id["state.bitwise-repeatable"] == "SHOULD"


def test_each_example_is_announced_before_it_is_tried() -> None:
    """``on_example`` hears of a problem before the candidate is called with it."""
    order: list[str] = []

    def kernel(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        order.append("called")
        return wrong_scale(query, key, value)

    run = CandidateRun(plain(kernel), profile=SMALL, only=("numerics.scale",))
    announced: list[dict[str, Any]] = []

    def hear(data: dict[str, Any]) -> None:
        announced.append(data)
        order.append("announced")

    run.run(run.planned()[0], hear)
    assert order[0] == "announced"
    assert order.index("called") == 1
    assert all(problem_from_json(data).dtype == "float32" for data in announced)


def test_same_seed_same_result() -> None:
    """Two runs of one seed give the same results but for the time."""

    def once() -> ClauseResult:
        return run_clause(plain(wrong_scale), "numerics.golden", explain=True).replace(seconds=0.0)

    assert once() == once()


@pytest.mark.nightly  # it needs a whole run
def test_reductions_are_shared_by_the_candidate() -> None:
    """All failing clauses together stay within the profile's reductions."""
    run = CandidateRun(plain(lambda query, _key, _value: query[..., :0]), profile=SMALL)
    for planned in run.planned():
        run.run(planned)
    assert 0 <= run._explainer().reductions_left < SMALL.reductions


def test_random_state_is_left_alone() -> None:
    """Running clauses neither needs nor changes torch's global random state."""
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    run_clause(core(), "state.dropout")
    assert torch.equal(torch.rand(1), expected)


def test_layer_counts_as_one() -> None:
    """A layer is built for each problem, and its failures while building are its own."""

    @conformance.layer()
    def build(_geometry: object, _weights: object) -> object:
        message = "not today"
        raise OSError(message)

    result = run_clause(build, "shape.output", explain=True)
    assert result.status == "failed"
    assert result.reason.startswith("raised OSError: not today (test_runner.py:")
    assert result.reason.endswith("while building the layer")


def test_rows_without_keys_may_be_refused() -> None:
    """A candidate that promises nothing about rows without keys may raise there, and only there."""

    def picky(query: Tensor, key: Tensor, value: Tensor, *, keep: Tensor | None = None) -> Tensor:
        if keep is not None and not bool(keep.any(dim=-1).all()):
            msg = "a row without keys"
            raise ValueError(msg)
        logits = query @ key.mT / math.sqrt(query.shape[-1])
        hidden = torch.zeros(1, dtype=torch.bool) if keep is None else ~keep
        return torch.softmax(logits.masked_fill(hidden, -math.inf), -1) @ value

    refusing = plain(picky, masks=["keep"])
    assert run_clause(refusing, "mask.empty-row-isolated").status == "not-applicable"
    assert run_clause(refusing, "state.inputs-unchanged").status == "passed"
    promising = plain(picky, masks=["keep"], empty_rows="nan")
    assert run_clause(promising, "mask.empty-row-isolated").status == "failed"


def test_forgetting_frees_memory_and_changes_no_result() -> None:
    """A run that forgot holds no subject, and gives the same result again."""
    run = CandidateRun(plain(), profile=SMALL, only=("numerics.golden",))
    first = run.run(run.planned()[0])
    held = weakref.ref(run.subjects[0])
    run.forget()
    gc.collect()
    assert held() is None
    assert run.run(run.planned()[0]).replace(seconds=0.0) == first.replace(seconds=0.0)


def test_a_clause_that_was_laid_aside_goes_on_from_there() -> None:
    """In two parts it asks the same problems, none of them twice, and ends with the same result."""
    whole, parts = (CandidateRun(plain(), profile=SMALL, only=("numerics.golden",)) for _ in "ab")
    asked: dict[str, list[Any]] = {"whole": [], "parts": []}
    at_once = whole.run(whole.planned()[0], asked["whole"].append)
    planned = parts.planned()[0]
    first = parts.run(planned, asked["parts"].append, clause_run=ClauseRun(most=1))
    assert (first.status, first.examples) == ("untestable", 1)
    assert first.planned is not None
    assert len(asked["parts"]) == 1
    rest = parts.run(planned, asked["parts"].append)
    assert asked["parts"] == asked["whole"]
    assert rest.replace(seconds=0.0) == at_once.replace(seconds=0.0)


def test_answers_beside_refused_sizes_are_searched_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten clauses fail because a core takes as many keys as queries alone, and scales wrongly."""

    def of_one_length(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        if query.shape[-2] != key.shape[-2]:
            msg = f"{query.shape[-2]} queries and {key.shape[-2]} keys"
            raise ValueError(msg)
        return wrong_scale(query, key, value)

    searched: list[Subject] = []
    make = causes.diagnostician

    def counted(subject: Subject, *known: Any) -> Diagnostician:
        searched.append(subject)
        return make(subject, *known)

    monkeypatch.setattr(causes, "diagnostician", counted)
    report = conformance.check(plain(of_one_length), only=["shape.*", "equivariance.*"])
    assert report.verdict == "fails"
    failed = [one for one in report.record["candidates"][0]["clauses"] if one["status"] == "failed"]
    assert 1 <= len(searched) <= len(failed) / 3
