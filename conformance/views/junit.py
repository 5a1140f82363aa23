"""JUnit XML: a suite for each candidate, a test case for each clause, dtype and device.

Both published schemas hold: Jenkins' xUnit plugin's and the older one of Apache Ant. The facts are
therefore properties of the suite, and the failure's text holds all details: neither schema lets a
test case have properties or a file. XML knows no control characters;
:func:`conformance.views.complete.complete` has made them printable.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any, Final
from xml.etree import ElementTree as ET

from . import wording
from .complete import Record, complete, notes
from .verdict_marks import RunProblem, case_id, details, is_strict, mark, problems, summary_sentence

Properties = Iterable[tuple[str, str]]

_LOCALHOST: Final = "localhost"  # what the schema requires where the host is not known
_SECONDS: Final = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d")


def render_junit(record: Record) -> str:
    """Render the record as one XML document."""
    record = complete(record)
    every, candidates = problems(record), record["candidates"]
    root = ET.Element("testsuites")
    for candidate in candidates:
        name, strict = candidate["name"], is_strict(record)
        cases = [_case(candidate, clause, strict=strict) for clause in candidate["clauses"]]
        cases += [_problem_case(name, problem) for problem in every if problem.candidate == name]
        properties = _properties(record, candidate)
        root.append(_suite(record, len(root), name, properties, cases, candidate["seconds"]))
    # Problems of no single candidate have a suite of their own.
    if rest := [_problem_case("run", problem) for problem in every if not problem.candidate]:
        root.append(_suite(record, len(root), "run", _facts(record), rest, 0.0))
    ET.indent(root)
    text = ET.tostring(root, encoding="unicode")
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{text}\n'


def _suite(
    record: Record,
    number: int,
    name: str,
    properties: Properties,
    cases: Sequence[ET.Element],
    seconds: float,
) -> ET.Element:
    suite = ET.Element("testsuite", name=name, package="conformance", id=str(number))
    suite.set("hostname", _LOCALHOST)
    if started := _SECONDS.match(str(record.get("started", ""))):
        suite.set("timestamp", started[0])
    suite.set("tests", str(len(cases)))
    for attribute, tag in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
        suite.set(attribute, str(sum(case.find(tag) is not None for case in cases)))
    suite.set("time", _time(seconds))
    holder = ET.SubElement(suite, "properties")
    for key, value in properties:
        ET.SubElement(holder, "property", name=key, value=value)
    suite.extend(cases)
    ET.SubElement(suite, "system-out").text = "\n".join(notes(record))
    ET.SubElement(suite, "system-err")
    return suite


def _facts(record: Record) -> Properties:
    tool = record["tool"]
    return [
        ("version", str(tool.get("version", "unknown"))),
        ("specification", str(tool.get("specification", "unknown"))),
        ("profile", str(record["profile"])),
        ("seed", str(record["seed"])),
        *((f"environment.{key}", str(value)) for key, value in record["environment"].items()),
    ]


def _properties(record: Record, candidate: Record) -> Properties:
    location = candidate.get("location") or {}
    return [
        ("verdict", candidate["verdict"]),
        ("verdict_reason", wording.verdict_reason(candidate)),
        *((key, candidate[key]) for key in ("target", "kind")),
        *([("file", str(location["file"]))] if location.get("file") else []),
        *(("warning", str(sentence)) for sentence in candidate["warnings"]),
        *(("cause", _cause(cause)) for cause in wording.causes(candidate)),
        *_lines(candidate),
        *_facts(record),
        *(
            (case_id(clause), f"{clause['level']} {clause['status']}")
            for clause in candidate["clauses"]
        ),
    ]


def _lines(candidate: Record) -> Properties:
    said = [(cause, wording.said_line(cause)) for cause in wording.causes(candidate)]
    return [("line", f"{cause['name']}: {line}") for cause, line in said if line]


def _cause(cause: Record) -> str:
    fix = f"; fix: {cause['fix']}" if cause["fix"] else ""
    return f"{wording.cause_title(cause)}{fix}; explains {', '.join(cause['clauses'])}"


def _case(candidate: Record, clause: Record, *, strict: bool) -> ET.Element:
    case = ET.Element(
        "testcase",
        name=case_id(clause),
        classname=f"{candidate['name']}.{clause['family']}",
        time=_time(clause["seconds"]),
    )
    marked = mark(clause, strict=strict)
    if marked == "skipped":
        ET.SubElement(case, "skipped", message=summary_sentence(clause))
    elif marked != "passed":
        tag = "error" if marked == "error" else "failure"
        status = clause["status"]
        kind = (clause["violation"] or {}).get("kind") if status == "failed" else None
        failure = ET.SubElement(
            case, tag, type=str(kind or status), message=summary_sentence(clause)
        )
        failure.text = "\n".join(details(candidate, clause))
    return case


def _problem_case(owner: str, problem: RunProblem) -> ET.Element:
    case = ET.Element("testcase", name=problem.id, classname=f"{owner}.run", time=_time(0))
    ET.SubElement(case, "failure", type=problem.id, message=problem.message)
    return case


def _time(seconds: Any) -> str:
    """Return seconds with three decimals, as in both schemas."""
    return f"{max(float(seconds), 0.0):.3f}"
