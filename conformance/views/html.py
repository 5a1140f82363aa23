"""Self-contained pages of a run, of a comparison and of a matrix; no requests.

A page is a function of the record alone, with or without the keys of newer records, and is readable
without the script, which filters, searches and turns light into dark. The distances of clauses to
their bounds stand on a logarithmic axis: an inline SVG for each line, by template, about 30 bytes a
mark, in the colours of the page.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from ..base.results import SITE
from . import comparison, html_failures, html_tables, html_words, teeth, wording
from .complete import Record, notes
from .html_heat import ratio_class
from .html_words import (
    LABELS,
    Anchors,
    Result,
    anchored,
    complete,
    duration,
    group_by_clause,
    kind,
    rendered,
    short,
    worst,
)
from .verdict_marks import is_strict, whole
from .wording import cause_title, counted, cut, where

# The axis always shows these decades, and never more than those.
_LEAST_SHOWN: Final = (-3, 1)
_MOST_SHOWN: Final = (-8, 8)
# Where the axis begins and ends, in percent; zero and infinity stand outside it.
_LEFT: Final = 5.0
_RIGHT: Final = 94.0
_ZERO: Final = 2.0
_INFINITE: Final = 97.5
_MOST_TICKS: Final = 7
# Lines of a candidate's plot, if all candidates' would be too many.
_MOST_LINES: Final = 1200
_FEW_LINES: Final = 20
# Marks differ in shape, too: circle, square, diamond, triangle.
SHAPES: Final = 4


@dataclass(frozen=True, kw_only=True)
class Axis:
    """The powers of ten from ``low`` to ``high``."""

    low: int
    high: int

    def place(self, margin: float) -> float:
        """The place of a margin, in percent of the width."""
        if margin <= 0:
            return _ZERO
        if not math.isfinite(margin) or margin > 10.0**self.high:
            return _INFINITE
        share = (math.log10(margin) - self.low) / (self.high - self.low)
        return round(_LEFT + max(0.0, share) * (_RIGHT - _LEFT), 1)

    @property
    def bound(self) -> float:
        """The place of the bound, in percent of the width."""
        return self.place(1.0)

    @property
    def ticks(self) -> list[tuple[float, int]]:
        """Return places and exponents of the labelled powers of ten, including 0."""
        step = max(1, math.ceil((self.high - self.low) / _MOST_TICKS))
        shown = [power for power in range(self.low, self.high + 1) if power % step == 0]
        return [(self.place(10.0**power), power) for power in shown]


@dataclass(frozen=True, kw_only=True)
class MarginMark:
    """The margin of one result: its shape, its place and its label."""

    shape: int
    at: float
    label: str


@dataclass(frozen=True, kw_only=True)
class Lane:
    """One clause of one candidate."""

    slug: str
    level: str
    worst: float
    marks: list[MarginMark]
    anchor: str

    @property
    def beyond(self) -> bool:
        """Whether the margin exceeds the bound; NaN does."""
        return not self.worst <= 1


@dataclass(frozen=True, kw_only=True)
class Plot:
    """The lanes of one candidate; ``left_out`` counts the lanes not drawn."""

    candidate: int
    name: str
    lanes: list[Lane]
    shapes: list[tuple[int, str]]
    left_out: str


def axis(record: Record) -> Axis:
    """Return one axis for all candidates, to compare them."""
    margins = (clause["margin"] for entry in record["candidates"] for clause in entry["clauses"])
    drawn = [
        math.log10(margin)
        for margin in margins
        if margin is not None and math.isfinite(margin) and margin > 0
    ]
    low = min(map(math.floor, drawn), default=0)
    high = max(map(math.ceil, drawn), default=0)
    return Axis(
        low=max(_MOST_SHOWN[0], min(low, _LEAST_SHOWN[0])),
        high=min(_MOST_SHOWN[1], max(high, _LEAST_SHOWN[1])),
    )


def plots(record: Record, scale: Axis, anchors: Anchors) -> list[Plot]:
    """The plot of every candidate that has margins."""
    shapes = shapes_of(record)
    every = []
    for number, candidate in enumerate(record["candidates"]):
        results = group_by_clause(anchored(candidate, number, anchors)).values()
        lanes = [_lane(own, scale, shapes) for own in map(_keep_measured, results) if own]
        lanes.sort(
            key=lambda lane: math.inf if math.isnan(lane.worst) else lane.worst, reverse=True
        )
        every.append((number, candidate, lanes))
    many = sum(len(lanes) for _, _, lanes in every) > _MOST_LINES
    most = max(_FEW_LINES, _MOST_LINES // len(every)) if many else _MOST_LINES
    drawn = []
    for number, candidate, lanes in every:
        if lanes:
            left = len(lanes) - most
            own = dict.fromkeys(map(where, candidate["clauses"]))
            drawn.append(
                Plot(
                    candidate=number,
                    name=str(candidate["name"]),
                    lanes=lanes[:most],
                    shapes=[(shapes[name], name) for name in own if name],
                    left_out=f"{counted(left, 'clause')} further below the bound left out"
                    if left > 0
                    else "",
                )
            )
    return drawn


def shapes_of(record: Record) -> dict[str, int]:
    """A shape for each dtype and device of the run; the fifth has the first shape again."""
    names = [where(clause) for entry in record["candidates"] for clause in entry["clauses"]]
    return {name: number % SHAPES for number, name in enumerate(dict.fromkeys(names))}


def _keep_measured(results: list[Result]) -> list[Result]:
    return [pair for pair in results if pair[1]["margin"] is not None]


def _lane(results: list[Result], scale: Axis, shapes: dict[str, int]) -> Lane:
    clauses = [clause for _, clause in results]
    marks = []
    for clause in clauses:
        label = f"{where(clause)} {html_words.margin(clause['margin'])}".strip()
        place = scale.place(clause["margin"])
        marks.append(MarginMark(shape=shapes[where(clause)], at=place, label=label))
    largest = worst(clause["margin"] for clause in clauses)
    return Lane(
        slug=str(clauses[0]["id"]),
        level=str(clauses[0]["level"]),
        worst=math.inf if largest is None else largest,
        marks=marks,
        anchor=next((anchor for anchor, _ in results if anchor), ""),
    )


def render_html(record: Record) -> str:
    """The page of a run; every text of the record is escaped."""
    record = complete(record)
    anchors = html_failures.anchors(record)
    scale = axis(record)
    rows = html_tables.rows(record, anchors)
    data = {
        **_header(record),
        "stale": [wording.expectation(entry) for entry in record["stale_expectations"]],
        "causes": _causes(record, anchors),
        "models": columns(record, anchors),
        "failure_count": len(anchors),
        "rows": rows,
        "answering": {candidate_anchor(number) for number, _ in anchors},
        "by_candidate": html_tables.group_by_candidate(rows.shown),
        "filters": html_tables.filters(record, rows.shown),
        "matrix": html_tables.matrix(record, anchors),
        "axis": scale,
        "plots": plots(record, scale, anchors),
        "groups": html_tables.groups(record),
    }

    def page(details: html_failures.FailurePieces) -> str:
        return rendered("run.html.jinja", **data, details=details, anchors=details.anchors)

    room = html_failures.LARGEST_PAGE - html_failures.size(page(html_failures.NOTHING))
    return page(html_failures.pieces(record, anchors, room))


def render_fragment(record: Record) -> str:
    """The verdict and the causes alone, without links or a style sheet: for notebooks."""
    record = complete(record)
    return rendered(
        "fragment.html.jinja",
        record=record,
        overall=whole(record),
        causes=_causes(record, {}),
        anchors=frozenset[str](),
        answering=frozenset[str](),
        strict=is_strict(record),
    )


# Causes at the top of a page, of one candidate the most failing, of several the most common; and
# pictures above failures.
MOST_CAUSES: Final = 8
MOST_CAUSES_OF_SEVERAL: Final = 24
MOST_PICTURES: Final = 12


@dataclass(frozen=True, kw_only=True)
class Holder:
    """A candidate with a cause: the place of the failures, and the blamed line.

    ``site`` is the place in a model, for an attention of a model.
    """

    name: str
    anchor: str
    line: str
    site: str


@dataclass(frozen=True, kw_only=True)
class CausesShown:
    """The causes at the top of a page, without repetition; ``left_out`` counts the rest."""

    musts: list[dict[str, Any]]
    recommendations: list[dict[str, Any]]
    left_out: int

    def __bool__(self) -> bool:
        return bool(self.musts or self.recommendations)


def _causes(record: Record, anchors: Anchors) -> CausesShown:
    """Return the causes of all candidates, equal causes once, with their candidates.

    Causes that fail a MUST and have a fix come first: of a whole model the attention to repair. Of
    several candidates the most common cause comes first.
    """
    numbers = {id(candidate): at for at, candidate in enumerate(record["candidates"])}
    groups: dict[tuple[bool, str, str], list[tuple[Record, Record]]] = {}
    for candidate in wording.sort_by_urgency(record["candidates"]):
        for cause in wording.causes(candidate):
            key = (cause["level"] == "MUST", cause_title(cause), str(cause["fix"]))
            groups.setdefault(key, []).append((candidate, cause))
    ordered = sorted(groups.items(), key=lambda one: -len(one[1]))
    most = MOST_CAUSES if len(record["candidates"]) == 1 else MOST_CAUSES_OF_SEVERAL
    shown: dict[bool, list[dict[str, Any]]] = {True: [], False: []}
    left = MOST_PICTURES
    for (must, *_), group in ordered:
        if len(shown[must]) < most:
            made = _cause_shown(group, numbers, anchors, pictured=must and left > 0)
            left -= made["picture"] is not None
            shown[must].append(made)
    left_out = len(groups) - len(shown[True]) - len(shown[False])
    return CausesShown(musts=shown[True], recommendations=shown[False], left_out=left_out)


def _cause_shown(
    group: list[tuple[Record, Record]],
    numbers: Mapping[int, int],
    anchors: Anchors,
    *,
    pictured: bool,
) -> dict[str, Any]:
    """Return a cause with the first candidate's input and clauses, and all candidates."""
    candidate, cause = group[0]
    number = numbers[id(candidate)]
    # The first dtype with details: a clause may fail in one of them alone.
    details = {
        slug: next((anchor for anchor, _ in own if anchor), "")
        for slug, own in group_by_clause(anchored(candidate, number, anchors)).items()
    }
    holders = [
        Holder(
            name=str(one["name"]),
            anchor=candidate_anchor(numbers[id(one)]),
            line=wording.said_line(own),
            site=wording.site(one),
        )
        for one, own in group
    ]
    return {
        **cause,
        "picture": _picture_of(candidate, number, cause) if pictured else None,
        "title": cause_title(cause),
        "line": holders[0].line if len(group) == 1 else "",
        "input": wording.counterexample(cause.get("counterexample") or {}),
        "found": wording.new_words(cause, wording.failure_of(candidate, cause)),
        "links": [(slug, details.get(slug, "")) for slug in cause["clauses"]],
        "families": wording.count_by_family(cause["clauses"]),
        "holders": holders,
    }


def candidate_anchor(number: int) -> str:
    """The anchor of the failures of a candidate."""
    return f"of-{number + 1}"


# Failures linked from an attention's line in the column of a model.
_MOST_LINKS: Final = 4


@dataclass(frozen=True, kw_only=True)
class SiteLine:
    """One attention in the column of a model.

    verdict: the verdict of the candidate standing for the attention, "" if not judged.
    judged_as: the index of the attention judged instead, None if judged itself.
    links: slugs and anchors of the attention's failures, and of the model's failures blaming it;
        ``left_out`` counts failures without a link.
    first: whether it is the first wrong attention of the model.
    """

    index: int
    scope: str
    words: str
    verdict: str
    judged_as: int | None
    links: list[tuple[str, str]]
    left_out: int
    first: bool

    @property
    def wrong(self) -> bool:
        """Whether the attention fails, or is blamed by the model's failures."""
        return bool(self.links)


def columns(record: Record, anchors: Anchors) -> list[tuple[str, list[SiteLine]]]:
    """The attentions of each whole model of a run, in the order of execution."""
    every = list(enumerate(record["candidates"]))
    made = []
    for number, model in every:
        parts = [
            (at, one) for at, one in every if _model_of(one) == model["target"] != one["target"]
        ]
        lines = [
            _site_line(entry, (number, model), parts, anchors) for entry in model.get("sites") or ()
        ]
        wrong = next((line.index for line in lines if line.wrong), None)
        lines = [dataclasses.replace(line, first=line.index == wrong) for line in lines]
        if lines:
            made.append((str(model["name"]), lines))
    return made


def _model_of(candidate: Record) -> str:
    """Return the target of the model an attention was cut out of, else ""."""
    return str(candidate["target"]).rpartition("#")[0] if candidate.get("site") else ""


def _site_line(
    entry: Record,
    model: tuple[int, Record],
    parts: list[tuple[int, Record]],
    anchors: Anchors,
) -> SiteLine:
    """Return the line of one attention, with the standing candidate among ``parts``."""
    index = entry["index"]
    alike = {index, *(entry.get("same_as") or ())}
    own = next(((at, one) for at, one in parts if one["site"]["index"] in alike), None)
    failed = [] if own is None else _failed(own, anchors)
    failed += [
        (slug, anchor)
        for slug, anchor, clause in _failures(model, anchors)
        if ((clause["violation"] or {}).get("measured") or {}).get(SITE) == index
    ]
    standing = None if own is None else own[1]["site"]["index"]
    words = (wording.site_heads(entry), wording.site_mask(entry), wording.site_causality(entry))
    return SiteLine(
        index=index,
        scope=str(entry.get("scope") or ", ".join(entry.get("nodes") or ())),
        words=", ".join(words),
        verdict="" if own is None else str(own[1]["verdict"]),
        judged_as=None if standing == index else standing,
        links=failed[:_MOST_LINKS],
        left_out=max(len(failed) - _MOST_LINKS, 0),
        first=False,
    )


def _failures(candidate: tuple[int, Record], anchors: Anchors) -> list[tuple[str, str, Record]]:
    number, entry = candidate
    return [
        (str(clause["id"]), anchor, clause)
        for anchor, clause in anchored(entry, number, anchors)
        if clause["status"] == "failed" and clause["level"] == "MUST"
    ]


def _failed(candidate: tuple[int, Record], anchors: Anchors) -> list[tuple[str, str]]:
    return [(slug, anchor) for slug, anchor, _ in _failures(candidate, anchors)]


def _picture_of(candidate: Record, number: int, cause: Record) -> html_failures.ShownPicture | None:
    failure = wording.failure_of(candidate, cause)
    every = enumerate(candidate["clauses"])
    place = next((at for at, clause in every if clause is failure), None)
    return None if place is None else html_failures.shown_picture(candidate, (number, place))


def _header(record: Record) -> dict[str, Any]:
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
        "reason_with_causes": wording.reason_with_causes,
        "site": wording.site,
        "notes": [note for note in notes(record) if note != total.reason],
        "summaries": summaries,
        "table": _sort_by_verdict(record["candidates"], summaries),
        "candidate_anchor": candidate_anchor,
        "strict": is_strict(record),
        "labels": LABELS,
        "shown_counts": [
            name for name in LABELS if any(summary["counts"][name] for summary in summaries)
        ],
        "facts": list(facts.items()),
        "facts_line": ", ".join(filter(None, [facts["tool"], *parts, facts.get("duration", "")])),
    }


_WORST_FIRST: Final = ("fail", "error", "untestable", "pass")


def _sort_by_verdict(
    candidates: Sequence[Record], summaries: Sequence[Record]
) -> list[tuple[int, Record, Record]]:
    every = zip(range(len(candidates)), candidates, summaries, strict=True)
    return sorted(
        every, key=lambda one: _WORST_FIRST.index(html_words.verdict(one[1]["verdict"])[0])
    )


def _summary(candidate: Record) -> dict[str, Any]:
    kinds = [kind(clause) for clause in wording.worst_results(candidate["clauses"])]
    passed = [clause for clause in candidate["clauses"] if clause["status"] == "passed"]
    largest = worst(clause["margin"] for clause in passed)
    named = [clause["id"] for clause in passed if clause["margin"] == largest is not None]
    return {
        "counts": {name: kinds.count(name) for name in LABELS},
        "worst": largest,
        "worst_clause": str(named[0]) if named else "",
    }


# Candidates whose differences a page spells out and plots; with more it has only signs and numbers.
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
        axis=axis(record),
        margins=comparison.sort_by_margin(clauses),
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
    """Return the page of the matrix of clauses and mistakes; every text is escaped.

    Clauses run for none of its rows have no column.
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
