"""The details of failures on a page, and how many of them a page shows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import zip_longest
from typing import Any, Final

from ..base.results import NOT_FINITE
from . import counterexample, html_words, wording
from .complete import Record
from .failure_picture import is_named, picture_of
from .html_heat import WEIGHT_AXES, Heat, heat, largest_of, picture_heats, ratios
from .html_words import Anchors, Place, filled, rendered
from .verdict_marks import replay_command
from .wording import counted, where

_INPUT_AXES: Final[Mapping[int, tuple[str, ...]]] = {
    4: ("batch", "head", "token", "channel"),
    3: ("batch", "token", "channel"),
}
_ANSWER_AXES: Final[Mapping[int, tuple[str, ...]]] = {
    4: ("batch", "head", "query", "channel"),
    3: ("batch", "query", "channel"),
}
_MASK_AXES: Final = {len(WEIGHT_AXES): WEIGHT_AXES}
_ANY_AXES: Final = (*WEIGHT_AXES, "channel", "row", "column")
_MASKS: Final = ("keep", "drop", "keep_int", "bias")


@dataclass(frozen=True, kw_only=True)
class ShownCall:
    """One call: its code, its new arguments, and its answer."""

    title: str
    arguments: list[Heat]
    answer: list[Heat]
    refused: str


def calls(data: Record) -> list[ShownCall]:
    """The calls of a counterexample; empty for an older record, which lists none."""
    made = _calls(data)
    whole = {**data, "calls": made}
    several = len(made) > 1
    shown = []
    for number, call in enumerate(made):
        before = made[number - 1] if number else None
        arguments = counterexample.new_arguments(call, before)
        title = counterexample.signature(whole, call)
        title += counterexample.differences_from_before(call, before, arguments)
        shown.append(
            ShownCall(
                title=f"call {number + 1}: {title}" if several else title,
                arguments=[*_weights(whole, call, before), *_arguments(arguments)],
                answer=list(_answer(call)) if several else [],
                refused=str((call.get("refused") or {}).get("message") or ""),
            )
        )
    return shown


def _calls(data: Record) -> list[dict[str, Any]]:
    return [filled({"arguments": {}, "keywords": {}}, call) for call in data.get("calls") or ()]


def _arguments(arguments: Record) -> Iterator[Heat]:
    for name, value in arguments.items():
        if counterexample.is_table(value):
            axes = _MASK_AXES if name in _MASKS else _INPUT_AXES
            yield _heat(name, value, axes)
            if "after" in value:
                yield _heat(f"{name} after the call", value["after"], axes)


def _weights(data: Record, call: Record, before: Record | None) -> Iterator[Heat]:
    """Yield the weights of the called layer, if the call before had different ones."""
    own, earlier = (_weights_of(made, data.get("layers") or []) for made in (call, before or {}))
    if before is None or own != earlier:
        for role, matrix in (own or {}).items():
            yield _heat(f"weights.{role}", matrix, {len(matrix["shape"]): ("row", "column")})


def _weights_of(call: Record, layers: list[Any]) -> Any:
    number = call.get("layer")
    exists = isinstance(number, int) and 0 <= number < len(layers)
    return counterexample.weights_of(call, layers) if exists else None


def _answer(call: Record) -> Iterator[Heat]:
    """Yield the answer to one of several calls; the comparison shows a single call's."""
    for name, title in (("output", "answer"), ("right", "the right answer")):
        value = call.get(name)
        if counterexample.is_table(value):
            yield _heat(title, value, _ANSWER_AXES)


def _heat(title: str, data: Record, axes: Mapping[int, tuple[str, ...]]) -> Heat:
    """Return a tensor as a table, or only the shape without recorded values."""
    shown = heat(title, data, axes=axes.get(len(data["shape"]), ()))
    if shown is not None:
        return shown
    note = f"{counterexample.shape(data)}: too large to be written out; a replay rebuilds it"
    return Heat(title=title, scale="values", grids=[], note=note)


def compared(data: Record, measured: Record) -> list[Heat]:
    """Expected, got, and error over bound; empty where no tensors were compared."""
    expected, got, bound = (data.get(name) for name in ("expected", "got", "bound"))
    if not (counterexample.is_shown(expected) and counterexample.is_shown(got)):
        return []
    # The axes have the names with which the worst element was measured.
    rank = len(got["shape"])
    axes = (_MASK_AXES if "key" in measured else _ANSWER_AXES).get(rank, ())
    scale, what = ("weight", " weights") if axes == WEIGHT_AXES else ("signed", "")
    if of := counterexample.gradient(data):
        named = tuple(name for name in measured if name in _ANY_AXES)
        axes = named if len(named) == rank else ()
        scale, what = "signed", f": {of}"
    end = largest_of(expected, got)
    shown = [
        heat(f"{name}{what}", table, scale=scale, largest=end, axes=axes)
        for name, table in (("expected", expected), ("got", got))
    ]
    if counterexample.is_shown(upstream := data.get("upstream")):
        axes_of_answer = _ANSWER_AXES.get(len(upstream["shape"]), ())
        shown.insert(0, heat("upstream: the gradient of the answer", upstream, axes=axes_of_answer))
    over = ratios(got, expected, bound, data.get("judged"))
    if over is not None:
        shown.append(heat("error / bound", over, scale="ratio", axes=axes))
    return [table for table in shown if table is not None]


def attention(data: Record, measured: Record) -> list[Heat]:
    """Return expected and actual attention weights of the calls that have them.

    Empty where the weights themselves were compared. The actual weights are returned by the
    candidate, or else derived from answers.
    """
    if "key" in measured:
        return []
    made = _calls(data)
    shown: list[Heat | None] = []
    for number, call in enumerate(made):
        prefix = f"call {number + 1}: " if len(made) > 1 else ""
        weights = filled({}, call.get("attention"))
        if counterexample.is_shown(call.get("weights")):
            weights["got"] = call["weights"]
        shown.extend(
            heat(f"{prefix}{title}", weights[title], scale="weight", axes=WEIGHT_AXES)
            for title in ("expected", "got")
            if counterexample.is_shown(weights.get(title))
        )
    return [table for table in shown if table is not None]


LONGEST_MESSAGE: Final = 2000
# The kinds of results that have details, the most urgent first.
DETAILED: Final = ("error", "fail", "unexpected", "should", "expected")
_SHARES: Final = 4
_REASONS: Final = {
    "expected-failure": "expected because",
    "unexpected-pass": "reason",
    "error": "error",
}


@dataclass(frozen=True, kw_only=True)
class ShownPicture:
    """The picture of a failure: tables of weights and of logits, with their explanation.

    ``sentence`` names the mistake, "" without a name. ``hides``: keys are hidden; ``agrees``: a
    part of the weights is right. For a picture of another result with this mistake, ``slug`` is the
    result's clause; ``anchor`` leads to the result's details.
    """

    title: str
    sentence: str
    text: str
    weights: list[Heat]
    logits: list[Heat]
    hides: bool
    agrees: bool
    anchor: str
    slug: str


@dataclass(frozen=True, kw_only=True)
class Failure:
    """The details of one result."""

    place: Place
    anchor: str
    candidate: str
    slug: str
    level: str
    kind: str
    status: str
    dtype: str
    violation: str
    pairs: list[tuple[str, str]]
    steps: list[Record]
    origin: str
    calls: list[ShownCall]
    compared: list[Heat]
    attention: list[Heat]
    picture: ShownPicture | None
    diagnosis: str
    replay: str


def anchors(record: Record) -> dict[Place, str]:
    """The anchor of every result that has details, by the numbers of candidate and result."""
    return {
        (number, place): _anchor((number, place))
        for number, candidate in enumerate(record["candidates"])
        for place, clause in enumerate(candidate["clauses"])
        if html_words.kind(clause) in DETAILED
    }


def _anchor(place: Place) -> str:
    return f"f{place[0]}-{place[1]}"


def urgency(record: Record, place: Place) -> tuple[int, int]:
    """A key that sorts the failures of a page: the worst kind, then the order of the run."""
    clause = record["candidates"][place[0]]["clauses"][place[1]]
    return DETAILED.index(html_words.kind(clause)), place[1]


def failure(record: Record, place: Place, anchor: str) -> Failure:
    """The details of one result."""
    candidate = record["candidates"][place[0]]
    clause = candidate["clauses"][place[1]]
    violation = clause["violation"] or {"kind": "", "measured": {}}
    data = clause["counterexample"] if isinstance(clause["counterexample"], Mapping) else {}
    sure = _sure(clause)
    picture = shown_picture(candidate, place)
    weights = attention(data, violation["measured"])
    return Failure(
        place=place,
        anchor=anchor,
        candidate=str(candidate["name"]),
        slug=str(clause["id"]),
        level=str(clause["level"]),
        kind=html_words.kind(clause),
        status=str(clause["status"]),
        dtype=where(clause),
        violation=str(violation["kind"]),
        pairs=[(label, _cut(text)) for label, text in _pairs(clause, data) if text],
        steps=list((clause["blame"] or {}).get("steps") or ()),
        origin=counterexample.origin(data),
        calls=calls(data),
        compared=compared(data, violation["measured"]),
        attention=[] if picture and _shows_all(picture, weights) else weights,
        picture=picture,
        diagnosis=str(sure[0].get("name") or "") if sure else "",
        replay=replay_command(candidate, clause) if data.get("problem") else "",
    )


def _sure(clause: Record) -> list[Record]:
    """Return the entries of a diagnosis that name a mistake."""
    return [entry for entry in clause["diagnosis"] if is_named(entry)]


def shown_picture(candidate: Record, place: Place) -> ShownPicture | None:
    """The picture of a result; None where the record has none."""
    number, index = place
    clause = candidate["clauses"][index]
    drawn = picture_of(candidate, clause)
    if drawn is None:
        return None
    picture, result = drawn
    at = next(n for n, other in enumerate(candidate["clauses"]) if other is result)
    own = result is clause
    heats = picture_heats(picture)
    return ShownPicture(
        title=picture.title,
        sentence=_cut(next((entry.get("text") or "" for entry in _sure(clause)), "")),
        text=picture.text,
        weights=heats[:3],
        logits=heats[3:],
        hides=any(map(any, picture.hidden)),
        agrees=not all(map(all, picture.wrong)),
        anchor=_anchor((number, at)),
        slug="" if own else str(result["id"]),
    )


def _shows_all(picture: ShownPicture, weights: list[Heat]) -> bool:
    """Tell whether a picture shows all weights: those of one call, item and head."""
    one_of_each = all(len(heat.grids) == 1 for heat in weights)
    return not picture.slug and one_of_each and len(weights) == len(("expected", "got"))


def _pairs(clause: Record, data: Record) -> Iterator[tuple[str, Any]]:
    violation = clause["violation"] or {}
    message = str(violation.get("message") or "")
    yield "requires", clause["requirement"]
    yield "found", message
    yield from wording.raised_at(violation)
    if clause["reason"] != message:
        yield _REASONS.get(clause["status"], "reason"), clause["reason"]
    yield from wording.diagnosis(clause["diagnosis"])
    yield "blame", (clause["blame"] or {}).get("text", "")
    yield "measured", _measured(violation.get("measured") or {})
    # The expected and actual values, unless the message or a tensor shows them.
    for name in ("expected", "got"):
        value = violation.get(name)
        if isinstance(value, (str, list)) and value and value not in NOT_FINITE:
            yield name, html_words.short(str(value), 300)
    yield "smallest input", wording.counterexample(data) if data else ""
    if data.get("repeated") is False:
        yield "note", "the failure did not show again when its input was run once more"


def _cut(text: Any) -> str:
    return html_words.short(str(text), LONGEST_MESSAGE)


def _measured(measured: Record) -> str:
    """Return error over bound, and the largest shares of the bound."""
    if "margin" not in measured:
        return ""
    margin = wording.margin(measured["margin"])
    text = f"{margin} times the bound" if margin not in ("inf", "nan") else "not finite"
    parts = measured.get("parts")
    if not isinstance(parts, Mapping) or not parts:
        return text
    largest = list(parts.items())[:_SHARES]
    shares = ", ".join(f"{name} {float(share):.0%}" for name, share in largest)
    return f"{text}; the bound consists of {shares}"


# Bytes of a whole page, with something to spare below two megabytes.
LARGEST_PAGE: Final = 1_900_000
# Bytes always available to failures, and the share of those with all their tensors.
_LEAST: Final = 300_000
_SHARE_IN_FULL: Final = 0.75


@dataclass(frozen=True, kw_only=True)
class FailurePieces:
    """The failures as pieces of the page, by the number of their candidate."""

    pieces: dict[int, list[str]]
    anchors: frozenset[str]
    left_out: list[str]


NOTHING: Final = FailurePieces(pieces={}, anchors=frozenset(), left_out=[])


@dataclass(kw_only=True)
class _Room:
    """The bytes left on the page, and the number of shortened failures.

    ``ways``: the ways to show the next failure, in full first. A way without enough room is dropped
    for all later failures, so that the most urgent failures are on the page.
    """

    total: int
    used: int = 0
    ways: tuple[bool, ...] = (True, False)
    brief: int = 0
    pieces: dict[Place, str] = field(default_factory=dict)

    def add(self, details: Failure) -> None:
        for full in self.ways:
            piece = rendered(
                "failure.html.jinja", failure=details, full=full, shown=[*map(_anchor, self.pieces)]
            )
            needed = self.used + size(piece)
            if needed <= self.total * (_SHARE_IN_FULL if full else 1.0):
                self.used = needed
                self.brief += not full
                self.pieces[details.place] = piece
                return
            self.ways = tuple(way for way in self.ways if way != full)


def pieces(record: Record, every: Anchors, total: int) -> FailurePieces:
    """The failures of a record in some bytes: the most urgent of each candidate, then the next."""
    by_candidate = [
        sorted((place for place in every if place[0] == number), key=partial(urgency, record))
        for number in range(len(record["candidates"]))
    ]
    order = [place for turn in zip_longest(*by_candidate) for place in turn if place is not None]
    room = _Room(total=max(total, _LEAST))
    for place in order:
        if room.ways:
            room.add(failure(record, place, every[place]))
    missing = len(order) - len(room.pieces)
    shown: dict[int, list[str]] = {}
    for place, piece in room.pieces.items():
        shown.setdefault(place[0], []).append(piece)
    left_out = []
    if room.brief:
        left_out.append(f"{counted(room.brief, 'failure')} shown without the tensors of its input")
    if missing:
        left_out.append(f"{counted(missing, 'failure')} shown in the table of clauses alone")
    ids = frozenset(every[place] for place in room.pieces)
    return FailurePieces(pieces=shown, anchors=ids, left_out=left_out)


def size(text: str) -> int:
    """The bytes of a piece of a page."""
    return len(text.encode("utf-8", errors="backslashreplace"))
