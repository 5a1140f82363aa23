from __future__ import annotations

from collections.abc import Sequence
from datetime import date
from typing import Any

import pytest
from records import READY, expected, loaded, result

from conformance.base.expected import ExpectedFailure
from conformance.base.results import ClauseResult, Violation
from conformance.session.accepted_failures import TODO, Acceptance, UnjudgedRun, accept
from conformance.session.expectations import Selection, not_holding

TODAY = date(2030, 6, 15)
YESTERDAY = date(2030, 6, 14)
DECLARED = {"dtypes": ["float32"], "devices": ["cpu"]}
BOTH = {"dtypes": ["float32", "float64"], "devices": ["cpu"]}


def failed(kind: str = "value", names: Sequence[str] = (), **more: Any) -> ClauseResult:
    """A failure of a kind, diagnosed as some mistakes."""
    violation = Violation(kind=kind, message="off by 1")
    diagnosis = [{"name": name, "text": "", "confidence": 1.0} for name in names]
    return result("failed", violation=violation, diagnosis=diagnosis, **more)


def outcome(
    results: dict[str, list[ClauseResult]],
    declaration: dict[str, Any] | None = None,
    *,
    declared: tuple[ExpectedFailure, ...] = (),
    strict: bool = False,
    **selected: Any,
) -> UnjudgedRun:
    """A run of some candidates."""
    selection = Selection(**{"slugs": list(READY.sentences), **selected})
    return UnjudgedRun(
        loaded=[
            loaded(name, declaration=declaration or DECLARED, expected=declared) for name in results
        ],
        results=results,
        selection=selection,
        today=TODAY,
        strict=strict,
    )


def is_green(ran: UnjudgedRun, entries: Sequence[ExpectedFailure]) -> bool:
    """Whether no failure and no expectation that does not hold is left."""
    judged = ran.judged(entries)
    red = [each for some in judged.values() for each in some if each.status == "failed"]
    odd = [each for some in judged.values() for each in some if each.status == "unexpected-pass"]
    broken = not_holding(entries, judged, ran.selection, today=ran.today)
    return not broken and not odd and all(each.level == "SHOULD" for each in red)


def new(acceptance: Acceptance) -> list[ExpectedFailure]:
    """What is added."""
    return [each.entry for each in acceptance.added]


def test_a_failure_is_announced_as_it_is() -> None:
    """A new entry names clause, candidate, kind and mistake, and leaves the reason to a person."""
    ran = outcome({"mine": [failed(names=["mask-inverted"]), result(slug="shape.output")]})
    acceptance = accept(ran, [])
    assert new(acceptance) == [
        ExpectedFailure(
            clause="mask.golden",
            reason=TODO,
            candidate="mine",
            kind="value",
            diagnosis="mask-inverted",
        )
    ]
    assert is_green(ran, acceptance.entries)


@pytest.mark.parametrize("names", [[], ["unknown-mistake"], ["mask-inverted+scale-missing"]])
def test_only_a_certain_diagnosis_is_written(names: list[str]) -> None:
    """No name, or a pair that a limited search found, is left out: it may come and go."""
    (entry,) = new(accept(outcome({"mine": [failed(names=names)]}), []))
    assert entry.diagnosis is None


def test_a_crash_is_named() -> None:
    """What an entry without a kind would not excuse is written with its kind."""
    ran = outcome({"mine": [failed("crashed")]})
    assert is_green(ran, accept(ran, []).entries)


def test_a_should_is_announced_where_it_is_red() -> None:
    """A failed SHOULD needs an entry only under --fail-on should."""
    results = {"mine": [failed(level="SHOULD"), result(slug="shape.output")]}
    assert not accept(outcome(results), []).entries
    assert len(accept(outcome(results, strict=True), []).entries) == 1


NO_FAILURES: dict[str, ClauseResult] = {
    "untestable": result("untestable"),
    "not applicable": result("not-applicable"),
    "passed": result(),
    "tampered with the judge": failed("tampered"),
}


@pytest.mark.parametrize("clause_result", NO_FAILURES.values(), ids=NO_FAILURES.keys())
def test_what_is_no_failure_of_a_clause_is_not_silenced(clause_result: ClauseResult) -> None:
    """No entry hides a gap, nor a candidate that reached into the judge."""
    assert not accept(outcome({"mine": [clause_result]}), []).entries


KEPT: dict[str, tuple[ExpectedFailure, ClauseResult]] = {
    "it holds": (expected(), failed()),
    "a glob that holds": (expected("mask.*", candidate="m*"), failed()),
    "not tested": (expected(), result("untestable")),
    "its day has not come": (expected(expires=TODAY), failed()),
}


@pytest.mark.parametrize(("entry", "clause_result"), KEPT.values(), ids=KEPT.keys())
def test_what_holds_is_kept(entry: ExpectedFailure, clause_result: ClauseResult) -> None:
    """An entry that still covers its failure stays, and nothing is added to it."""
    acceptance = accept(outcome({"mine": [clause_result]}), [entry, entry])
    assert (acceptance.kept, acceptance.added, acceptance.dropped) == ((entry,), (), ())


def test_what_was_not_selected_is_kept() -> None:
    """A run of some clauses or dtypes drops nothing that it has not run."""
    entries = [expected("shape.output"), expected(dtype="float64")]
    ran = outcome({"mine": [failed()]}, slugs=["mask.golden"], dtypes=("float32",))
    assert accept(ran, entries).kept == tuple(entries)


DROPPED: dict[str, tuple[ExpectedFailure, ClauseResult, str]] = {
    "it passes": (expected(), result(), "the clause passes, at least in part"),
    "nothing fails under a glob": (expected("mask.*"), result(), "nothing that it covers failed"),
    "no such candidate": (
        expected(candidate="gone"),
        result(),
        "no candidate is called 'gone'",
    ),
    "not applicable": (
        expected(),
        result("not-applicable", reason="no mask"),
        "the clause is not applicable: no mask",
    ),
}


@pytest.mark.parametrize(("entry", "clause_result", "why"), DROPPED.values(), ids=DROPPED.keys())
def test_what_is_stale_is_dropped(
    entry: ExpectedFailure, clause_result: ClauseResult, why: str
) -> None:
    """An entry that nothing answers to goes, with a reason."""
    acceptance = accept(outcome({"mine": [clause_result]}), [entry])
    assert (acceptance.kept, acceptance.added, acceptance.dropped) == ((), (), ((entry, why),))


REPLACED: dict[str, ExpectedFailure] = {
    "another kind": expected(kind="shape"),
    "another diagnosis": expected(diagnosis="mask-ignored"),
    "expired": expected(expires=YESTERDAY),
    "expired glob": expected("mask.*", expires=YESTERDAY),
}


@pytest.mark.parametrize("entry", REPLACED.values(), ids=REPLACED.keys())
def test_another_failure_needs_another_reason(entry: ExpectedFailure) -> None:
    """A failure that is another now, or past its day, gets a new entry that tells what was."""
    ran = outcome({"mine": [failed(names=["mask-inverted"])]})
    acceptance = accept(ran, [entry])
    (added,) = acceptance.added
    assert (added.entry.reason, added.entry.expires) == (TODO, None)
    assert added.comments[0].startswith("until now: known (")
    assert [gone for gone, _ in acceptance.dropped] == [entry]
    assert is_green(ran, acceptance.entries)


@pytest.mark.parametrize("kind", ["hung", "crashed"])
def test_a_hang_loses_no_reason(kind: str) -> None:
    """A hang or a crash may be the machine's: it is added to the entry, which stays."""
    ran = outcome({"mine": [failed(kind)]})
    entry = expected(kind="value", diagnosis="mask-inverted")
    acceptance = accept(ran, [entry])
    assert acceptance.kept == (entry,)
    assert [entry.kind for entry in new(acceptance)] == [kind]
    assert is_green(ran, acceptance.entries)
    usual = outcome({"mine": [failed(names=["mask-inverted"])]})
    assert is_green(usual, acceptance.entries)


def test_a_clause_that_passes_elsewhere_narrows_its_entry() -> None:
    """An entry that is too wide now is replaced by narrower ones with its reason and last day."""
    later = date(2031, 1, 1)
    results = {
        "mine": [failed(dtype="float32"), result(dtype="float64")],
        "yours": [result(dtype="float32"), result(dtype="float64")],
    }
    ran = outcome(results, BOTH)
    acceptance = accept(ran, [expected(expires=later)])
    assert new(acceptance) == [
        ExpectedFailure(
            clause="mask.golden",
            reason="known",
            candidate="mine",
            kind="value",
            dtype="float32",
            expires=later,
        )
    ]
    assert is_green(ran, acceptance.entries)


def test_a_should_stays_announced_when_its_entry_is_narrowed() -> None:
    """A failed SHOULD that was announced is announced after that, although it is not red."""
    results = {"mine": [failed(level="SHOULD")], "yours": [result(level="SHOULD")]}
    ran = outcome(results)
    (entry,) = new(accept(ran, [expected()]))
    assert (entry.candidate, entry.reason) == ("mine", "known")


def test_a_should_that_differs_with_another_that_holds() -> None:
    """Where an entry holds in one dtype and differs in the other, the other gets its own."""
    results = {
        "mine": [
            failed(level="SHOULD", dtype="float32"),
            failed("shape", level="SHOULD", dtype="float64"),
        ]
    }
    ran = outcome(results, BOTH)
    entry = expected(kind="value")
    acceptance = accept(ran, [entry])
    assert acceptance.kept == (entry,)
    assert [(each.kind, each.dtype) for each in new(acceptance)] == [("shape", "float64")]
    assert is_green(ran, acceptance.entries)


def test_what_a_declaration_expects_is_not_repeated() -> None:
    """The file holds what the declarations do not say."""
    ran = outcome({"mine": [failed()]}, declared=(expected(),))
    assert not accept(ran, []).entries


def test_it_is_the_same_the_second_time() -> None:
    """What was written once holds: nothing is added or dropped."""
    results = {
        "mine": [failed(dtype="float32"), failed("shape", dtype="float64")],
        "a[1]": [failed("hung", dtype="float32"), result(dtype="float64")],
    }
    ran = outcome(results, BOTH)
    first = accept(ran, [])
    assert is_green(ran, first.entries)
    assert accept(ran, first.entries) == Acceptance(kept=first.entries)
