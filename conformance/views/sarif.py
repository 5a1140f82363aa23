"""SARIF 2.1.0: the clauses are the rules, failures are results at the candidate's line.

What passed is no result: services show every result as a finding. A failure of the harness and
what a run did not do are notifications of the invocation, for they are no findings in the code.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

from . import wording
from .complete import complete
from .marks import Problem, problems, replay_command, said
from .notes import notes
from .places import file_of, line_of, uri_of
from .sarif_rules import LEVELS, rules_of

Record = Mapping[str, Any]

SCHEMA: Final = "https://json.schemastore.org/sarif-2.1.0.json"
FINGERPRINT: Final = "attentionConformance/v1"
_ROOT: Final = "%SRCROOT%"
_FOUND: Final = ("failed", "untestable", "unexpected-pass", "expected-failure")
# These are no findings in a candidate's code: the invocation tells them.
_OF_THE_RUN: Final = ("run.interrupted", "run.empty", "run.limit")
_LOGICAL: Final = {
    "core": "function",
    "layer": "type",
    "positions": "function",
    "graph": "resource",
}


def render_sarif(record: Record) -> str:
    """The record as one JSON document with one run."""
    record = complete(record)
    found = problems(record)
    rules = rules_of(record, found)
    index = {rule["id"]: number for number, rule in enumerate(rules)}
    results = [*_results(record, index), *_problem_results(record, found, index)]
    tool = record["tool"]
    run = {
        "tool": {
            "driver": {
                "name": str(tool.get("name") or "attention-conformance"),
                "version": str(tool.get("version") or "unknown"),
                **_link("informationUri", tool.get("documentation")),
                "rules": rules,
            }
        },
        "originalUriBaseIds": {_ROOT: {"description": {"text": "The root of the repository."}}},
        "invocations": [_invocation(record, found, index)],
        "columnKind": "unicodeCodePoints",
        "results": results,
        "properties": {
            "specification": tool.get("specification"),
            "environment": record["environment"],
            "profile": record["profile"],
            "seed": record["seed"],
            "verdicts": {entry["name"]: entry["verdict"] for entry in record["candidates"]},
        },
    }
    document = {"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"


def _link(name: str, address: Any) -> dict[str, str]:
    return {name: str(address)} if address else {}


def _results(record: Record, index: Mapping[str, int]) -> Iterator[dict[str, Any]]:
    for candidate in record["candidates"]:
        for clause in candidate["clauses"]:
            if clause["status"] in _FOUND:
                yield _result(candidate, clause, index)


def _result(candidate: Record, clause: Record, index: Mapping[str, int]) -> dict[str, Any]:
    expected = clause["status"] == "expected-failure"
    result = {
        "ruleId": clause["id"],
        "ruleIndex": index[clause["id"]],
        "kind": "fail",
        "level": "note" if expected else LEVELS.get(clause["level"], "note"),
        "message": {"text": _message(candidate, clause)},
        "locations": [_location(candidate)],
        "partialFingerprints": {
            FINGERPRINT: _fingerprint(
                candidate["name"], clause["id"], clause["dtype"], clause["device"]
            )
        },
        "properties": _properties(candidate, clause),
    }
    if expected:
        result["suppressions"] = [
            {"kind": "external", "status": "accepted", "justification": clause["reason"]}
        ]
    return result


def _message(candidate: Record, clause: Record) -> str:
    """The finding first: lists show one line."""
    where = (
        clause["dtype"] if clause["device"] == "cpu" else f"{clause['dtype']}, {clause['device']}"
    )
    lines = [f"{candidate['name']} ({where}): {said(clause)}"]
    for label, text in wording.explanation(clause):
        if label not in ("requires", "found"):
            lines.append(f"{label}: {text}")
    if clause["counterexample"]:
        lines.append(f"replay: {replay_command(candidate, clause)}")
    return _without_links("\n".join(lines))


def _without_links(text: str) -> str:
    """A message in which no ``[text](target)`` is taken for a link."""
    return text.replace("](", "] (")


def _properties(candidate: Record, clause: Record) -> dict[str, Any]:
    violation = clause["violation"] or {}
    return {
        "candidate": candidate["name"],
        "target": candidate["target"],
        "verdict": candidate["verdict"],
        "status": clause["status"],
        "level": clause["level"],
        "dtype": clause["dtype"],
        "device": clause["device"],
        "margin": clause["margin"],
        "violation": violation.get("kind"),
        "diagnosis": [str(entry.get("name") or "") for entry in clause["diagnosis"]],
    }


def _location(candidate: Record) -> dict[str, Any]:
    """The line of the candidate, and in any case its name."""
    name = {
        "name": candidate["name"],
        "fullyQualifiedName": candidate["target"] or candidate["name"],
        "kind": _LOGICAL.get(candidate["kind"], "module"),
    }
    file, line = file_of(candidate), line_of(candidate)
    place = {"physicalLocation": _physical(file, line)} if file else {}
    return {**place, "logicalLocations": [name]}


def _physical(file: str, line: int | None) -> dict[str, Any]:
    uri = uri_of(file)
    artifact = {"uri": uri} if uri.startswith("file:") else {"uri": uri, "uriBaseId": _ROOT}
    region = {} if line is None else {"region": {"startLine": line}}
    return {"artifactLocation": artifact, **region}


def _fingerprint(*parts: str) -> str:
    """The same for the same question in every run, wherever the candidate's line has moved."""
    return hashlib.sha256("\0".join(parts).encode("utf-8", "backslashreplace")).hexdigest()


def _problem_results(
    record: Record, found: list[Problem], index: Mapping[str, int]
) -> Iterator[dict[str, Any]]:
    by_name = {candidate["name"]: candidate for candidate in record["candidates"]}
    for problem in found:
        if problem.id in _OF_THE_RUN:
            continue
        candidate = by_name.get(problem.candidate)
        owner = f"{problem.candidate}: " if problem.candidate else ""
        yield {
            "ruleId": problem.id,
            "ruleIndex": index[problem.id],
            "kind": "fail",
            "level": "error",
            "message": {"text": f"{owner}{problem.message}"},
            "locations": [] if candidate is None else [_location(candidate)],
            "partialFingerprints": {
                FINGERPRINT: _fingerprint(problem.candidate, problem.id, problem.subject)
            },
        }


def _invocation(record: Record, found: list[Problem], index: Mapping[str, int]) -> dict[str, Any]:
    broken = list(_broken(record, index))
    broken.extend(
        {"level": "error", "descriptor": {"id": problem.id}, "message": {"text": problem.message}}
        for problem in found
        if problem.id in _OF_THE_RUN
    )
    told = [{"level": "note", "message": {"text": note}} for note in notes(record)]
    started = record.get("started")
    return {
        "executionSuccessful": not broken,
        **({"startTimeUtc": str(started)} if started else {}),
        "toolExecutionNotifications": [*broken, *told],
        "toolConfigurationNotifications": list(_warnings(record)),
    }


def _broken(record: Record, index: Mapping[str, int]) -> Iterator[dict[str, Any]]:
    """Where the harness failed."""
    for candidate in record["candidates"]:
        for clause in candidate["clauses"]:
            if clause["status"] == "error":
                yield {
                    "level": "error",
                    "message": {"text": _message(candidate, clause)},
                    "associatedRule": {"id": clause["id"], "index": index[clause["id"]]},
                    "locations": [_location(candidate)],
                }


def _warnings(record: Record) -> Iterator[dict[str, Any]]:
    """Where a declaration is contradicted by what its candidate does."""
    for candidate in record["candidates"]:
        for sentence in candidate["warnings"]:
            yield {
                "level": "warning",
                "message": {"text": f"{candidate['name']}: {sentence}"},
                "locations": [_location(candidate)],
            }
