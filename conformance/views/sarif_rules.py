"""The rules of a SARIF log: each clause of the record, with what a person wants to know of it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from .marks import Problem
from .markup import code, escaped

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
