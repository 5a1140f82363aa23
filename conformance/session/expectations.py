"""Expected failures applied to results, and the expectations that have to be changed."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Final, Literal

from ..base.expected import ExpectedFailure, parse, read_text
from ..base.limits import today as clock_today
from ..base.results import ClauseResult, absent_device
from ..errors import UsageError
from .order import matching, suggestion


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
    """Tell whether a failed result is the expected failure, ignoring the last day."""
    return result.violation is not None and entry.covers(result.violation.kind, diagnoses(result))


def diagnoses(result: ClauseResult) -> list[str]:
    """Return the names of the mistakes that explain a failure equally well.

    Of mistakes made together those making this failure come first.
    """
    names: dict[str, None] = {}
    for entry in result.diagnosis:
        alone = [str(part["name"]) for part in entry.get("parts") or () if part["alone"]]
        names |= dict.fromkeys(["+".join(alone)] * bool(alone) + [str(entry["name"])])
    return list(names)


def is_announced(result: ClauseResult, candidate: str, entries: Iterable[ExpectedFailure]) -> bool:
    """Tell whether a remaining failure was announced: it differs, or its last day is over."""
    own = concerning(result, candidate, entries)
    return result.status == "failed" and any(entry.exact or covers(entry, result) for entry in own)


def judge(
    result: ClauseResult,
    candidate: str,
    entries: Iterable[ExpectedFailure],
    *,
    today: date | None = None,
) -> ClauseResult:
    """Judge a result by the expected failures.

    A covered failure becomes ``expected-failure``, a different failure stays ``failed`` and says
    so, and the pass of an exactly named clause becomes ``unexpected-pass``.
    """
    own = concerning(result, candidate, entries)
    if not own:
        return result
    if result.status == "failed" and result.violation is not None:
        return _judge_failure(result, own, today or clock_today())
    exact = next((entry for entry in own if entry.exact), None)
    if result.status == "passed" and exact is not None:
        reason = f"it passed, but was expected to fail ({exact.reason}): {drop(exact)}"
        return result.replace(status="unexpected-pass", reason=reason)
    return result


def _judge_failure(
    result: ClauseResult, own: Sequence[ExpectedFailure], today: date
) -> ClauseResult:
    covering = [entry for entry in own if covers(entry, result)]
    valid = next((entry for entry in covering if not entry.expired(today)), None)
    if valid is not None:
        return result.replace(status="expected-failure", reason=valid.reason)
    why, change = why_expired(covering[0], today) if covering else why_different(own[0], result)
    reason = (covering or own)[0].reason
    lead = "no expected failure any more" if covering else "not the expected failure"
    return result.replace(reason=f"{lead} ({reason}): {why}; {change}")


def drop(entry: ExpectedFailure) -> str:
    """Return the advice on an expectation without a matching failure."""
    return "drop the expectation" + ("" if entry.place is None else f" in {entry.place}")


def _change(entry: ExpectedFailure, key: str, words: str) -> str:
    """Return the advice, with the line to change, if known."""
    where = "its declaration" if entry.place is None else entry.place.where(key)
    return f"repair it, or {words} in {where}"


def why_expired(entry: ExpectedFailure, today: date) -> tuple[str, str]:
    """Why an expectation has expired, and what to change."""
    why = f"it was accepted until {entry.expires} only, and today is {today}"
    return why, _change(entry, "expires", "give it a later day")


def why_different(entry: ExpectedFailure, result: ClauseResult) -> tuple[str, str]:
    """Return the difference of a failure from the expected failure, and advice."""
    kind = "" if result.violation is None else result.violation.kind
    if not replace(entry, diagnosis=None).covers(kind):
        wanted = f"not {entry.kind!r}" if entry.kind else "which an expectation has to name"
        why = f"it is of kind {kind!r}, {wanted}"
        return why, _change(entry, "kind", f"write kind = {kind!r}")
    names = diagnoses(result)
    diagnosed = (
        f"diagnosed as {' or '.join(names)}" if names else "not diagnosed as a known mistake"
    )
    why = f"it is {diagnosed}, not {entry.diagnosis}"
    words = f"write diagnosis = {names[0]!r}" if names else "leave diagnosis out"
    return why, _change(entry, "diagnosis", words)


StaleProblem = Literal["stale", "expired", "different"]
_NOT_STALE: Final = ("failed", "expected-failure", "unexpected-pass", "untestable", "error")
_STILL_THERE: Final = ("failed", "expected-failure", "untestable", "error")


@dataclass(frozen=True, kw_only=True)
class Stale:
    """An expectation that does not hold, and why.

    problem: ``stale``: no failure corresponds to it; ``expired``: its last day is over;
        ``different``: the clause fails in another way.
    change: the advice, with the line.
    """

    expectation: ExpectedFailure
    why: str
    problem: StaleProblem = "stale"
    change: str = ""

    def names(self, candidate: str) -> bool:
        """Whether the expectation speaks of a candidate."""
        return fnmatchcase(candidate, self.expectation.candidate)

    def of(self, candidate: str) -> Stale:
        """The entry for one candidate, whose declaration holds the expectation."""
        return replace(self, expectation=replace(self.expectation, candidate=candidate))

    def as_json(self) -> dict[str, Any]:
        """The entry of the report's ``stale_expectations``."""
        return {
            **self.expectation.as_json(),
            "problem": self.problem,
            "why": self.why,
            "change": self.change,
        }


@dataclass(frozen=True, kw_only=True)
class Selection:
    """The selected slugs of a run, and its dtypes and devices if chosen by the user."""

    slugs: Collection[str]
    dtypes: tuple[str, ...] | None = None
    devices: tuple[str, ...] | None = None

    def admits(self, entry: ExpectedFailure) -> bool:
        """Whether anything that an expectation speaks of was selected."""
        return bool(
            matching([entry.clause], self.slugs)
            and (self.dtypes is None or matching([entry.dtype], self.dtypes))
            and (self.devices is None or matching([entry.device], self.devices))
        )

    def is_partial(self, entry: ExpectedFailure) -> bool:
        """Whether an expectation covers dtypes or devices that were perhaps not selected."""
        dtypes = self.dtypes is not None and entry.dtype not in self.dtypes
        return dtypes or (self.devices is not None and entry.device not in self.devices)


def read_file(path: Path, slugs: Collection[str]) -> tuple[ExpectedFailure, ...]:
    """The ``[[expected]]`` tables of a TOML file; raises UsageError that names file and entry."""
    entries = parse(read_text(path), path)
    check_entries(entries, slugs, path)
    return entries


def check_entries(entries: Iterable[ExpectedFailure], slugs: Collection[str], path: Path) -> None:
    """Require that the entries of a file name existing clauses; raises UsageError."""
    for number, entry in enumerate(entries, 1):
        line = None if entry.place is None else entry.place.line
        line_text = "" if line is None else f"line {line}, "
        check_clause(entry, slugs, f"{path}, {line_text}entry {number}")


def check_clause(entry: ExpectedFailure, slugs: Collection[str], where: str) -> None:
    """Require that an expectation names an existing clause; raises UsageError."""
    if not matching([entry.clause], slugs):
        hint = suggestion(entry.clause, slugs)
        msg = f"{where}: the expected failure {entry.clause!r} matches no clause{hint}"
        raise UsageError(msg)


def stale(
    entries: Iterable[ExpectedFailure],
    results: Mapping[str, Sequence[ClauseResult]],
    selection: Selection,
) -> list[Stale]:
    """Return expectations without a corresponding failure; ``results`` are by candidate, judged."""
    stale_entries = []
    for entry in entries:
        why = _why_stale(entry, results, selection)
        if why:
            stale_entries.append(Stale(expectation=entry, why=why, change=drop(entry)))
    return stale_entries


def not_holding(
    entries: Sequence[ExpectedFailure],
    results: Mapping[str, Sequence[ClauseResult]],
    selection: Selection,
    *,
    today: date | None = None,
) -> list[Stale]:
    """The expectations that are stale, expired, or whose clause fails in another way."""
    day = today or clock_today()
    stale_entries = stale(entries, results, selection)
    gone = {id(entry.expectation) for entry in stale_entries}
    selected = [entry for entry in entries if id(entry) not in gone and selection.admits(entry)]
    valid = [entry for entry in selected if not entry.expired(day)]
    return [*stale_entries, *_expired(selected, results, day), *_different(valid, results, entries)]


def by_candidate(
    from_file: Sequence[ExpectedFailure],
    declared: Mapping[str, Sequence[ExpectedFailure]],
    results: Mapping[str, Sequence[ClauseResult]],
    selection: Selection,
    *,
    today: date,
) -> tuple[dict[str, list[Stale]], list[Stale]]:
    """Return the expectations that do not hold, by red candidate, and in one list.

    ``declared``: the expectations in the candidates' declarations.
    """
    every = not_holding(from_file, results, selection, today=today)
    by_name = {name: [entry for entry in every if entry.names(name)] for name in declared}
    for name, entries in declared.items():
        own = not_holding(entries, {name: results[name]}, selection, today=today)
        by_name[name] += own
        every += [entry.of(name) for entry in own]
    return by_name, every


def _expired(
    entries: Iterable[ExpectedFailure],
    results: Mapping[str, Sequence[ClauseResult]],
    today: date,
) -> list[Stale]:
    """Return the expired expectations, except where every clause passed: red anyway."""
    expired = []
    for entry in entries:
        there = any(result.status in _STILL_THERE for _, result in _runs(entry, results))
        if entry.expired(today) and there:
            why, change = why_expired(entry, today)
            expired.append(Stale(expectation=entry, why=why, problem="expired", change=change))
    return expired


def _different(
    entries: Iterable[ExpectedFailure],
    results: Mapping[str, Sequence[ClauseResult]],
    all_entries: Sequence[ExpectedFailure],
) -> list[Stale]:
    """Return the expectations naming a clause that fails in a way no expectation covers.

    A glob announces no clause in particular: failures it does not cover are ordinary ones.
    """
    different = []
    for entry in entries:
        others = {
            name: result
            for name, result in reversed(_runs(entry, results))
            if entry.exact and result.status == "failed" and not _covered(result, name, all_entries)
        }
        for name, result in others.items():
            why, change = why_different(entry, result)
            item = Stale(expectation=entry, why=why, problem="different", change=change)
            different.append(item.of(name))
    return different


def _covered(result: ClauseResult, candidate: str, entries: Iterable[ExpectedFailure]) -> bool:
    return any(covers(entry, result) for entry in concerning(result, candidate, entries))


def _runs(
    entry: ExpectedFailure, results: Mapping[str, Sequence[ClauseResult]]
) -> list[tuple[str, ClauseResult]]:
    """Return the results an expectation concerns, with their candidates' names."""
    return [
        (name, result)
        for name, some in results.items()
        for result in some
        if entry.concerns(name, result.id, result.dtype, result.device)
    ]


def _why_stale(
    entry: ExpectedFailure,
    results: Mapping[str, Sequence[ClauseResult]],
    selection: Selection,
) -> str:
    if not selection.admits(entry):
        return ""  # it was not selected
    if not any(fnmatchcase(name, entry.candidate) for name in results):
        return f"no candidate is called {entry.candidate!r}"
    runs = [result for _, result in _runs(entry, results)]
    if selection.is_partial(entry) and all(result.status == "not-applicable" for result in runs):
        return ""  # it may apply in a dtype or on a device that was not selected
    return _why_unanswered(entry, runs)


def _why_unanswered(entry: ExpectedFailure, runs: Sequence[ClauseResult]) -> str:
    if not runs:
        device = "" if entry.device == "*" else f" on the device {entry.device!r}"
        dtype = "" if entry.dtype == "*" else f" in the dtype {entry.dtype!r}"
        return f"no clause that it covers was run{dtype}{device}"
    if any(result.status in _NOT_STALE for result in runs):
        return ""
    if any(result.reason.startswith(absent_device(result.device)) for result in runs):
        return ""  # a machine with the device may run the clause
    if all(result.status == "not-applicable" for result in runs):
        return f"the clause is not applicable: {runs[0].reason}"
    return "nothing that it covers failed"
