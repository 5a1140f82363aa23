"""JUnit XML: a suite a candidate, a test case a clause, dtype and device.

Written so that both published schemas hold: that of Jenkins' xUnit plugin and the older one of
Apache Ant. That is why the facts are properties of the suite, and what was found is the text of
the failure: neither schema lets a test case have properties or a file. XML knows no control
characters; :func:`conformance.views.complete.complete` has made them printable.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final
from xml.etree import ElementTree as ET

from .complete import complete, notes
from .marks import Problem, case_id, details, is_strict, mark, problems, said

Record = Mapping[str, Any]

_LOCALHOST: Final = "localhost"  # what the schema asks for where the host is not known
_SECONDS: Final = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d")


def render_junit(record: Record) -> str:
    """The record as one XML document."""
    record = complete(record)
    found = problems(record)
    root = ET.Element("testsuites")
    for number, candidate in enumerate(record["candidates"]):
        own = [problem for problem in found if problem.candidate == candidate["name"]]
        root.append(_suite(record, number, candidate, own))
    rest = [problem for problem in found if not problem.candidate]
    if rest:
        root.append(_suite_of_the_run(record, len(record["candidates"]), rest))
    ET.indent(root)
    text = ET.tostring(root, encoding="unicode")
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{text}\n'


def _suite(record: Record, number: int, candidate: Record, own: Sequence[Problem]) -> ET.Element:
    strict = is_strict(record)
    cases = [_case(candidate, clause, strict=strict) for clause in candidate["clauses"]]
    cases.extend(_problem_case(candidate["name"], problem) for problem in own)
    return _filled(
        record,
        number,
        candidate["name"],
        _properties(record, candidate),
        cases,
        candidate["seconds"],
    )


def _suite_of_the_run(record: Record, number: int, rest: Sequence[Problem]) -> ET.Element:
    """What concerns no single candidate."""
    cases = [_problem_case("run", problem) for problem in rest]
    return _filled(record, number, "run", _facts(record), cases, 0.0)


def _filled(
    record: Record,
    number: int,
    name: str,
    properties: Sequence[tuple[str, str]],
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


def _facts(record: Record) -> list[tuple[str, str]]:
    """What a suite says of its run."""
    tool = record["tool"]
    return [
        ("version", str(tool.get("version", "unknown"))),
        ("specification", str(tool.get("specification", "unknown"))),
        ("profile", str(record["profile"])),
        ("seed", str(record["seed"])),
        *((f"environment.{key}", str(value)) for key, value in record["environment"].items()),
    ]


def _properties(record: Record, candidate: Record) -> list[tuple[str, str]]:
    """What a suite says of its candidate, with the level and status of each of its cases."""
    location = candidate.get("location") or {}
    return [
        ("verdict", candidate["verdict"]),
        ("verdict_reason", candidate["verdict_reason"]),
        ("target", candidate["target"]),
        ("kind", candidate["kind"]),
        *([("file", str(location["file"]))] if location.get("file") else []),
        *(("warning", str(sentence)) for sentence in candidate["warnings"]),
        *_facts(record),
        *(
            (case_id(clause), f"{clause['level']} {clause['status']}")
            for clause in candidate["clauses"]
        ),
    ]


def _case(candidate: Record, clause: Record, *, strict: bool) -> ET.Element:
    case = ET.Element(
        "testcase",
        name=case_id(clause),
        classname=f"{candidate['name']}.{clause['family']}",
        time=_time(clause["seconds"]),
    )
    marked = mark(clause, strict=strict)
    if marked == "skipped":
        ET.SubElement(case, "skipped", message=said(clause))
    elif marked != "passed":
        tag = "error" if marked == "error" else "failure"
        found = ET.SubElement(case, tag, type=_kind(clause), message=said(clause))
        found.text = "\n".join(details(candidate, clause))
    return case


def _kind(clause: Record) -> str:
    """The kind of violation, else what the status is."""
    kind = (clause["violation"] or {}).get("kind") if clause["status"] == "failed" else None
    return str(kind or clause["status"])


def _problem_case(owner: str, problem: Problem) -> ET.Element:
    case = ET.Element("testcase", name=problem.id, classname=f"{owner}.run", time=_time(0))
    ET.SubElement(case, "failure", type=problem.id, message=problem.message)
    return case


def _time(seconds: Any) -> str:
    """Seconds with three decimals, as both schemas have them."""
    return f"{max(float(seconds), 0.0):.3f}"
