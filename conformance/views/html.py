"""The record of a run as one self-contained page: opened from a file, it asks the network nothing.

The page is a function of the record alone, with or without the keys that newer records have. It
reads without its script, too: the script filters, searches and turns light into dark.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from . import html_failures, html_margins, html_matrix, html_rows
from .complete import notes
from .html_template import rendered
from .html_words import LABELS, complete, duration, kind, short, worst
from .marks import whole as overall

Record = Mapping[str, Any]


def render_html(record: Record) -> str:
    """The page; every text of the record is escaped."""
    whole = complete(record)
    anchors = html_failures.anchors(whole)
    axis = html_margins.axis(whole)
    rows = html_rows.rows(whole, anchors)
    data = {
        **header(whole),
        "stale": whole["stale_expectations"],
        "told_count": len(anchors),
        "rows": rows,
        "by_candidate": html_rows.by_candidate(rows.shown),
        "filters": html_rows.filters(whole, rows.shown),
        "matrix": html_matrix.matrix(whole, anchors),
        "axis": axis,
        "plots": html_margins.plots(whole, axis, anchors),
        "groups": html_rows.groups(whole),
    }
    room = html_failures.LARGEST_PAGE - html_failures.size(_page(data, html_failures.NOTHING))
    return _page(data, html_failures.told(whole, anchors, room))


def _page(data: Mapping[str, Any], told: html_failures.Told) -> str:
    return rendered("run.html.jinja", **data, told=told, known=told.anchors)


def header(record: Record) -> dict[str, Any]:
    """What stands above and below everything else: the verdicts, and what the run was."""
    summaries = [_summary(candidate) for candidate in record["candidates"]]
    whole = overall(record)
    return {
        "record": record,
        "overall": whole,
        "notes": [note for note in notes(record) if note != whole.reason],
        "summaries": summaries,
        "labels": LABELS,
        "shown_counts": [
            name for name in LABELS if any(summary["counts"][name] for summary in summaries)
        ],
        "facts": _facts(record),
        "facts_line": _facts_line(record),
    }


def _summary(candidate: Record) -> dict[str, Any]:
    """How often a candidate's clauses had which outcome, and its worst margin below the bound."""
    kinds = [kind(clause) for clause in candidate["clauses"]]
    passed = [clause for clause in candidate["clauses"] if clause["status"] == "passed"]
    largest = worst(clause["margin"] for clause in passed)
    named = [clause["id"] for clause in passed if clause["margin"] == largest is not None]
    return {
        "counts": {name: kinds.count(name) for name in LABELS},
        "worst": largest,
        "worst_clause": str(named[0]) if named else "",
    }


def _facts(record: Record) -> list[tuple[str, str]]:
    """Everything that one would have to know to run it again."""
    tool = record["tool"]
    said = {
        "tool": f"{tool['name']} {tool['version']}".strip(),
        "specification": tool["specification"],
        "profile": record["profile"],
        "seed": record["seed"],
        "duration": duration(record["seconds"]),
        **record["environment"],
    }
    return [(str(name), str(value)) for name, value in said.items() if value not in (None, "")]


def _facts_line(record: Record) -> str:
    """The most important of them in one line."""
    known = dict(_facts(record))
    named = ("profile", "seed", "torch", "device", "specification")
    parts = [f"{name} {short(known[name], 60)}" for name in named if name in known]
    return ", ".join(filter(None, [known["tool"], *parts, known.get("duration", "")]))
