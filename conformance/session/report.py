"""The record of a run: one JSON document of schema 1, its verdicts and its exit code."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any, Final, cast

from ..base.graph_options import NO_GRAPH_OPTIONS, GraphOptions
from ..base.record import SCHEMA, TOOL, CandidateEntry, ClauseEntry, Record
from ..base.results import ClauseResult, plain
from ..running.workers.environment import package_version, project_url
from ..running.workers.messages import Loaded, Ready, RunOptions
from .causes import causes_of
from .expectations import Stale

_PROBLEMS: Final = {
    "stale": "stale expected failures",
    "expired": "expired expected failures",
    "different": "not the expected failures",
}
_RAN: Final = ("passed", "failed", "expected-failure", "unexpected-pass")


def verdict(
    loaded: Loaded,
    results: Sequence[ClauseResult],
    stale: Sequence[Stale] = (),
    *,
    interrupted: bool = False,
    missing: str = "",
) -> tuple[str, str]:
    """The verdict on a candidate and the reason for it in one sentence.

    ``missing`` says what was not run, without which nothing but a failure is certain.
    """
    for outcome in (
        _error(results),
        _fails(results, stale),
        ("inconclusive", missing) if missing and not interrupted else None,
        _inconclusive(results, interrupted=interrupted),
    ):
        if outcome:
            return outcome
    word, reason = _green(loaded, results)
    unknown = unchecked_masks(loaded, [result.id for result in results])
    if unknown:
        return "inconclusive", f"{word}, but {unknown}"
    left = [parameter.name for parameter in loaded.unchecked]
    return word, f"{reason}; not checked: {', '.join(left)}" if left else reason


def _green(loaded: Loaded, results: Sequence[ClauseResult]) -> tuple[str, str]:
    """The verdict where no clause speaks against the candidate."""
    if loaded.gauge:
        return "conforms-up-to-gauge", loaded.gauge
    expected = [result.id for result in results if result.status == "expected-failure"]
    mistaken = f"; it declares what only mistakes do: {', '.join(loaded.mistaken)}"
    mistaken = mistaken if loaded.mistaken else ""
    if expected:
        return "conforms-with-deviations", f"expected failures: {_some(expected)}{mistaken}"
    if loaded.deviations:
        declared = f"it declares another {', '.join(loaded.deviations)} than the standard"
        return "conforms-with-deviations", f"{declared}{mistaken}"
    return "conforms", "every applicable MUST clause passed"


def unchecked_masks(loaded: Loaded, slugs: Iterable[str]) -> str:
    """Why parameters that look like masks leave a verdict open, in words, or "".

    A run that selects no clause of masks claims nothing about them.
    """
    names = [
        parameter.name
        for parameter in loaded.unchecked
        if parameter.option == "mask" and not parameter.accepted
    ]
    if not names or not any(slug.startswith("mask.") for slug in slugs):
        return ""
    listed = " and ".join(f"`{name}`" for name in names)
    names_text = ", ".join(repr(name) for name in names)
    was = "was" if len(names) == 1 else "were"
    return (
        f"{listed} {was} not checked: declare what it means with masks= ('conformance identify "
        f"{loaded.target}' finds out), or let it stay so with unchecked=[{names_text}] or "
        f"--unchecked {','.join(names)}"
    )


def _error(results: Sequence[ClauseResult]) -> tuple[str, str] | None:
    broken = [result.id for result in results if result.status == "error"]
    return ("error", f"the harness failed in {_some(broken)}") if broken else None


def _fails(results: Sequence[ClauseResult], stale: Sequence[Stale]) -> tuple[str, str] | None:
    failed = [
        result.id for result in results if result.status == "failed" and result.level == "MUST"
    ]
    if failed:
        return "fails", f"MUST clauses failed: {_some(failed)}"
    passed = [result.id for result in results if result.status == "unexpected-pass"]
    if passed:
        return "fails", f"expected to fail but passed: {_some(passed)}"
    sentences = [_stale_sentence(problem, stale) for problem in _PROBLEMS]
    return ("fails", "; ".join(filter(None, sentences))) if stale else None


def _stale_sentence(problem: str, stale: Sequence[Stale]) -> str:
    clauses = [entry.expectation.clause for entry in stale if entry.problem == problem]
    return f"{_PROBLEMS[problem]}: {_some(clauses)}" if clauses else ""


def _inconclusive(results: Sequence[ClauseResult], *, interrupted: bool) -> tuple[str, str] | None:
    if interrupted:
        return "inconclusive", "the run was interrupted"
    untestable = [
        result.id for result in results if result.status == "untestable" and result.level == "MUST"
    ]
    if untestable:
        return "inconclusive", f"MUST clauses could not be tested: {_some(untestable)}"
    if not any(result.status in _RAN for result in results):
        reasons = {result.reason for result in results}
        why = f": {reasons.pop()}" if len(reasons) == 1 else ""
        return "inconclusive", f"no clause was run{why}"
    return None


def _some(slugs: Iterable[str], most: int = 4) -> str:
    unique = list(dict.fromkeys(slugs))
    more = f" and {len(unique) - most} more" if len(unique) > most else ""
    return f"{', '.join(unique[:most])}{more}"


def candidate_entry(
    loaded: Loaded,
    results: Sequence[ClauseResult],
    sentences: Mapping[str, str],
    stale: Sequence[Stale] = (),
    *,
    interrupted: bool = False,
    missing: str = "",
    warnings: Sequence[str] = (),
    graph_options: GraphOptions = NO_GRAPH_OPTIONS,
) -> CandidateEntry:
    """The entry for one candidate; ``warnings`` say where its declaration is contradicted.

    ``graph_options`` are in the entry of a graph, so that a replay can open the same again.
    """
    word, reason = verdict(loaded, results, stale, interrupted=interrupted, missing=missing)
    clauses = cast(
        "list[ClauseEntry]",
        [{**result.as_json(), "requirement": sentences.get(result.id, "")} for result in results],
    )
    entry = {
        "target": loaded.target,
        "name": loaded.name,
        "kind": loaded.kind,
        **({"location": loaded.location} if loaded.location is not None else {}),
        "declaration": loaded.declaration,
        **({"beside": asdict(graph_options)} if loaded.kind == "graph" else {}),
        "verdict": word,
        "verdict_reason": reason,
        "warnings": list(warnings),
        "unchecked": [asdict(parameter) for parameter in loaded.unchecked],
        "counts": dict(Counter(result.status for result in results)),
        "seconds": round(sum(result.seconds for result in results), 4),
        **_coverage(results),
        "causes": causes_of(clauses),
        "clauses": clauses,
    }
    return cast("CandidateEntry", entry)


def _coverage(results: Sequence[ClauseResult]) -> dict[str, Any]:
    """The combinations of parameters that the clauses about combinations have covered."""
    coverages = [result.coverage for result in results if result.coverage]
    if not coverages:
        return {}
    impossible = Counter[str]()
    for coverage in coverages:
        for entry in coverage["impossible"]:
            impossible[str(entry["reason"])] += int(entry["combinations"])
    return {
        "coverage": {
            "strength": max(int(coverage["strength"]) for coverage in coverages),
            "combinations": sum(int(coverage["combinations"]) for coverage in coverages),
            "covered": sum(int(coverage["covered"]) for coverage in coverages),
            "impossible": [
                {"reason": reason, "combinations": count}
                for reason, count in impossible.most_common()
            ],
        }
    }


def build_report(
    ready: Ready,
    options: RunOptions,
    candidates: Sequence[CandidateEntry],
    *,
    stale: Sequence[Stale] = (),
    seconds: float = 0.0,
    started: str = "",
    interrupted: bool = False,
    more: Mapping[str, Any] | None = None,
) -> Record:
    """The whole record, as data that JSON can hold; ``started`` is a time in ISO 8601.

    ``more`` are further keys: see :mod:`conformance.session.checking`.
    """
    environment = dict(ready.environment)
    if options.devices:
        environment["device"] = ", ".join(options.devices)
    record: Record = plain(
        {
            "schema": SCHEMA,
            "tool": _tool(ready.specification),
            "environment": environment,
            "profile": options.profile,
            "seed": options.seed,
            **({"started": started} if started else {}),
            "seconds": round(seconds, 4),
            "interrupted": interrupted,
            **(more or {}),
            "stale_expectations": [entry.as_json() for entry in stale],
            "clauses": _clauses(ready, candidates),
            "candidates": list(candidates),
        }
    )
    return record


def _tool(specification: str) -> dict[str, str]:
    """The tool that made the record, with its documentation if it has one."""
    documentation = project_url(TOOL, "Documentation")
    return {
        "name": TOOL,
        "version": package_version(TOOL),
        "specification": specification,
        **({"documentation": documentation} if documentation else {}),
    }


def _clauses(ready: Ready, candidates: Sequence[CandidateEntry]) -> dict[str, dict[str, str]]:
    """The facts on each clause of the record, by slug."""
    slugs = {clause["id"] for candidate in candidates for clause in candidate["clauses"]}
    return {slug: facts for slug, facts in ready.clauses.items() if slug in slugs}
