"""A result in the light of what is expected to fail, and what to change where the two differ."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import date

from ..base.clock import today as clock_today
from ..base.expected import ExpectedFailure
from ..base.results import ClauseResult


def concerning(
    result: ClauseResult, candidate: str, entries: Iterable[ExpectedFailure]
) -> list[ExpectedFailure]:
    """The expectations that speak of a result."""
    return [
        entry
        for entry in entries
        if entry.concerns(candidate, result.id, result.dtype, result.device)
    ]


def covers(entry: ExpectedFailure, result: ClauseResult) -> bool:
    """Whether a failed result is the failure that is expected; its last day is not asked."""
    return result.violation is not None and entry.covers(result.violation.kind, diagnoses(result))


def diagnoses(result: ClauseResult) -> list[str]:
    """The names of the mistakes that a failure may be; several explain it equally well."""
    return [str(entry["name"]) for entry in result.diagnosis]


def is_announced(result: ClauseResult, candidate: str, entries: Iterable[ExpectedFailure]) -> bool:
    """Whether a failure that stayed one is spoken of: it differs, or its last day is over."""
    mine = concerning(result, candidate, entries)
    return result.status == "failed" and any(entry.exact or covers(entry, result) for entry in mine)


def judge(
    result: ClauseResult,
    candidate: str,
    entries: Iterable[ExpectedFailure],
    *,
    today: date | None = None,
) -> ClauseResult:
    """The result in the light of what is expected to fail.

    A covered failure becomes ``expected-failure``, another one stays ``failed`` and says so, and
    the pass of a clause that is named exactly becomes ``unexpected-pass``.
    """
    mine = concerning(result, candidate, entries)
    if not mine:
        return result
    if result.status == "failed" and result.violation is not None:
        return _judge_failure(result, mine, today or clock_today())
    exact = next((entry for entry in mine if entry.exact), None)
    if result.status == "passed" and exact is not None:
        reason = f"it passed, but was expected to fail ({exact.reason}): {drop(exact)}"
        return result.replace(status="unexpected-pass", reason=reason)
    return result


def _judge_failure(
    result: ClauseResult, mine: Sequence[ExpectedFailure], today: date
) -> ClauseResult:
    covering = [entry for entry in mine if covers(entry, result)]
    valid = next((entry for entry in covering if not entry.expired(today)), None)
    if valid is not None:
        return result.replace(status="expected-failure", reason=valid.reason)
    why, change = why_expired(covering[0], today) if covering else why_different(mine[0], result)
    known = (covering or mine)[0].reason
    lead = "no expected failure any more" if covering else "not the expected failure"
    return result.replace(reason=f"{lead} ({known}): {why}; {change}")


def drop(entry: ExpectedFailure) -> str:
    """What to do about an expectation that nothing answers to any more."""
    return "drop the expectation" + ("" if entry.place is None else f" in {entry.place}")


def _change(entry: ExpectedFailure, key: str, words: str) -> str:
    """What to do, and in which line where that is known."""
    where = "its declaration" if entry.place is None else entry.place.of(key)
    return f"repair it, or {words} in {where}"


def why_expired(entry: ExpectedFailure, today: date) -> tuple[str, str]:
    """Why an expectation has expired, and what to change."""
    why = f"it was accepted until {entry.expires} only, and today is {today}"
    return why, _change(entry, "expires", "give it a later day")


def why_different(entry: ExpectedFailure, result: ClauseResult) -> tuple[str, str]:
    """How a failure differs from the expected one, and what to change."""
    kind = "" if result.violation is None else result.violation.kind
    if not replace(entry, diagnosis=None).covers(kind):
        wanted = entry.kind or "another than an exception, a crash or a hang"
        why = f"it is of kind {kind!r}, not {wanted!r}"
        return why, _change(entry, "kind", f"write kind = {kind!r}")
    names = diagnoses(result)
    found = f"diagnosed as {' or '.join(names)}" if names else "not diagnosed as a known mistake"
    why = f"it is {found}, not {entry.diagnosis}"
    words = f"write diagnosis = {names[0]!r}" if names else "leave diagnosis out"
    return why, _change(entry, "diagnosis", words)
