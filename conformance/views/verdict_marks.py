"""The meaning of a record: marks of clauses, red facts, and one word for the run."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal, cast

from ..base.record import GREEN
from . import wording
from .complete import Record, is_cut, notes
from .wording import counted

# The first verdict present is the run's.
_WORST_FIRST: Final = ("error", "fails", "inconclusive")
_INTERRUPTED: Final = "the run was interrupted: the report holds what was done before"
# Candidates named for a verdict: all up to the first number, else the second.
_NAMED: Final = (4, 3)


@dataclass(frozen=True, kw_only=True)
class Overall:
    """The word for a run, why, and whether a gate lets it through."""

    word: str
    reason: str
    green: bool = False


def overall(record: Record) -> Overall:
    """Summarise a run: an interrupted, empty or unfinished run is never green."""
    candidates = record["candidates"]
    verdicts = [str(candidate.get("verdict", "inconclusive")) for candidate in candidates]
    worst = next((word for word in _WORST_FIRST if word in verdicts), "")
    if record.get("interrupted") and worst in ("", "inconclusive"):  # a failure stays one
        return Overall(word="interrupted", reason=_INTERRUPTED.replace("report", "record"))
    if not candidates:
        reason = notes(record)[0] if is_cut(record) else "nothing was checked"
        return Overall(word="inconclusive", reason=reason)
    if worst:
        return Overall(word=worst, reason=_candidates_with(worst, record))
    if stale := record.get("stale_expectations") or ():
        reason = f"{counted(len(stale), 'expected failure')} nothing answers to any more"
        return Overall(word="fails", reason=reason)
    if is_cut(record):
        return Overall(word="inconclusive", reason=notes(record)[0])
    green = all(word in GREEN for word in verdicts)
    word = max(verdicts, key=lambda each: GREEN.index(each) if green else each not in GREEN)
    counts = ", ".join(f"{verdicts.count(each)} {each}" for each in dict.fromkeys(verdicts))
    return Overall(
        word=word, reason=f"{counted(len(verdicts), 'candidate')}: {counts}", green=green
    )


def _candidates_with(word: str, record: Record) -> str:
    candidates = record["candidates"]
    if len(candidates) == 1:
        return wording.verdict_reason(candidates[0])
    names = [str(entry["name"]) for entry in candidates if entry.get("verdict") == word]
    most, few = _NAMED
    more = f" and {len(names) - few} more" if len(names) > most else ""
    shown = ", ".join(names[:few] if more else names)
    return f"{len(names)} of {len(candidates)} candidates: {shown}{more}"


Mark = Literal["passed", "failed", "error", "skipped"]

_SKIPPED: Final = {"not-applicable": "not applicable", "expected-failure": "expected failure"}


@dataclass(frozen=True, kw_only=True)
class RunProblem:
    """A problem that makes a run red without a failing clause, for example a stale expectation.

    ``id`` is a separate slug, ``candidate`` a name or "" for none or several candidates;
    ``subject`` distinguishes problems of equal ``id``.
    """

    id: str
    candidate: str
    message: str
    subject: str = ""


def is_strict(record: Record) -> bool:
    """Whether a failed SHOULD is red in this run."""
    return record.get("fail_on") == "should"


def whole(record: Record) -> Overall:
    """Summarise a run; a strict run also fails on a failed SHOULD."""
    lenient = overall(record)
    if not (lenient.green and is_strict(record)):
        return lenient
    failed = sum(
        mark(clause, strict=True) == "failed"
        for candidate in record["candidates"]
        for clause in candidate["clauses"]
    )
    reason = f"{counted(failed, 'SHOULD clause')} failed, and the run fails on these"
    return Overall(word="fails", reason=reason) if failed else lenient


def mark(clause: Record, *, strict: bool = False) -> Mark:
    """Return a test report's mark of a clause; ``strict`` counts a failed SHOULD as a failure.

    Otherwise a SHOULD or MAY that failed, or could not be tested, is tolerated and leaves the
    verdict unchanged. An untestable MUST has not been passed, and is a failure.
    """
    status: str = clause["status"]
    if status in ("passed", "error"):
        return cast("Mark", status)
    if status in _SKIPPED:
        return "skipped"
    tolerated = clause["level"] != "MUST" and status in ("failed", "untestable")
    if tolerated and not (strict and status == "failed" and clause["level"] == "SHOULD"):
        return "skipped"
    return "failed"


def told(record: Record, candidate: Record) -> list[Record]:
    """Return the clauses without recommendations disregarded by a conforming candidate.

    Those are counted: no verdict depends on them, unless the run is strict.
    """
    quiet = candidate["verdict"] in GREEN and not is_strict(record)
    return [one for one in candidate["clauses"] if not (quiet and one["status"] == "failed")]


def summary_sentence(clause: Record) -> str:
    """Return a sentence on a clause that did not pass, the cause first; "" if passed."""
    status, text = clause["status"], wording.message(clause)
    if status == "failed":
        text = f"{wording.caused(clause)}{text or status}"
    if status == "passed":
        return ""
    if status in _SKIPPED:
        return f"{_SKIPPED[status]}: {text}"
    if status == "untestable":
        return f"{clause['level']} could not be tested: {text}"
    if status == "failed" and clause["level"] != "MUST":
        return f"{clause['level']} failed: {text}"
    return text or status


def case_id(clause: Record) -> str:
    """Clause, dtype and, unless it is the CPU, device: ``mask.no-leak[float32]``."""
    return f"{clause['id']}[{wording.where(clause, '-')}]"


def details(candidate: Record, clause: Record) -> list[str]:
    """A failure line by line: requirement, finding, diagnosis, how to replay it."""
    lines = [f"{label}: {text}" for label, text in wording.explanation(clause)]
    if clause["counterexample"]:
        lines.append(f"replay: {replay_command(candidate, clause)}")
    return lines


def replay_command(candidate: Record, clause: Record, report: str = "REPORT.json") -> str:
    """Return the shell command that repeats the failing calls of a clause."""
    words = ["conformance", "replay", f"{report}#{candidate['name']}/{clause['id']}"]
    if sum(other["id"] == clause["id"] for other in candidate["clauses"]) > 1:
        words += ["--dtype", str(clause["dtype"])]
    return shlex.join(words)


def problems(record: Record) -> list[RunProblem]:
    """Return the red facts of a run that are no marks of clauses.

    A candidate that is not green has a failing clause or a problem: a report without a failure is a
    green run.
    """
    every = [*_problems_of_run(record), *_stale(record)]
    named = {problem.candidate for problem in every}
    for candidate in record["candidates"]:
        marks = {mark(clause, strict=is_strict(record)) for clause in candidate["clauses"]}
        explained = candidate["verdict"] in GREEN or candidate["name"] in named
        if not explained and not marks & {"failed", "error"}:
            message = f"{candidate['verdict']}: {candidate['verdict_reason']}"
            every.append(RunProblem(id="verdict", candidate=candidate["name"], message=message))
    return every


def _problems_of_run(record: Record) -> Iterator[RunProblem]:
    if record["interrupted"]:
        yield RunProblem(id="run.interrupted", candidate="", message=_INTERRUPTED)
    elif not record["candidates"]:
        yield RunProblem(id="run.empty", candidate="", message=overall(record).reason)
    elif is_cut(record) and all(entry["verdict"] in GREEN for entry in record["candidates"]):
        yield RunProblem(id="run.limit", candidate="", message=notes(record)[0])


def _stale(record: Record) -> Iterator[RunProblem]:
    names = [candidate["name"] for candidate in record["candidates"]]
    for entry in record["stale_expectations"]:
        name = entry["candidate"]
        yield RunProblem(
            id="expectation.stale",
            candidate=name if name in names else "",
            message=" ".join(wording.expectation(entry)),
            subject=f"{entry['clause']} {name} {entry.get('dtype', '*')}",
        )
