"""Self-contained pages of a run, of a comparison and of a matrix; they fetch nothing.

A page is a function of the record alone, with or without the keys that newer records have. It
reads without its script, too: the script filters, searches and turns light into dark.
"""

from __future__ import annotations

from typing import Any, Final

from . import comparison, html_failures, html_margins, html_tables, teeth, wording
from .complete import Record, notes
from .html_heat import ratio_class
from .html_words import LABELS, Anchors, complete, duration, kind, rendered, short, worst
from .verdict_marks import whole
from .wording import cause_title, cut


def render_html(record: Record) -> str:
    """The page of a run; every text of the record is escaped."""
    record = complete(record)
    anchors = html_failures.anchors(record)
    axis = html_margins.axis(record)
    rows = html_tables.rows(record, anchors)
    data = {
        **_header(record),
        "stale": record["stale_expectations"],
        "causes": _causes(record, anchors),
        "most_causes": MOST_CAUSES,
        "failure_count": len(anchors),
        "rows": rows,
        "by_candidate": html_tables.by_candidate(rows.shown),
        "filters": html_tables.filters(record, rows.shown),
        "matrix": html_tables.matrix(record, anchors),
        "axis": axis,
        "plots": html_margins.plots(record, axis, anchors),
        "groups": html_tables.groups(record),
    }

    def page(details: html_failures.FailurePieces) -> str:
        return rendered("run.html.jinja", **data, details=details, anchors=details.anchors)

    room = html_failures.LARGEST_PAGE - html_failures.size(page(html_failures.NOTHING))
    return page(html_failures.pieces(record, anchors, room))


def render_fragment(record: Record) -> str:
    """The verdict and the causes alone, without styles or links: for notebooks."""
    record = complete(record)
    return rendered(
        "fragment.html.jinja",
        record=record,
        overall=whole(record),
        causes=_causes(record, {}),
        most_causes=MOST_CAUSES,
        anchors=frozenset[str](),
    )


# Causes of a candidate that its page opens with: those that fail most; and pictures above failures.
MOST_CAUSES: Final = 8
MOST_PICTURES: Final = 12


def _causes(record: Record, anchors: Anchors) -> list[tuple[Record, list[dict[str, Any]]]]:
    """The candidates that have causes, with the causes of each: the clauses of each as links."""
    shown = []
    left = MOST_PICTURES
    for number, candidate in enumerate(record["candidates"]):
        places = {clause["id"]: place for place, clause in enumerate(candidate["clauses"])}
        causes = [
            {
                **cause,
                "picture": None,
                "title": cause_title(cause),
                "line": wording.said_line(cause),
                "input": wording.counterexample(cause.get("counterexample") or {}),
                "links": [
                    (slug, anchors.get((number, places.get(slug, -1)), ""))
                    for slug in cause["clauses"]
                ],
            }
            for cause in wording.causes(candidate)
        ]
        for cause in causes[: min(left, MOST_CAUSES)]:
            cause["picture"] = _picture_of(candidate, number, cause)
            left -= cause["picture"] is not None
        if causes:
            shown.append((candidate, causes))
    return shown


def _picture_of(candidate: Record, number: int, cause: Record) -> html_failures.ShownPicture | None:
    """The picture of the failure that a cause shows."""
    failure = wording.failure_of(candidate, cause)
    every = enumerate(candidate["clauses"])
    place = next((at for at, clause in every if clause is failure), None)
    return None if place is None else html_failures.shown_picture(candidate, (number, place))


def _header(record: Record) -> dict[str, Any]:
    """What stands above and below everything else: the verdicts, and the facts of the run."""
    summaries = [_summary(candidate) for candidate in record["candidates"]]
    total, tool = whole(record), record["tool"]
    values = {
        "tool": f"{tool['name']} {tool['version']}".strip(),
        "specification": tool["specification"],
        "profile": record["profile"],
        "seed": record["seed"],
        "duration": duration(record["seconds"]),
        **record["environment"],
    }
    facts = {str(name): str(value) for name, value in values.items() if value not in (None, "")}
    named = ("profile", "seed", "torch", "device", "specification")
    parts = [f"{name} {short(facts[name], 60)}" for name in named if name in facts]
    return {
        "record": record,
        "overall": total,
        "verdict_reason": wording.verdict_reason,
        "notes": [note for note in notes(record) if note != total.reason],
        "summaries": summaries,
        "labels": LABELS,
        "shown_counts": [
            name for name in LABELS if any(summary["counts"][name] for summary in summaries)
        ],
        "facts": list(facts.items()),
        "facts_line": ", ".join(filter(None, [facts["tool"], *parts, facts.get("duration", "")])),
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


# Candidates whose differences a page spells out and plots; of more it has signs and numbers only.
MOST_DETAILED: Final = 6


def render_comparison(record: Record) -> str:
    """The page of a comparison; every text of the record is escaped."""
    record = complete(record)
    clauses = comparison.compared(record)
    return rendered(
        "comparison.html.jinja",
        **_header(record),
        clauses=clauses,
        not_run=comparison.not_run_everywhere(clauses),
        different=[clause for clause in clauses if clause.differs],
        conventions=comparison.conventions(record),
        circumstances=comparison.circumstances(record),
        sources=comparison.sources(record),
        matrix=html_tables.matrix(record, {}),
        axis=html_margins.axis(record),
        margins=comparison.by_margin(clauses),
        detailed=len(record["candidates"]) <= MOST_DETAILED,
        ratio_class=ratio_class,
    )


_CLASSES: Final = dict(
    zip(
        teeth.SYMBOLS,
        ("primary", "caught", "slipped", "passed", "untestable", "expected", "error", ""),
        strict=True,
    )
)
_LONGEST_REASON: Final = 200


def render_teeth(record: Record) -> str:
    """The page of the matrix of clauses and mistakes; every text of the record is escaped.

    Clauses that were run for none of its rows have no column.
    """
    rows = [*record["mistakes"], *record["correct"]]
    empty = [
        clause["id"]
        for clause in record["clauses"]
        if all(teeth.symbol(row, clause["id"]) == teeth.NOT_RUN for row in rows)
    ]
    columns = [clause for clause in record["clauses"] if clause["id"] not in empty]
    return rendered(
        "teeth.html.jinja",
        record=record,
        families=teeth.families({**record, "clauses": columns}),
        width=len(columns) + 1,
        empty=empty,
        clauses={clause["id"]: clause for clause in record["clauses"]},
        groups=[("Mistakes", record["mistakes"]), ("Correct candidates", record["correct"])],
        legend=[(sign, _CLASSES[sign], meaning) for sign, meaning in teeth.SYMBOLS.items()],
        verdict=list(teeth.summary_lines(record)),
        symbol=teeth.symbol,
        style_of=lambda row, slug: _CLASSES[teeth.symbol(row, slug)],
        reason_of=lambda row, slug: cut(row["reasons"].get(slug, ""), _LONGEST_REASON),
    )
