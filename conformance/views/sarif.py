"""SARIF 2.1.0: the clauses are the rules, failures are results at the candidate's line.

A passed clause is no result: services show every result as a finding. A failure of the harness and
omissions of a run are notifications of the invocation, for they are no findings in the code.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Sequence
from typing import Any, Final
from urllib.parse import quote

from . import wording
from .complete import Record, complete, file_of, line_of, notes
from .markdown import code, escaped
from .verdict_marks import RunProblem, problems, replay_command, summary_sentence

Data = dict[str, Any]

SCHEMA: Final = "https://json.schemastore.org/sarif-2.1.0.json"
FINGERPRINT: Final = "attentionConformance/v1"
LEVELS: Final = {"MUST": "error", "SHOULD": "warning", "MAY": "note"}
# GitHub code scanning's names of severities of rules unrelated to security.
_SEVERITIES: Final = {"MUST": "error", "SHOULD": "warning", "MAY": "recommendation"}
# Rules that are no clauses: problems that make a run red without a failing clause.
_OF_RUNS: Final = {
    "expectation.stale": "Every expected failure is answered by a failure.",
    "verdict": "A verdict rests on clauses that ran.",
    "run.interrupted": "A run ends by itself.",
    "run.empty": "A run checks something.",
    "run.limit": "A run ends all its clauses within its limit of time.",
}
# No findings in a candidate's code: notifications of the invocation.
_NOTIFIED: Final = ("run.interrupted", "run.empty", "run.limit")
_ROOT: Final = "%SRCROOT%"
_RESULTS: Final = ("failed", "untestable", "unexpected-pass", "expected-failure")
_LOGICAL: Final = {
    "core": "function",
    "layer": "type",
    "positions": "function",
    "graph": "resource",
    "model": "resource",
}


def render_sarif(record: Record) -> str:
    """Render the record as one JSON document with one run."""
    record = complete(record)
    every = problems(record)
    rules = rules_of(record, every)
    index = {rule["id"]: number for number, rule in enumerate(rules)}
    tool = record["tool"]
    home = tool.get("documentation")
    run = {
        "tool": {
            "driver": {
                "name": str(tool.get("name") or "attention-conformance"),
                "version": str(tool.get("version") or "unknown"),
                **({"informationUri": str(home)} if home else {}),
                "rules": rules,
            }
        },
        "originalUriBaseIds": {_ROOT: {"description": {"text": "The root of the repository."}}},
        "invocations": [_invocation(record, every, index)],
        "columnKind": "unicodeCodePoints",
        "results": [
            *(
                _result(candidate, clause, index)
                for candidate in record["candidates"]
                for clause in wording.sort_by_cause(candidate)
                if clause["status"] in _RESULTS
            ),
            *_problem_results(record, every, index),
        ],
        "properties": {
            "specification": tool.get("specification"),
            "environment": record["environment"],
            "profile": record["profile"],
            "seed": record["seed"],
            "verdicts": {entry["name"]: entry["verdict"] for entry in record["candidates"]},
            "causes": {entry["name"]: _causes(entry) for entry in record["candidates"]},
        },
    }
    document = {"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"


def _clauses(record: Record) -> Iterator[tuple[Record, Record]]:
    for candidate in record["candidates"]:
        for clause in candidate["clauses"]:
            yield candidate, clause


def _causes(candidate: Record) -> list[Data]:
    names = ("name", "text", "fix", "level", "clauses")
    return [{name: cause[name] for name in names} for cause in wording.causes(candidate)]


def rules_of(record: Record, every: Sequence[RunProblem]) -> list[Data]:
    """Return a rule for each clause of the record, in order, and for each problem of the run."""
    clauses: dict[str, Record] = {}
    for _, clause in _clauses(record):
        first = clauses.setdefault(clause["id"], clause)
        if _order(clause["level"]) < _order(first["level"]):
            clauses[clause["id"]] = clause
    return [
        *(_rule(record, clause) for clause in clauses.values()),
        *map(_rule_of_runs, dict.fromkeys(problem.id for problem in every)),
    ]


def _order(level: str) -> int:
    """Return a level's rank; a rule has the strictest: kinds of candidates may have weaker ones."""
    return list(LEVELS).index(level) if level in LEVELS else len(LEVELS)


def _rule(record: Record, clause: Record) -> Data:
    slug, facts = clause["id"], record["clauses"].get(clause["id"]) or {}
    sentence = str(facts.get("sentence") or clause["requirement"] or slug)
    level = facts.get("level") or clause["level"]
    tells = "An example counts when it can tell apart"
    notes_of = [
        (label, str(facts[name]))
        for label, name in (
            ("Source", "source"),
            ("Comes from", "origin"),
            (tells, "counterfactual"),
        )
        if facts.get(name)
    ]
    explain = f"conformance explain {slug}"
    text = [f"Level: {level}.", *(f"{label}: {value}." for label, value in notes_of)]
    markdown = [
        f"- Level: **{escaped(level)}**",
        *(f"- {label}: {escaped(value)}" for label, value in notes_of),
    ]
    return {
        "id": slug,
        "name": _pascal(slug),
        "shortDescription": {"text": sentence},
        "fullDescription": {"text": sentence},
        "help": {
            "text": "\n".join([sentence, "", *text, f"More: {explain}"]),
            "markdown": "\n".join([escaped(sentence), "", *markdown, f"- More: {code(explain)}"]),
        },
        **_help_uri(record["tool"], f"{slug}: {level}"),
        "defaultConfiguration": {"level": LEVELS.get(clause["level"], "note")},
        "properties": {
            "tags": ["attention", clause["family"], clause["level"]],
            "precision": "very-high",
            "problem.severity": _SEVERITIES.get(clause["level"], "recommendation"),
        },
    }


def _pascal(slug: str) -> str:
    """Return ``MaskNoLeak``: SARIF wants a name distinguishable from an identifier."""
    return "".join(word.capitalize() for word in slug.replace(".", "-").split("-"))


def _help_uri(tool: Record, heading: str) -> dict[str, str]:
    """Return the clause's URL in the published specification, if the distribution names one.

    The anchor is Sphinx's for the clause's heading.
    """
    home = str(tool.get("documentation") or "").rstrip("/")
    anchor = re.sub(r"[^a-z0-9]+", "-", heading.lower()).strip("-")
    return {"helpUri": f"{home}/docs/specification.html#{anchor}"} if home else {}


def _rule_of_runs(slug: str) -> Data:
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


def _result(candidate: Record, clause: Record, index: Record) -> Data:
    expected = clause["status"] == "expected-failure"
    parts = (candidate["name"], clause["id"], clause["dtype"], clause["device"])
    properties = {
        "candidate": candidate["name"],
        "target": candidate["target"],
        "verdict": candidate["verdict"],
        **{name: clause[name] for name in ("status", "level", "dtype", "device", "margin")},
        "violation": (clause["violation"] or {}).get("kind"),
        "diagnosis": [str(entry.get("name") or "") for entry in clause["diagnosis"]],
    }
    accepted = {"kind": "external", "status": "accepted", "justification": clause["reason"]}
    return {
        "ruleId": clause["id"],
        "ruleIndex": index[clause["id"]],
        "kind": "fail",
        "level": "note" if expected else LEVELS.get(clause["level"], "note"),
        "message": {"text": _message(candidate, clause)},
        "locations": [_location(candidate, _blamed(clause))],
        "partialFingerprints": {FINGERPRINT: _fingerprint(*parts)},
        "properties": properties,
        **({"suppressions": [accepted]} if expected else {}),
    }


def _message(candidate: Record, clause: Record) -> str:
    """Return the finding first, since lists show one line, without accidental links."""
    lines = [f"{candidate['name']} ({wording.where(clause, ', ')}): {summary_sentence(clause)}"]
    for label, text in wording.explanation(clause):
        if label not in ("requires", "found"):
            lines.append(f"{label}: {text}")
    if clause["counterexample"]:
        lines.append(f"replay: {replay_command(candidate, clause)}")
    return "\n".join(lines).replace("](", "] (")


def _blamed(clause: Record) -> wording.BlamedLine | None:
    return next(filter(None, map(wording.blamed_line, clause["diagnosis"])), None)


def _location(candidate: Record, blamed: wording.BlamedLine | None = None) -> Data:
    """Return the blamed line, or the candidate's if known, always with a name."""
    name = {
        "name": candidate["name"],
        "fullyQualifiedName": candidate["target"] or candidate["name"],
        "kind": _LOGICAL.get(candidate["kind"], "module"),
    }
    file, line = file_of(candidate), line_of(candidate)
    if blamed is not None:
        file, line = blamed.file, blamed.number
    if not file:
        return {"logicalLocations": [name]}
    uri = uri_of(file)
    base = {} if uri.startswith("file:") else {"uriBaseId": _ROOT}
    region = {} if line is None else {"region": {"startLine": line}}
    physical = {"artifactLocation": {"uri": uri, **base}, **region}
    return {"physicalLocation": physical, "logicalLocations": [name]}


def uri_of(file: str) -> str:
    """A path as a reference of RFC 3986: relative, or a ``file:`` URI of an absolute one."""
    if file.startswith("/"):
        return f"file://{quote(file)}"
    if file[1:3] == ":/":  # a drive
        return f"file:///{file[:2]}{quote(file[2:])}"
    return quote(file)


def _fingerprint(*parts: str) -> str:
    """Return an identity of a result that is independent of lines."""
    return hashlib.sha256("\0".join(parts).encode("utf-8", "backslashreplace")).hexdigest()


def _problem_results(record: Record, every: Sequence[RunProblem], index: Record) -> Iterator[Data]:
    by_name = {candidate["name"]: candidate for candidate in record["candidates"]}
    for problem in every:
        if problem.id in _NOTIFIED:
            continue
        candidate = by_name.get(problem.candidate)
        owner = f"{problem.candidate}: " if problem.candidate else ""
        fingerprint = _fingerprint(problem.candidate, problem.id, problem.subject)
        yield {
            "ruleId": problem.id,
            "ruleIndex": index[problem.id],
            "kind": "fail",
            "level": "error",
            "message": {"text": f"{owner}{problem.message}"},
            "locations": [] if candidate is None else [_location(candidate)],
            "partialFingerprints": {FINGERPRINT: fingerprint},
        }


def _invocation(record: Record, every: Sequence[RunProblem], index: Record) -> Data:
    # Failures of the harness, and omissions of the run.
    broken: list[Data] = [
        {
            "level": "error",
            "message": {"text": _message(candidate, clause)},
            "associatedRule": {"id": clause["id"], "index": index[clause["id"]]},
            "locations": [_location(candidate)],
        }
        for candidate, clause in _clauses(record)
        if clause["status"] == "error"
    ]
    broken += (
        {"level": "error", "descriptor": {"id": problem.id}, "message": {"text": problem.message}}
        for problem in every
        if problem.id in _NOTIFIED
    )
    noted = [{"level": "note", "message": {"text": note}} for note in notes(record)]
    started = record.get("started")
    return {
        "executionSuccessful": not broken,
        **({"startTimeUtc": str(started)} if started else {}),
        "toolExecutionNotifications": [*broken, *noted],
        # Contradictions of a candidate to its declaration.
        "toolConfigurationNotifications": [
            {
                "level": "warning",
                "message": {"text": f"{candidate['name']}: {sentence}"},
                "locations": [_location(candidate)],
            }
            for candidate in record["candidates"]
            for sentence in candidate["warnings"]
        ],
    }
