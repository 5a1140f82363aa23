"""Expected failures: reading them, applying them to results, and finding the stale ones."""

from __future__ import annotations

import tomllib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Final

from .errors import DeclarationError, UsageError, did_you_mean
from .expected import ExpectedFailure
from .results import ClauseResult
from .selection import matching, suggestion

_KEYS: Final = tuple(field.name for field in fields(ExpectedFailure))
_NEEDED: Final = ("clause", "reason")
_NOT_STALE: Final = ("failed", "expected-failure", "unexpected-pass", "untestable", "error")


@dataclass(frozen=True, kw_only=True)
class Stale:
    """An expectation that nothing answers to any more, and why."""

    expectation: ExpectedFailure
    why: str

    def names(self, candidate: str) -> bool:
        """Whether the expectation speaks of a candidate."""
        return fnmatchcase(candidate, self.expectation.candidate)

    def of(self, candidate: str) -> Stale:
        """The same, said of one candidate: the one whose declaration holds it."""
        return Stale(expectation=replace(self.expectation, candidate=candidate), why=self.why)

    def as_json(self) -> dict[str, Any]:
        """The entry of the report's ``stale_expectations``."""
        return {**asdict(self.expectation), "why": self.why}


@dataclass(frozen=True, kw_only=True)
class Selection:
    """What a run was asked for: the selected slugs, and the dtypes when they were chosen."""

    slugs: Collection[str]
    dtypes: tuple[str, ...] | None = None


def read_file(path: Path, slugs: Collection[str]) -> tuple[ExpectedFailure, ...]:
    """The ``[[expected]]`` tables of a TOML file; raises UsageError that names file and entry."""
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        msg = f"there is no file {path} with expected failures"
        raise UsageError(msg) from None
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        msg = f"{path} cannot be read as TOML: {error}"
        raise UsageError(msg) from None
    entries = data.get("expected", [])
    for key in data:
        if key != "expected":
            msg = f"{path} has an unknown key {key!r}{did_you_mean(key, ['expected'])}"
            raise UsageError(msg)
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        msg = f"{path}: write each expected failure as a table [[expected]]"
        raise UsageError(msg)
    read = [_entry(entry, f"{path}, entry {number}") for number, entry in enumerate(entries, 1)]
    for number, entry in enumerate(read, 1):
        check_clause(entry, slugs, f"{path}, entry {number}")
    return tuple(read)


def _entry(data: dict[str, Any], where: str) -> ExpectedFailure:
    for key in data:
        if key not in _KEYS:
            msg = f"{where} has an unknown key {key!r}{did_you_mean(key, _KEYS)}"
            raise UsageError(msg)
    for key in _NEEDED:
        if key not in data:
            msg = f"{where} has no {key!r}: give a clause and the reason why it is known to fail"
            raise UsageError(msg)
    try:
        return ExpectedFailure(**data)
    except DeclarationError as error:
        msg = f"{where}: {error}"
        raise UsageError(msg) from None


def check_clause(entry: ExpectedFailure, slugs: Collection[str], where: str) -> None:
    """Require that an expectation speaks of a clause that exists; raises UsageError."""
    if not matching([entry.clause], slugs):
        hint = suggestion(entry.clause, slugs)
        msg = f"{where}: the expected failure {entry.clause!r} matches no clause{hint}"
        raise UsageError(msg)


def judge(result: ClauseResult, candidate: str, entries: Iterable[ExpectedFailure]) -> ClauseResult:
    """The result in the light of what is expected to fail.

    A covered failure becomes ``expected-failure``, a failure of another kind stays ``failed`` and
    says so, and the pass of a clause that is named exactly becomes ``unexpected-pass``.
    """
    mine = [entry for entry in entries if entry.concerns(candidate, result.id, result.dtype)]
    if not mine:
        return result
    if result.status == "failed" and result.violation is not None:
        return _judge_failure(result, result.violation.kind, mine)
    exact = next((entry for entry in mine if entry.exact), None)
    if result.status == "passed" and exact is not None:
        reason = f"it passed, but was expected to fail ({exact.reason}): drop the expectation"
        return result.replace(status="unexpected-pass", reason=reason)
    return result


def _judge_failure(
    result: ClauseResult, kind: str, mine: Sequence[ExpectedFailure]
) -> ClauseResult:
    covering = next((entry for entry in mine if entry.covers(kind)), None)
    if covering is not None:
        return result.replace(status="expected-failure", reason=covering.reason)
    wanted = mine[0].kind or "another than an exception, a crash or a hang"
    reason = f"not the expected failure ({mine[0].reason}): it is of kind {kind!r}, not {wanted!r}"
    return result.replace(reason=reason)


def stale(
    entries: Iterable[ExpectedFailure],
    results: Mapping[str, Sequence[ClauseResult]],
    selection: Selection,
) -> list[Stale]:
    """The expectations that nothing answered to; ``results`` are by candidate, already judged."""
    found = []
    for entry in entries:
        why = _why_stale(entry, results, selection)
        if why:
            found.append(Stale(expectation=entry, why=why))
    return found


def _why_stale(
    entry: ExpectedFailure,
    results: Mapping[str, Sequence[ClauseResult]],
    selection: Selection,
) -> str:
    if not matching([entry.clause], selection.slugs):
        return ""  # its clauses were not asked for
    if selection.dtypes is not None and not matching([entry.dtype], selection.dtypes):
        return ""
    names = [name for name in results if fnmatchcase(name, entry.candidate)]
    if not names:
        return f"no candidate is called {entry.candidate!r}"
    runs = [
        result
        for name in names
        for result in results[name]
        if entry.concerns(name, result.id, result.dtype)
    ]
    return _why_unanswered(entry, runs)


def _why_unanswered(entry: ExpectedFailure, runs: Sequence[ClauseResult]) -> str:
    if not runs:
        return f"nothing was run in the dtype {entry.dtype!r}"
    if any(result.status in _NOT_STALE for result in runs):
        return ""
    if all(result.status == "not-applicable" for result in runs):
        return f"the clause is not applicable: {runs[0].reason}"
    return "nothing that it covers failed"
