"""CTRF, the Common Test Report Format (https://ctrf.io): a test a clause, dtype and device."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

from .complete import complete, notes
from .marks import Problem, case_id, details, is_strict, mark, problems, said, whole

Record = Mapping[str, Any]

SPECIFICATION_VERSION: Final = "0.0.0"
_STATUSES: Final = ("passed", "failed", "skipped", "pending", "other")
# A failure that is known or tolerated has run: CTRF's "skipped" would say that it has not.
_OTHER: Final = ("failed", "untestable", "expected-failure")


def render_ctrf(record: Record) -> str:
    """The record as one JSON document."""
    record = complete(record)
    found = problems(record)
    tests = [
        *(
            _test(record, candidate, clause)
            for candidate in record["candidates"]
            for clause in candidate["clauses"]
        ),
        *(_problem_test(problem) for problem in found),
    ]
    document = {
        "reportFormat": "CTRF",
        "specVersion": SPECIFICATION_VERSION,
        **({"timestamp": record["started"]} if record.get("started") else {}),
        "generatedBy": record["tool"].get("name", "attention-conformance"),
        "results": {
            "tool": _tool(record["tool"]),
            "summary": _summary(record, tests),
            "tests": tests,
            "environment": _environment(record),
        },
    }
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"


def _tool(tool: Record) -> dict[str, Any]:
    return {
        "name": str(tool.get("name") or "attention-conformance"),
        "version": str(tool.get("version", "unknown")),
        "extra": {"specification": str(tool.get("specification", "unknown"))},
    }


def _summary(record: Record, tests: list[dict[str, Any]]) -> dict[str, Any]:
    counts = Counter(test["status"] for test in tests)
    start = _milliseconds_since_1970(str(record.get("started", "")))
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
    status = _status(clause, strict=is_strict(record))
    location = candidate.get("location") or {}
    return {
        "testId": f"{candidate['name']}/{case_id(clause)}",
        "name": case_id(clause),
        "status": status,
        "rawStatus": clause["status"],
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
        **({"message": said(clause)} if clause["status"] != "passed" else {}),
        **({"trace": "\n".join(details(candidate, clause))} if _failed(clause) else {}),
        "extra": {name: clause[name] for name in ("examples", "binding", "margin")},
    }


def _status(clause: Record, *, strict: bool) -> str:
    marked = mark(clause, strict=strict)
    if marked == "skipped" and clause["status"] in _OTHER:
        return "other"
    return "failed" if marked == "error" else marked


def _failed(clause: Record) -> bool:
    return clause["status"] not in ("passed", "not-applicable")


def _problem_test(problem: Problem) -> dict[str, Any]:
    return {
        "testId": f"{problem.candidate or 'run'}/{problem.id}",
        "name": problem.id,
        "status": "failed",
        "duration": 0,
        "suite": [problem.candidate or "run"],
        "type": "conformance",
        "message": problem.message,
    }


def _milliseconds(seconds: Any) -> int:
    return round(float(seconds) * 1000)


def _milliseconds_since_1970(started: str) -> int:
    """0 where an older record does not say when it began."""
    try:
        return round(datetime.fromisoformat(started).timestamp() * 1000)
    except ValueError:
        return 0
