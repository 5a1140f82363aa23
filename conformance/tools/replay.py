"""What ``conformance replay`` does: runs the counterexamples of a report again."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Final

from ..base.profile import DTYPES, PROFILES, read_graph_options
from ..base.record import COMPILED_SUFFIXES, read_record
from ..base.results import Violation
from ..errors import UsageError, did_you_mean
from ..running.workers.messages import Loaded, RunOptions
from ..running.workers.supervisor import DEFAULT_TIMEOUT, Supervisor, WorkerLost
from ..targets.target_strings import why_foreign
from ..views.wording import sort_by_cause

JOB: Final = "conformance.running.workers.replaying:replay_job"
EARLIER_JOB: Final = "conformance.running.workers.replaying:earlier_job"
# How many examples before the failing one are tried first: few make a short script.
FEW_EARLIER: Final = (1, 2, 4)
_VIOLATION: Final = {entry.name for entry in fields(Violation)}
_FAILED: Final = ("failed", "expected-failure")
# Candidates that a refusal lists.
_NAMED: Final = 4

Record = Mapping[str, Any]
Progress = Callable[[str, int, int], None]


@dataclass(frozen=True, kw_only=True)
class FailedClause:
    """A failed clause of a report, for a replay; ``run`` is the whole report."""

    candidate: Record
    clause: Record
    run: Record = field(default_factory=dict)

    @property
    def problem(self) -> Any:
        """The failed problem, in the report's form."""
        return self.clause["counterexample"]["problem"]


@dataclass(frozen=True, kw_only=True)
class Replayed:
    """The result of a replayed failure: ``outcome`` is "passes", "fails" or "differs".

    ``clause`` is the report's entry with the new violation and counterexample. ``after`` names the
    earlier calls that the failure needs, "" if it needs none.
    """

    candidate: str
    clause: Record
    outcome: str
    after: str = ""


def cases(
    reference: str, candidate: str | None = None, *, dtype: str | None = None
) -> list[FailedClause]:
    """The failures in ``REPORT.json``, ``REPORT.json#CLAUSE`` or ``…#CANDIDATE/CLAUSE``.

    With ``dtype`` only the failures in the dtype.

    Raises UsageError with one sentence for a report or clause that is missing or unreadable, has
    not failed or has no counterexample.
    """
    failures = failed_clauses(reference, candidate, dtype=dtype)
    for case in failures:
        _check_rebuilds(case)
    return failures


def failed_clauses(
    reference: str,
    candidate: str | None = None,
    *,
    dtype: str | None = None,
    purpose: str = "replay",
) -> list[FailedClause]:
    """The failures of a reference as in :func:`cases`, with or without counterexamples.

    ``purpose`` says in a message what is to be done with the failures.
    """
    path, named, slug = _split(reference)
    report = read_record(path)
    entries = _candidates(report, candidate or named, path)
    failures = [case for entry in entries for case in _failures(entry, slug, report)]
    if slug:
        _check_slug(entries, slug, failures, purpose)
    if dtype is not None:
        failures = _in_dtype(failures, dtype)
    if not failures:
        msg = f"{path} holds no failure: there is nothing to {purpose}"
        raise UsageError(msg)
    return failures


def first_of(failures: Sequence[FailedClause]) -> FailedClause:
    """The failed MUST that shows a candidate's first cause best, without a MUST the first failure.

    Raises UsageError where several candidates failed.
    """
    names = list(dict.fromkeys(str(case.candidate["name"]) for case in failures))
    if len(names) > 1:
        more = " …" if len(names) > _NAMED else ""
        named = f"{', '.join(names[:_NAMED])}{more} with --candidate"
        msg = f"{len(names)} candidates failed: name one of {named}"
        raise UsageError(msg)
    order = [id(clause) for clause in sort_by_cause(failures[0].candidate)]
    return min(failures, key=lambda case: (*_urgency(case.clause), order.index(id(case.clause))))


def _urgency(clause: Record) -> tuple[bool, bool]:
    return clause["status"] != "failed", clause.get("level", "MUST") != "MUST"


def _in_dtype(failures: Sequence[FailedClause], dtype: str) -> list[FailedClause]:
    """The failures in a dtype; raises UsageError if all failures are in other dtypes."""
    chosen = [case for case in failures if case.clause.get("dtype") == dtype]
    if failures and not chosen:
        others = ", ".join(sorted({str(case.clause.get("dtype")) for case in failures}))
        msg = f"nothing of that failed in {dtype}, only in {others}"
        raise UsageError(msg)
    return chosen


def _split(reference: str) -> tuple[Path, str | None, str]:
    """Path, candidate and clause; files and candidates may have a ``#`` in their names."""
    marks = [at for at, sign in enumerate(reference) if sign == "#"]
    if not marks or _exists(reference):
        return Path(reference), None, ""
    end = next((at for at in marks if _exists(reference[:at])), marks[0])
    name, _, slug = reference[end + 1 :].rpartition("/")
    if not slug:
        msg = f"{reference!r} names no clause behind its #: write REPORT.json#CLAUSE"
        raise UsageError(msg)
    return Path(reference[:end]), name or None, slug


def _exists(path: str) -> bool:
    return os.path.exists(path)  # noqa: PTH110 (says no of a name that is too long)


def report_path(reference: str) -> Path:
    """The file of a reference such as ``REPORT.json#CLAUSE``."""
    return _split(reference)[0]


def _candidates(report: Record, name: str | None, path: Path) -> list[Record]:
    entries: list[Record] = report["candidates"]
    if name is None:
        return entries
    named = [entry for entry in entries if entry["name"] == name]
    if not named:
        names = [entry["name"] for entry in entries]
        msg = f"{path} has no candidate {name!r}{did_you_mean(name, names)}"
        raise UsageError(msg)
    return named


def _failures(entry: Record, slug: str, report: Record) -> Iterator[FailedClause]:
    for clause in entry["clauses"]:
        if clause["status"] in _FAILED and slug in ("", clause["id"]):
            yield FailedClause(candidate=entry, clause=clause, run=report)


def _check_slug(
    entries: Sequence[Record], slug: str, chosen: list[FailedClause], purpose: str
) -> None:
    """Require that a clause is known and has failed; raises UsageError."""
    statuses = {c["id"]: c["status"] for entry in entries for c in entry["clauses"]}
    if slug not in statuses and any(entry["name"] == slug for entry in entries):
        msg = f"{slug!r} behind the # is no clause, but a candidate: give --candidate {slug}"
        raise UsageError(msg)
    if slug not in statuses:
        msg = f"the report has no clause {slug!r}{did_you_mean(slug, statuses)}"
        raise UsageError(msg)
    if not chosen:
        failed = sorted(
            {case.clause["id"] for entry in entries for case in _failures(entry, "", {})}
        )
        failures = f"; failed: {', '.join(failed)}" if failed else ""
        msg = f"{slug} has not failed, it is {statuses[slug]}: nothing to {purpose}{failures}"
        raise UsageError(msg)


def _check_rebuilds(case: FailedClause) -> None:
    counterexample = case.clause.get("counterexample")
    if not isinstance(counterexample, dict) or not isinstance(counterexample.get("problem"), dict):
        name = case.candidate["name"]
        msg = f"{case.clause['id']} of {name} has no counterexample in the report"
        raise UsageError(msg)


def replay(
    failures: Sequence[FailedClause],
    *,
    target: str | None = None,
    timeout: float = DEFAULT_TIMEOUT,
    progress: Progress = lambda _step, _done, _total: None,
) -> Iterator[Replayed]:
    """Replay each case, with one worker a candidate; ``target`` replaces the report's.

    A case that passes alone is replayed in a fresh worker after all earlier calls of the run: the
    failure may depend on them.

    Raises UsageError for a target that does not resolve any more, HarnessError when no worker runs.
    """
    done = 0
    for name in dict.fromkeys(case.candidate["name"] for case in failures):
        own = [case for case in failures if case.candidate["name"] == name]
        progress(f"loading {name}", done, len(failures))
        with opened(own, target, timeout) as (supervisor, index):
            alone = []
            for case in own:
                progress(f"{name} {case.clause['id']}", done, len(failures))
                alone.append((case, _again(supervisor, index, case)))
                done += 1
        passed = [case for case, replayed in alone if replayed.outcome == "passes"]
        later = _after_the_run(passed, target, timeout, progress) if passed else {}
        for case, replayed in alone:
            yield later.get(id(case), replayed)


def _after_the_run(
    passed: Sequence[FailedClause], target: str | None, timeout: float, progress: Progress
) -> dict[int, Replayed]:
    """The cases that fail after the earlier calls of the run, by the identity of the case."""
    dependent = _after_one_call(passed, target, timeout)
    passed = [case for case in passed if id(case) not in dependent]
    return {**dependent, **(_after_all(passed, target, timeout, progress) if passed else {})}


def _after_one_call(
    passed: Sequence[FailedClause], target: str | None, timeout: float
) -> dict[int, Replayed]:
    """The cases that fail after the earlier call blamed by their diagnosis, a new worker a case."""
    dependent: dict[int, Replayed] = {}
    for case in passed:
        after = next(iter(case.clause.get("diagnosis") or [{}])).get("after")
        if not isinstance(after, dict) or not isinstance(after.get("problem"), dict):
            continue
        with opened([case], target, timeout) as (supervisor, index):
            again = _again(supervisor, index, case, after=after["problem"])
        if again.outcome != "passes":
            dependent[id(case)] = replace(again, after=f"{after.get('call')} before it")
    return dependent


def _after_all(
    passed: Sequence[FailedClause], target: str | None, timeout: float, progress: Progress
) -> dict[int, Replayed]:
    """The cases that fail after all earlier calls of the run, or after the last few calls."""
    dependent: dict[int, Replayed] = {}
    waiting = {id(case.clause): case for case in passed}
    with opened(passed, target, timeout, whole=True) as (supervisor, index):
        for clause in passed[0].candidate["clauses"]:
            if not waiting:
                break
            progress(f"after earlier calls: {clause['id']}", 0, len(passed))
            case = waiting.pop(id(clause), None)
            try:
                supervisor.perform(index, EARLIER_JOB, _earlier(clause, before_failure=bool(case)))
            except WorkerLost:  # the run got further: this is not what it did
                break
            if case is not None:
                again = _again(supervisor, index, case)
                if again.outcome != "passes":
                    dependent[id(case)] = again
    by_identity = {id(case): case for case in passed}
    return {
        number: _shortened(by_identity[number], again, target, timeout)
        for number, again in dependent.items()
    }


def _earlier(clause: Record, *, before_failure: bool) -> dict[str, Any]:
    """The examples of a clause to run again: all, or those before the failure."""
    count = clause.get("examples")
    count = count if isinstance(count, int) else 0
    return {
        "clause": clause["id"],
        "dtype": clause.get("dtype"),
        "device": clause.get("device", "cpu"),
        "count": max(count - before_failure, 0),
    }


def _shortened(case: FailedClause, again: Replayed, target: str | None, timeout: float) -> Replayed:
    """The failure after as few earlier examples of the clause as possible."""
    every = _earlier(case.clause, before_failure=True)["count"]
    for count in sorted({min(few, every) for few in FEW_EARLIER} | {every}):
        with opened([case], target, timeout, whole=True) as (supervisor, index):
            short = _again(supervisor, index, case, last=count, of=every)
        if count and short.outcome != "passes":
            many = "the example" if count == 1 else f"the {count} examples"
            return replace(short, after=f"{many} of {case.clause['id']} before it")
    return replace(again, after="all earlier calls of the run")


def foreign(failures: Sequence[FailedClause], target: str | None = None) -> list[str]:
    """A sentence for every target and source of a report that is not plainly the user's own.

    A report may come from anywhere, and its targets are imported and called. ``target`` is the
    user's own choice instead.
    """
    sentences: dict[str, None] = {}
    for case in failures:
        source = read_graph_options(case.candidate.get("beside")).source
        for named in (source, target or case.candidate.get("target")):
            if isinstance(named, str) and named != target and (why := why_foreign(named)):
                sentences[f"{named} {why}"] = None
    return list(sentences)


@contextlib.contextmanager
def opened(
    own: Sequence[FailedClause], target: str | None, timeout: float, *, whole: bool = False
) -> Iterator[tuple[Supervisor, int]]:
    """A worker that has loaded the candidate of some cases, and the candidate's number.

    With ``whole`` the worker has every clause, the profile and the seed of the report, and trial
    calls.
    """
    name, options = own[0].candidate["name"], _options(own, target)
    if whole:
        options = replace(options, only=(), trials=True, **_of_run(own[0].run))
    options = replace(options, graph_options=replace(options.graph_options, seconds=timeout))
    with Supervisor(options, timeout=timeout) as supervisor:
        supervisor.start()
        loaded = _loaded(supervisor, target)
        index = _index([entry.name for entry in loaded], name, options.targets[0])
        _check_kind(own[0].candidate, loaded[index])
        yield supervisor, index


def _loaded(supervisor: Supervisor, target: str | None) -> list[Loaded]:
    """The candidates that load; a report's target may lie in another folder."""
    try:
        return supervisor.load()
    except UsageError as error:
        if target is not None:
            raise
        msg = f"{error}; replay a report where it was written, or give --target"
        raise UsageError(msg) from None


def _check_kind(candidate: Record, loaded: Loaded) -> None:
    """Require the same kind: a layer cannot answer a core's counterexample; raises UsageError."""
    kind = candidate.get("kind", loaded.kind)
    if loaded.kind != kind:
        msg = f"{loaded.name} is a {loaded.kind}, but {candidate['name']} of the report is a {kind}"
        raise UsageError(msg)


def _options(own: Sequence[FailedClause], target: str | None) -> RunOptions:
    candidate = own[0].candidate
    if target is None and not isinstance(candidate.get("target"), str):
        msg = f"the report does not say where {candidate['name']} is: give --target"
        raise UsageError(msg)
    only = tuple(dict.fromkeys(case.clause["id"] for case in own))
    graph_options = read_graph_options(candidate.get("beside"))
    return RunOptions(
        targets=(target or candidate["target"],),
        profile="quick",
        only=only,
        graph_options=graph_options,
        trials=False,
        compile=candidate["name"].endswith(tuple(COMPILED_SUFFIXES.values())),
    )


def _of_run(run: Record) -> dict[str, Any]:
    """The options that decide the problems of a run, as far as the report has valid values."""
    options: dict[str, Any] = {}
    if run.get("profile") in PROFILES:
        options["profile"] = run["profile"]
    if isinstance(run.get("seed"), int):
        options["seed"] = run["seed"]
    selection = run.get("options")
    dtypes = selection.get("dtypes") if isinstance(selection, Mapping) else None
    if isinstance(dtypes, list) and all(name in DTYPES for name in dtypes):
        options["dtypes"] = tuple(dtypes)
    return options


def _index(names: list[str], name: str, target: str) -> int:
    """The number of the wanted candidate; raises UsageError if the choice is not clear."""
    if name in names:
        return names.index(name)
    if len(names) == 1:
        return 0
    msg = f"{target} has no candidate {name!r}{did_you_mean(name, names)}"
    raise UsageError(msg)


def _again(
    supervisor: Supervisor,
    index: int,
    case: FailedClause,
    *,
    last: int = 0,
    of: int = 0,
    after: Record | None = None,
) -> Replayed:
    """Replay a case, after the ``last`` of the ``of`` earlier examples of its clause.

    Or ``after`` a call of some problem.
    """
    clause = case.clause
    argument = {**argument_of(case), "earlier": {"last": last, "of": of}, "after": after}
    try:
        answer = supervisor.perform(index, JOB, argument)
    except WorkerLost as lost:
        answer = _lost(lost, clause)
    today = {name: answer[name] for name in ("violation", "counterexample") if name in answer}
    return Replayed(
        candidate=case.candidate["name"],
        clause={**clause, "diagnosis": [], "reason": "", **today},
        outcome=answer["outcome"],
    )


def _texts(violation: Record) -> tuple[Any, Any]:
    return violation.get("kind"), violation.get("message")


def argument_of(case: FailedClause) -> dict[str, Any]:
    """The argument of jobs that replay a case; raises UsageError where the report lacks it."""
    clause = case.clause
    violation = clause.get("violation")
    texts = (clause.get("dtype"), *(_texts(violation) if isinstance(violation, dict) else (None,)))
    if not all(isinstance(text, str) for text in texts) or clause["dtype"] not in DTYPES:
        msg = f"the report does not say how {clause['id']} of {case.candidate['name']} failed"
        raise UsageError(msg)
    return {
        "clause": clause["id"],
        "dtype": clause["dtype"],
        "device": clause.get("device", "cpu"),
        "problem": case.problem,
        "violation": {
            name: value for name, value in clause["violation"].items() if name in _VIOLATION
        },
    }


def _lost(lost: WorkerLost, clause: Record) -> dict[str, Any]:
    """The answer for a worker that hung or died."""
    same = clause["violation"]["kind"] == lost.kind
    violation = {"kind": lost.kind, "message": f"the candidate {lost}"}
    return {"outcome": "fails" if same else "differs", "violation": violation}
