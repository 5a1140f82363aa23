"""What a record amounts to: a mark for each clause, what is red, and one word for the whole run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from ..base.record import GREEN
from . import wording
from .complete import is_cut, notes

# The first of these that a candidate has is the run's.
_WORST_FIRST: Final = ("error", "fails", "inconclusive")

Record = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Overall:
    """The word for a run, why, and whether a gate lets it through."""

    word: str
    reason: str
    green: bool


def overall(record: Record) -> Overall:
    """What a run amounts to: an interrupted, an empty or an unfinished one is never green."""
    candidates = record["candidates"]
    if record.get("interrupted"):
        reason = "the run was interrupted: the record holds what was done before"
        return Overall(word="interrupted", reason=reason, green=False)
    if not candidates:
        reason = notes(record)[0] if is_cut(record) else "nothing was checked"
        return Overall(word="inconclusive", reason=reason, green=False)
    verdicts = [str(candidate.get("verdict", "inconclusive")) for candidate in candidates]
    for word in _WORST_FIRST:
        if word in verdicts:
            return Overall(word=word, reason=_who(word, candidates), green=False)
    stale = record.get("stale_expectations") or ()
    if stale:
        reason = f"{counted(len(stale), 'expected failure')} nothing answers to any more"
        return Overall(word="fails", reason=reason, green=False)
    if is_cut(record):
        return Overall(word="inconclusive", reason=notes(record)[0], green=False)
    green = all(word in GREEN for word in verdicts)
    word = max(verdicts, key=lambda one: GREEN.index(one) if green else one not in GREEN)
    return Overall(word=word, reason=_sum(verdicts), green=green)


def _who(word: str, candidates: Sequence[Record]) -> str:
    """Who has the verdict, and of a single candidate why."""
    if len(candidates) == 1:
        return str(candidates[0].get("verdict_reason") or "")
    names = [str(one["name"]) for one in candidates if one.get("verdict") == word]
    more = f" and {len(names) - 3} more" if len(names) > 4 else ""  # noqa: PLR2004
    shown = ", ".join(names[:3] if more else names)
    return f"{len(names)} of {len(candidates)} candidates: {shown}{more}"


def _sum(verdicts: Sequence[str]) -> str:
    """How many candidates have which verdict."""
    words = dict.fromkeys(verdicts)
    told = ", ".join(f"{verdicts.count(word)} {word}" for word in words)
    return f"{counted(len(verdicts), 'candidate')}: {told}"


def counted(number: int, noun: str) -> str:
    """``1 candidate``, ``2 candidates``."""
    return f"{number} {noun}" if number == 1 else f"{number:,} {noun}s"


Mark = Literal["passed", "failed", "error", "skipped"]

_SKIPPED: Final = {"not-applicable": "not applicable", "expected-failure": "expected failure"}


@dataclass(frozen=True, kw_only=True)
class Problem:
    """What makes a run red although no clause says so: nothing ran, an expectation is stale.

    ``id`` is a slug of its own, ``candidate`` a name or "" where it concerns none or several, and
    ``subject`` what tells two of one id apart.
    """

    id: str
    candidate: str
    message: str
    subject: str = ""


def is_strict(record: Record) -> bool:
    """Whether a failed SHOULD is red in this run."""
    return record.get("fail_on") == "should"


def whole(record: Record) -> Overall:
    """What the run amounts to, a failed SHOULD included where the run is strict."""
    found = overall(record)
    if not (found.green and is_strict(record)):
        return found
    failed = [
        clause["id"]
        for candidate in record["candidates"]
        for clause in candidate["clauses"]
        if mark(clause, strict=True) == "failed"
    ]
    reason = f"{counted(len(failed), 'SHOULD clause')} failed, and the run fails on these"
    return Overall(word="fails", reason=reason, green=False) if failed else found


def mark(clause: Record, *, strict: bool = False) -> Mark:
    """How a test report shows a clause; ``strict`` counts those that are no MUST, too.

    A failed SHOULD is tolerated, and so is one that could not be tested: the verdict is not touched
    by either. An untestable MUST has not been passed, so it is a failure.
    """
    status = clause["status"]
    if status in ("passed", "error"):
        found: Mark = status
        return found
    if status in _SKIPPED:
        return "skipped"
    tolerated = clause["level"] != "MUST" and status in ("failed", "untestable")
    if tolerated and not (strict and status == "failed" and clause["level"] == "SHOULD"):
        return "skipped"
    return "failed"


def said(clause: Record) -> str:
    """One sentence on a clause that did not simply pass, "" for one that did."""
    status, text = clause["status"], wording.message(clause)
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
    """Clause, dtype and, beside the CPU, device: ``mask.no-leak[float32]``."""
    device = clause["device"]
    where = clause["dtype"] if device == "cpu" else f"{clause['dtype']}-{device}"
    return f"{clause['id']}[{where}]"


def details(candidate: Record, clause: Record) -> list[str]:
    """Everything a person needs, line by line: requirement, finding, diagnosis, how to replay."""
    lines = [f"{label}: {text}" for label, text in wording.explanation(clause)]
    if clause["counterexample"]:
        lines.append(f"replay: {replay_command(candidate, clause)}")
    return lines


def replay_command(candidate: Record, clause: Record) -> str:
    """The command that asks the question of a failure again."""
    return f"conformance replay 'REPORT.json#{candidate['name']}/{clause['id']}'"


def problems(record: Record) -> list[Problem]:
    """What is red in a run that is not a mark of one of its clauses.

    Each candidate that is not green has a failing clause or a problem: a report without a failure
    is a green run.
    """
    found = [*_of_the_run(record), *_stale(record)]
    named = {problem.candidate for problem in found}
    for candidate in record["candidates"]:
        unsaid = candidate["verdict"] not in GREEN and candidate["name"] not in named
        if unsaid and not _fails(candidate, strict=is_strict(record)):
            message = f"{candidate['verdict']}: {candidate['verdict_reason']}"
            found.append(Problem(id="verdict", candidate=candidate["name"], message=message))
    return found


def _fails(candidate: Record, *, strict: bool) -> bool:
    return any(
        mark(clause, strict=strict) in ("failed", "error") for clause in candidate["clauses"]
    )


def _of_the_run(record: Record) -> Iterator[Problem]:
    if record["interrupted"]:
        message = "the run was interrupted: the report holds what was done before"
        yield Problem(id="run.interrupted", candidate="", message=message)
    elif not record["candidates"]:
        yield Problem(id="run.empty", candidate="", message=overall(record).reason)
    elif is_cut(record) and all(one["verdict"] in GREEN for one in record["candidates"]):
        yield Problem(id="run.limit", candidate="", message=notes(record)[0])


def _stale(record: Record) -> Iterator[Problem]:
    names = [candidate["name"] for candidate in record["candidates"]]
    for entry in record["stale_expectations"]:
        yield Problem(
            id="expectation.stale",
            candidate=entry["candidate"] if entry["candidate"] in names else "",
            message=_stale_sentence(entry),
            subject=f"{entry['clause']} {entry['candidate']} {entry.get('dtype', '*')}",
        )


def _stale_sentence(entry: Record) -> str:
    of = f" of {entry['candidate']}" if entry["candidate"] != "*" else ""
    return (
        f"the expected failure {entry['clause']}{of} ({entry['reason']}) is stale: {entry['why']}"
    )
