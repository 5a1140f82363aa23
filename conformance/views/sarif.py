"""SARIF 2.1.0: the clauses are the rules, failures are results at the candidate's line.

What passed is no result: services show every result as a finding. A failure of the harness and
what a run did not do are notifications of the invocation, for they are no findings in the code.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from . import wording
from .complete import complete, file_of, line_of, notes, uri_of
from .markdown import code, escaped
from .marks import Problem, problems, replay_command, said

Record = Mapping[str, Any]

LEVELS: Final = {"MUST": "error", "SHOULD": "warning", "MAY": "note"}
# How GitHub's code scanning calls the severities of rules that are no matter of security.
_SEVERITIES: Final = {"MUST": "error", "SHOULD": "warning", "MAY": "recommendation"}
_OF_RUNS: Final = {
    "expectation.stale": "Every expected failure is answered by a failure.",
    "verdict": "A verdict rests on clauses that ran.",
    "run.interrupted": "A run ends by itself.",
    "run.empty": "A run checks something.",
    "run.limit": "A run asks all its clauses within its limit of time.",
}


def rules_of(record: Record, found: Sequence[Problem]) -> list[dict[str, Any]]:
    """A rule for each clause of the record, in its order, and for each other thing that is red."""
    clauses: dict[str, Record] = {}
    for candidate in record["candidates"]:
        for clause in candidate["clauses"]:
            known = clauses.setdefault(clause["id"], clause)
            if _order(clause["level"]) < _order(known["level"]):
                clauses[clause["id"]] = clause
    others = dict.fromkeys(problem.id for problem in found)
    return [
        *(_rule(record, clause) for clause in clauses.values()),
        *(_rule_of_runs(slug) for slug in others),
    ]


def _order(level: str) -> int:
    """The strictest level is a rule's own: a candidate of another kind may have a weaker one."""
    return list(LEVELS).index(level) if level in LEVELS else len(LEVELS)


def _rule(record: Record, clause: Record) -> dict[str, Any]:
    facts: Record = record["clauses"].get(clause["id"]) or {}
    sentence = str(facts.get("sentence") or clause["requirement"] or clause["id"])
    return {
        "id": clause["id"],
        "name": _pascal(clause["id"]),
        "shortDescription": {"text": sentence},
        "fullDescription": {"text": sentence},
        "help": {
            "text": _help(clause, facts, sentence),
            "markdown": _help_in_markdown(clause, facts, sentence),
        },
        **_help_uri(record["tool"], f"{clause['id']}: {facts.get('level') or clause['level']}"),
        "defaultConfiguration": {"level": LEVELS.get(clause["level"], "note")},
        "properties": {
            "tags": ["attention", clause["family"], clause["level"]],
            "precision": "very-high",
            "problem.severity": _SEVERITIES.get(clause["level"], "recommendation"),
        },
    }


def _pascal(slug: str) -> str:
    """``MaskNoLeak``: SARIF asks for a name that a person can tell from an identifier."""
    return "".join(word.capitalize() for word in slug.replace(".", "-").split("-"))


def _help(clause: Record, facts: Record, sentence: str) -> str:
    lines = [sentence, "", f"Level: {facts.get('level') or clause['level']}."]
    if facts.get("source"):
        lines.append(f"Source: {facts['source']}.")
    if facts.get("origin"):
        lines.append(f"Comes from: {facts['origin']}.")
    if facts.get("counterfactual"):
        lines.append(f"An example counts when it can tell apart: {facts['counterfactual']}.")
    lines.append(f"More: conformance explain {clause['id']}")
    return "\n".join(lines)


def _help_in_markdown(clause: Record, facts: Record, sentence: str) -> str:
    lines = [
        escaped(sentence),
        "",
        f"- Level: **{escaped(facts.get('level') or clause['level'])}**",
    ]
    if facts.get("source"):
        lines.append(f"- Source: {escaped(facts['source'])}")
    if facts.get("origin"):
        lines.append(f"- Comes from: {escaped(facts['origin'])}")
    if facts.get("counterfactual"):
        lines.append(
            f"- An example counts when it can tell apart: {escaped(facts['counterfactual'])}"
        )
    lines.append(f"- More: {code('conformance explain ' + clause['id'])}")
    return "\n".join(lines)


def _help_uri(tool: Record, heading: str) -> dict[str, str]:
    """The clause in the published specification, where the distribution says where that is.

    The anchor is what Sphinx makes of the clause's heading there.
    """
    home = str(tool.get("documentation") or "").rstrip("/")
    anchor = re.sub(r"[^a-z0-9]+", "-", heading.lower()).strip("-")
    return {"helpUri": f"{home}/docs/specification.html#{anchor}"} if home else {}


def _rule_of_runs(slug: str) -> dict[str, Any]:
    text = _OF_RUNS[slug]
    return {
        "id": slug,
        "name": _pascal(slug),
        "shortDescription": {"text": text},
        "fullDescription": {"text": text},
        "help": {"text": text, "markdown": text},
        "defaultConfiguration": {"level": "error"},
        "properties": {"tags": ["attention"], "problem.severity": "error"},
    }


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
