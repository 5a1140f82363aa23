from __future__ import annotations

from datetime import date
from pathlib import Path
from typing import Any

import pytest
from records import READY, expected, result

from conformance.base.expected import ExpectedFailure
from conformance.base.results import ClauseResult, Violation
from conformance.errors import UsageError
from conformance.session.expectations import Selection, judge, not_holding, read_file, stale

EVERYTHING = Selection(slugs=list(READY.sentences))
RAISED = Violation(kind="raised", message="raised ValueError")


def test_a_covered_failure_is_expected() -> None:
    """A failure that was announced takes the announcement's reason."""
    judged = judge(result("failed"), "mine", [expected()])
    assert (judged.status, judged.reason) == ("expected-failure", "known")


@pytest.mark.parametrize(
    "restriction", [{"candidate": "other"}, {"dtype": "float64"}, {"clause": "shape.*"}]
)
def test_an_expectation_keeps_to_its_words(restriction: dict[str, str]) -> None:
    """Another candidate, dtype or clause is not covered."""
    entry = ExpectedFailure(**{"clause": "mask.golden", "reason": "known", **restriction})
    assert judge(result("failed"), "mine", [entry]).status == "failed"


def test_a_failure_of_another_kind_is_red() -> None:
    """Exceptions are covered only where they are named, and the reason says what was expected."""
    judged = judge(result("failed", violation=RAISED), "mine", [expected()])
    assert judged.status == "failed"
    assert judged.reason.startswith(
        "not the expected failure (known): it is of kind 'raised', which an expectation has to "
        "name; repair it, or write kind = 'raised' in "
    )


def test_a_named_kind_is_covered() -> None:
    """An exception that is announced as one is expected; a wrong value then is not."""
    entry = expected(kind="raised")
    assert judge(result("failed", violation=RAISED), "mine", [entry]).status == "expected-failure"
    assert judge(result("failed"), "mine", [entry]).status == "failed"


def test_one_covering_expectation_is_enough() -> None:
    """Of several that speak of a clause any may cover the failure."""
    entries = [expected(kind="shape"), expected("mask.*")]
    assert judge(result("failed"), "mine", entries).status == "expected-failure"


def test_an_exact_clause_that_passes_is_red() -> None:
    """What is announced by its slug must fail."""
    judged = judge(result(), "mine", [expected()])
    assert judged.status == "unexpected-pass"
    assert "known" in judged.reason


@pytest.mark.parametrize("status", ["untestable", "error", "not-applicable"])
def test_other_statuses_stay(status: Any) -> None:
    """An expectation explains failures; it hides no error and no gap."""
    assert judge(result(status), "mine", [expected()]).status == status


def test_a_glob_may_pass_in_part() -> None:
    """A glob covers what fails under it, and what passes stays passed."""
    assert judge(result(), "mine", [expected("mask.*")]).status == "passed"


STALE: dict[str, tuple[ExpectedFailure, list[ClauseResult], str]] = {
    "nothing failed under a glob": (
        expected("mask.*"),
        [result()],
        "nothing that it covers failed",
    ),
    "no such candidate": (
        expected(candidate="other"),
        [result("failed")],
        "no candidate is called 'other'",
    ),
    "not applicable": (
        expected(),
        [result("not-applicable", reason="no mask is declared")],
        "the clause is not applicable: no mask is declared",
    ),
    "another device": (
        expected(device="cuda"),
        [result()],
        "no clause that it covers was run on the device 'cuda'",
    ),
    "another dtype": (
        expected(dtype="float16"),
        [result()],
        "no clause that it covers was run in the dtype 'float16'",
    ),
    "another clause": (
        expected("shape.*"),
        [result()],
        "no clause that it covers was run",
    ),
}


@pytest.mark.parametrize(("entry", "results", "why"), STALE.values(), ids=STALE.keys())
def test_stale(entry: ExpectedFailure, results: list[ClauseResult], why: str) -> None:
    """An expectation that nothing answers to is stale, with a reason."""
    (clause_result,) = stale([entry], {"mine": results}, EVERYTHING)
    assert clause_result.why == why
    assert clause_result.as_json()["clause"] == entry.clause
    assert (clause_result.problem, clause_result.change) == ("stale", "drop the expectation")


FRESH: dict[str, tuple[ExpectedFailure, list[ClauseResult]]] = {
    "an expected failure": (expected("mask.*"), [result("expected-failure")]),
    "another failure, which is red itself": (expected(), [result("failed")]),
    "an unexpected pass, which is red itself": (expected(), [result("unexpected-pass")]),
    "untestable": (expected(), [result("untestable")]),
    "of a device that is not here": (
        expected(),
        [result("not-applicable", reason="the device cpu is not here: it is elsewhere")],
    ),
}


@pytest.mark.parametrize(("entry", "results"), FRESH.values(), ids=FRESH.keys())
def test_not_stale(entry: ExpectedFailure, results: list[ClauseResult]) -> None:
    """What was answered, or could not be, is not stale."""
    assert not stale([entry], {"mine": results}, EVERYTHING)


def test_what_was_not_selected_is_not_stale() -> None:
    """``--only``, ``--skip`` and ``--dtype`` make no expectation stale."""
    assert not stale([expected()], {"mine": []}, Selection(slugs=["shape.output"]))
    elsewhere = Selection(slugs=EVERYTHING.slugs, devices=("cpu",))
    assert not stale([expected(device="cuda")], {"mine": [result()]}, elsewhere)
    chosen = Selection(slugs=EVERYTHING.slugs, dtypes=("float64",))
    assert not stale([expected(dtype="float32")], {"mine": [result(dtype="float64")]}, chosen)


TODAY = date(2030, 6, 15)
YESTERDAY = date(2030, 6, 14)
BROKEN: dict[str, tuple[ExpectedFailure, ClauseResult, str]] = {
    "expired": (expected(expires=YESTERDAY), result("failed"), "expired"),
    "expired, under a glob": (expected("mask.*", expires=YESTERDAY), result("failed"), "expired"),
    "expired and not tested": (expected(expires=YESTERDAY), result("untestable"), "expired"),
    "expired with another that holds": (
        expected(expires=YESTERDAY),
        result("expected-failure"),
        "expired",
    ),
    "another kind of a SHOULD": (
        expected(kind="shape"),
        result("failed", level="SHOULD"),
        "different",
    ),
    "another diagnosis": (expected(diagnosis="mask-inverted"), result("failed"), "different"),
    "both": (expected(kind="shape", expires=YESTERDAY), result("failed"), "expired"),
}


@pytest.mark.parametrize(("entry", "clause_result", "problem"), BROKEN.values(), ids=BROKEN.keys())
def test_what_does_not_hold_is_reported_once(
    entry: ExpectedFailure, clause_result: ClauseResult, problem: str
) -> None:
    """An expired expectation, or one whose clause fails in another way, is red at any level."""
    (stale_entry,) = not_holding([entry], {"mine": [clause_result]}, EVERYTHING, today=TODAY)
    assert stale_entry.problem == problem
    assert stale_entry.names("mine")
    assert stale_entry.as_json()["change"] == stale_entry.change != ""


HOLDING: dict[str, tuple[list[ExpectedFailure], ClauseResult]] = {
    "its last day": ([expected(expires=TODAY)], result("expected-failure")),
    "expired, but it passed and is red anyway": (
        [expected(expires=YESTERDAY)],
        result("unexpected-pass"),
    ),
    "a glob that covers something else": ([expected("mask.*", kind="shape")], result("failed")),
    "covered by another": ([expected(kind="shape"), expected()], result("expected-failure")),
}


@pytest.mark.parametrize(("entries", "clause_result"), HOLDING.values(), ids=HOLDING.keys())
def test_what_holds(entries: list[ExpectedFailure], clause_result: ClauseResult) -> None:
    """Nothing is reported of expectations that hold, or whose clause is red by itself."""
    assert not not_holding(entries, {"mine": [clause_result]}, EVERYTHING, today=TODAY)


def test_a_different_failure_reddens_only_its_candidate() -> None:
    """An expectation for several candidates is reported for those that fail in another way."""
    results = {"mine": [result("expected-failure")], "yours": [result("failed", violation=RAISED)]}
    (stale_entry,) = not_holding([expected()], results, EVERYTHING, today=TODAY)
    assert stale_entry.names("yours")
    assert not stale_entry.names("mine")


def test_reading_a_file(tmp_path: Path) -> None:
    """A file's tables have the fields of ExpectedFailure."""
    path = tmp_path / "known.toml"
    path.write_text(
        '[[expected]]\nclause = "mask.*"\nreason = "leaks"\nkind = "value"\ncandidate = "m*"\n',
        encoding="utf-8",
    )
    (entry,) = read_file(path, list(READY.sentences))
    assert entry == ExpectedFailure(clause="mask.*", reason="leaks", kind="value", candidate="m*")
    assert str(entry.place) == f"line 1 of {path}"


@pytest.mark.parametrize("day", ["2031-01-31", '"2031-01-31"'])
def test_reading_every_key(tmp_path: Path, day: str) -> None:
    """A diagnosis, a device and a last day, as a date or as a text, are read, too."""
    path = tmp_path / "known.toml"
    path.write_bytes(
        b"\xef\xbb\xbf# An editor's mark comes first.\r\n[[expected]]\r\n"
        b'clause = "mask.golden"\r\nreason = "leaks"\r\ndiagnosis = "mask-inverted"\r\n'
        b'device = "cuda"\r\nexpires = ' + day.encode() + b"\r\n"
    )
    (entry,) = read_file(path, list(READY.sentences))
    assert (entry.diagnosis, entry.device) == ("mask-inverted", "cuda")
    assert entry.expires == date(2031, 1, 31)
    assert entry.place is not None
    assert entry.place.where("expires") == f"line 7 of {path}"


BAD: dict[str, tuple[str, str]] = {
    "not TOML": ("expected = ", "cannot be read as TOML"),
    "a number without an end": (f"expected = {'9' * 10_000}", "cannot be read as TOML"),
    "without an end": (f"expected = {'[' * 5000}", "nested too deeply"),
    "unknown table": (
        '[[expectd]]\nclause = "a"',
        "unknown key 'expectd'; did you mean 'expected'?",
    ),
    "no table": ("expected = 3", "write each expected failure as a table [[expected]]"),
    "unknown key": (
        '[[expected]]\nclause = "mask.golden"\nreasn = "x"',
        "entry 1 has an unknown key 'reasn'; did you mean 'reason'?",
    ),
    "no reason": ('[[expected]]\nclause = "mask.golden"', "entry 1 has no 'reason'"),
    "empty reason": (
        '[[expected]]\nclause = "mask.golden"\nreason = " "',
        "entry 1: an expected failure's reason is ' '",
    ),
    "unknown clause": (
        '[[expected]]\nclause = "mask.goldn"\nreason = "x"',
        "'mask.goldn' matches no clause; did you mean 'mask.golden'?",
    ),
    "kind is no text": (
        '[[expected]]\nclause = "mask.golden"\nreason = "x"\nkind = 3',
        "entry 1: an expected failure's kind is 3, which is unknown; known: crashed, dtype, ",
    ),
    "unknown kind": (
        '[[expected]]\nclause = "mask.golden"\nreason = "x"\nkind = "vlaue"',
        "entry 1: an expected failure's kind is 'vlaue', which is unknown; did you mean 'value'?",
    ),
    "no day": (
        '[[expected]]\nclause = "mask.golden"\nreason = "x"\nexpires = 2031-01-31T10:00:00',
        "line 1, entry 1: an expected failure's expires is 2031-01-31T10:00:00: give a day",
    ),
    "place is no key": (
        '[[expected]]\nclause = "mask.golden"\nreason = "x"\nplace = "here"',
        "entry 1 has an unknown key 'place'",
    ),
    "unknown dtype": (
        '[[expected]]\nclause = "mask.golden"\nreason = "x"\ndtype = "flaot16"',
        "an expected failure's dtype is 'flaot16', which is unknown; did you mean 'float16'?",
    ),
}


@pytest.mark.parametrize(("text", "sentence"), BAD.values(), ids=BAD.keys())
def test_bad_files(tmp_path: Path, text: str, sentence: str) -> None:
    """A bad file is refused in one sentence that names the file."""
    path = tmp_path / "known.toml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(UsageError) as caught:
        read_file(path, list(READY.sentences))
    assert sentence in str(caught.value)
    assert "known.toml" in str(caught.value)


def test_missing_file(tmp_path: Path) -> None:
    """A file that is not there is named."""
    with pytest.raises(UsageError, match=r"there is no file .*absent\.toml"):
        read_file(tmp_path / "absent.toml", [])
