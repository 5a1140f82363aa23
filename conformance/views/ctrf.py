"""CTRF, the Common Test Report Format (https://ctrf.io): a test for each clause and dtype."""

from __future__ import annotations

import json
from collections import Counter
from datetime import datetime
from typing import Any, Final

from .complete import Record, complete, notes
from .verdict_marks import (
    RunProblem,
    case_id,
    details,
    is_strict,
    mark,
    problems,
    summary_sentence,
    whole,
)

SPECIFICATION_VERSION: Final = "0.0.0"
_STATUSES: Final = ("passed", "failed", "skipped", "pending", "other")
# An expected or tolerated failure has run: CTRF's "skipped" would say that it has not.
_OTHER: Final = ("failed", "untestable", "expected-failure")


def render_ctrf(record: Record) -> str:
    """Render the record as one JSON document."""
    record = complete(record)
    tests = [
        _test(record, candidate, clause)
        for candidate in record["candidates"]
        for clause in candidate["clauses"]
    ]
    tests += map(_problem_test, problems(record))
    tool = record["tool"]
    document = {
        "reportFormat": "CTRF",
        "specVersion": SPECIFICATION_VERSION,
        **({"timestamp": record["started"]} if record.get("started") else {}),
        "generatedBy": tool.get("name", "attention-conformance"),
        "results": {
            "tool": {
                "name": str(tool.get("name") or "attention-conformance"),
                "version": str(tool.get("version", "unknown")),
                "extra": {"specification": str(tool.get("specification", "unknown"))},
            },
            "summary": _summary(record, tests),
            "tests": tests,
            "environment": _environment(record),
        },
    }
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"


def _summary(record: Record, tests: list[dict[str, Any]]) -> dict[str, Any]:
    counts = Counter(test["status"] for test in tests)
    try:
        start = _milliseconds(datetime.fromisoformat(str(record.get("started", ""))).timestamp())
    except ValueError:  # an older record does not say when it began
        start = 0
    duration = _milliseconds(record["seconds"])
    return {
        "tests": len(tests),
        **{status: counts[status] for status in _STATUSES},
        "suites": len({test["suite"][0] for test in tests}),
        "start": start,
        "stop": start + duration,
        "duration": duration,
    }


def _environment(record: Record) -> dict[str, Any]:
    return {
        "reportName": "attention conformance",
        "testEnvironment": str(record["environment"].get("device", "cpu")),
        "healthy": whole(record).green,
        "extra": {
            **record["environment"],
            "profile": record["profile"],
            "seed": record["seed"],
            "verdicts": {entry["name"]: entry["verdict"] for entry in record["candidates"]},
            "notes": notes(record),
        },
    }


def _test(record: Record, candidate: Record, clause: Record) -> dict[str, Any]:
    status = clause["status"]
    location = candidate.get("location") or {}
    failed = status not in ("passed", "not-applicable")
    return {
        "testId": f"{candidate['name']}/{case_id(clause)}",
        "name": case_id(clause),
        "status": _status(clause, strict=is_strict(record)),
        "rawStatus": status,
        "duration": _milliseconds(clause["seconds"]),
        "suite": [candidate["name"], clause["family"]],
        "type": "conformance",
        "tags": [clause["level"], clause["family"]],
        "labels": {
            "candidate": candidate["name"],
            "clause": clause["id"],
            "level": clause["level"],
            "dtype": clause["dtype"],
            "verdict": candidate["verdict"],
        },
        "device": clause["device"],
        **({"filePath": location["file"]} if location.get("file") else {}),
        **({"line": location["line"]} if location.get("line") else {}),
        **({"message": summary_sentence(clause)} if status != "passed" else {}),
        **({"trace": "\n".join(details(candidate, clause))} if failed else {}),
        "extra": {name: clause[name] for name in ("examples", "binding", "margin")},
    }


def _status(clause: Record, *, strict: bool) -> str:
    marked = mark(clause, strict=strict)
    if marked == "skipped" and clause["status"] in _OTHER:
        return "other"
    return "failed" if marked == "error" else marked


def _problem_test(problem: RunProblem) -> dict[str, Any]:
    owner = problem.candidate or "run"
    return {
        "testId": f"{owner}/{problem.id}",
        "name": problem.id,
        "status": "failed",
        "duration": 0,
        "suite": [owner],
        "type": "conformance",
        "message": problem.message,
    }


def _milliseconds(seconds: Any) -> int:
    return round(float(seconds) * 1000)
