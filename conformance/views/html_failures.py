"""The details of what failed on a page, and how much of them a page shows."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import zip_longest
from typing import Any, Final

from . import counterexample, html_words, wording
from .html_heat import WEIGHT_AXES, Heat, heat, largest_of, ratios
from .html_template import rendered
from .html_words import filled, where
from .marks import counted

Data = Mapping[str, Any]

_TOKENS: Final = ("batch", "token", "channel")
_HEADS: Final = ("batch", "head", "token", "channel")
_ANSWERS: Final[Mapping[int, tuple[str, ...]]] = {
    4: ("batch", "head", "query", "channel"),
    3: ("batch", "query", "channel"),
}
_MASKS: Final = ("keep", "drop", "keep_int", "bias")


@dataclass(frozen=True, kw_only=True)
class Call:
    """One call: how it is written, the tensors it was given and not told yet, and its answer."""

    title: str
    given: list[Heat]
    answered: list[Heat]
    refused: str


def calls(data: Data) -> list[Call]:
    """The calls of a counterexample; empty for an older record, which lists none."""
    whole = {**data, "calls": [_call(call) for call in data.get("calls") or ()]}
    several = len(whole["calls"]) > 1
    return [_told(whole, number, several=several) for number in range(len(whole["calls"]))]


def _call(data: Any) -> dict[str, Any]:
    return filled({"arguments": {}, "keywords": {}}, data)


def _told(data: Data, number: int, *, several: bool) -> Call:
    call = data["calls"][number]
    before = data["calls"][number - 1] if number else None
    shown = counterexample.given(call) if before is None else counterexample.changed(call, before)
    title = counterexample.signature(data, call) + counterexample.as_before(call, before, shown)
    given = [*_weights(data, number), *_tensors(shown)]
    refused = str((call.get("refused") or {}).get("message") or "")
    answered = list(_answer(call, several=several))
    label = f"call {number + 1}: " if several else ""
    return Call(title=f"{label}{title}", given=given, answered=answered, refused=refused)


def _tensors(shown: Data) -> Iterator[Heat]:
    for name, value in shown.items():
        if not counterexample.is_table(value):
            continue
        yield _heat(name, value, axes=_axes(name, value))
        if "after" in value:
            yield _heat(f"{name} after the call", value["after"], axes=_axes(name, value))


def _axes(name: str, data: Data) -> tuple[str, ...]:
    rank = len(data["shape"])
    if name in _MASKS:
        return WEIGHT_AXES if rank == len(WEIGHT_AXES) else ()
    return {len(_HEADS): _HEADS, len(_TOKENS): _TOKENS}.get(rank, ())


def _weights(data: Data, number: int) -> Iterator[Heat]:
    """The weights of the layer that is called, where the call before had others."""
    layers = data.get("layers") or []
    call = data["calls"][number]
    own = _weights_of(call, layers)
    if number and own == _weights_of(data["calls"][number - 1], layers):
        return
    for role, matrix in (own or {}).items():
        yield _heat(f"weights.{role}", matrix, axes=("row", "column"))


def _weights_of(call: Data, layers: list[Any]) -> Any:
    number = call.get("layer")
    known = isinstance(number, int) and 0 <= number < len(layers)
    return counterexample.weights_of(call, layers) if known else None


def _answer(call: Data, *, several: bool) -> Iterator[Heat]:
    """What was answered; a single answer stands in the comparison already."""
    if not several:
        return
    for name, title in (("output", "answer"), ("right", "the right answer")):
        value = call.get(name)
        if counterexample.is_table(value):
            yield _heat(title, value, axes=_ANSWERS.get(len(value["shape"]), ()))


def _heat(title: str, data: Data, *, axes: tuple[str, ...] = ()) -> Heat:
    """A tensor as a table; one whose values are not in the record by its shape."""
    found = heat(title, data, axes=axes)
    if found is not None:
        return found
    note = f"{counterexample.shape(data)}: too large to be written out; a replay rebuilds it"
    return Heat(title=title, scale="values", grids=[], note=note)


def compared(data: Data, measured: Data) -> list[Heat]:
    """Expected, got, and error over bound; empty where no tensors were compared."""
    expected, got, bound = (data.get(name) for name in ("expected", "got", "bound"))
    if not (counterexample.is_shown(expected) and counterexample.is_shown(got)):
        return []
    axes = _compared_axes(measured, got)
    end = largest_of(expected, got)
    weights = axes == WEIGHT_AXES
    scale, what = ("weight", " weights") if weights else ("signed", "")
    found = [
        heat(f"{name}{what}", table, scale=scale, largest=end, axes=axes)
        for name, table in (("expected", expected), ("got", got))
    ]
    over = ratios(got, expected, bound, data.get("judged"))
    if over is not None:
        found.append(heat("error / bound", over, scale="ratio", axes=axes))
    return [one for one in found if one is not None]


def _compared_axes(measured: Data, got: Data) -> tuple[str, ...]:
    """The axes by the names that the worst element was told with."""
    named = WEIGHT_AXES if "key" in measured else _ANSWERS.get(len(got["shape"]), ())
    return named if len(named) == len(got["shape"]) else ()


def attention(data: Data, measured: Data) -> list[Heat]:
    """Expected and got attention weights of each call that has them.

    Empty where the weights are what was compared: they are shown there.
    """
    if "key" in measured:
        return []
    made = [_call(call) for call in data.get("calls") or ()]
    found = []
    for number, call in enumerate(made):
        prefix = f"call {number + 1}: " if len(made) > 1 else ""
        told = filled({}, call.get("attention"))
        pairs = (("expected", told.get("expected")), ("got", _got(call, told)))
        for title, value in pairs:
            if counterexample.is_shown(value):
                shown = heat(f"{prefix}{title}", value, scale="weight", axes=WEIGHT_AXES)
                found.extend([shown] if shown is not None else [])
    return found


def _got(call: Data, told: Data) -> Any:
    """The weights that the candidate returned, or those that its answers tell."""
    return call["weights"] if counterexample.is_shown(call.get("weights")) else told.get("got")


LONGEST_MESSAGE: Final = 2000
# What has details, the most urgent first.
TOLD: Final = ("error", "fail", "unexpected", "should", "expected")
_SHARES: Final = 4
# Numbers that are texts in a record; the message has them.
_NUMBERS: Final = ("nan", "inf", "-inf")

Record = Mapping[str, Any]
Place = tuple[int, int]


@dataclass(frozen=True, kw_only=True)
class Failure:
    """One result with everything there is to say about it."""

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
    steps: list[Mapping[str, Any]]
    origin: str
    calls: list[Call]
    compared: list[Heat]
    attention: list[Heat]
    diagnosis: str
    replay: str


def anchors(record: Record) -> dict[Place, str]:
    """The anchor of every result that has details, by the numbers of candidate and result."""
    return {
        (number, place): f"f{number}-{place}"
        for number, candidate in enumerate(record["candidates"])
        for place, clause in enumerate(candidate["clauses"])
        if html_words.kind(clause) in TOLD
    }


def urgency(record: Record, place: Place) -> tuple[int, int]:
    """What comes first on the page: the worst kind, then the order of the run."""
    clause = record["candidates"][place[0]]["clauses"][place[1]]
    return TOLD.index(html_words.kind(clause)), place[1]


def failure(record: Record, place: Place, anchor: str) -> Failure:
    """The details of one result."""
    candidate = record["candidates"][place[0]]
    clause = candidate["clauses"][place[1]]
    violation = clause["violation"] or {"kind": "", "measured": {}}
    data = clause["counterexample"] if isinstance(clause["counterexample"], Mapping) else {}
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
        pairs=[pair for pair in _pairs(clause, data) if pair[1]],
        steps=list((clause["blame"] or {}).get("steps") or ()),
        origin=counterexample.origin(data),
        calls=calls(data),
        compared=compared(data, violation["measured"]),
        attention=attention(data, violation["measured"]),
        diagnosis=_mistake(clause["diagnosis"]),
        replay=_replay(record, candidate, clause) if data.get("problem") else "",
    )


def _pairs(clause: Record, data: Record) -> Iterator[tuple[str, str]]:
    """Label and text of everything that is told in a sentence."""
    violation = clause["violation"] or {}
    yield "requires", _cut(clause["requirement"])
    said = str(violation.get("message") or "")
    yield "found", _cut(said)
    for label, text in wording.raised_at(violation):
        yield label, _cut(text)
    if clause["reason"] != said:
        yield _REASONS.get(clause["status"], "reason"), _cut(clause["reason"])
    for label, text in wording.diagnosis(clause["diagnosis"]):
        yield label, _cut(text)
    yield "blame", _cut((clause["blame"] or {}).get("text", ""))
    yield "measured", _measured(violation.get("measured") or {})
    yield from _values(violation)
    yield "smallest input", _cut(wording.counterexample(data)) if data else ""
    if data.get("repeated") is False:
        yield "note", "the failure did not show again when its input was asked once more"


def _mistake(diagnosis: Sequence[Record]) -> str:
    """The name of the mistake that explains a failure best, "" where none does."""
    sure = [entry for entry in diagnosis if float(entry.get("confidence") or 0) > 0]
    return str(sure[0].get("name") or "") if sure else ""


_REASONS: Final = {
    "expected-failure": "expected because",
    "unexpected-pass": "reason",
    "error": "error",
}


def _cut(text: Any) -> str:
    return html_words.short(str(text or ""), LONGEST_MESSAGE)


def _measured(measured: Record) -> str:
    """Error, bound and what the bound consists of; the message has them without the shares."""
    if "margin" not in measured:
        return ""
    margin = wording.margin(measured["margin"])
    told = f"{margin} times the bound" if margin not in ("inf", "nan") else "not finite"
    parts = measured.get("parts")
    if not isinstance(parts, Mapping) or not parts:
        return told
    named = list(parts.items())[:_SHARES]
    shares = ", ".join(f"{name} {float(share):.0%}" for name, share in named)
    return f"{told}; the bound consists of {shares}"


def _values(violation: Record) -> Iterator[tuple[str, str]]:
    """What was expected and what came, where neither is a number of the message nor a tensor."""
    for name in ("expected", "got"):
        value = violation.get(name)
        told = isinstance(value, (str, list)) and value and value not in _NUMBERS
        if told and not counterexample.is_table(value):
            yield name, html_words.short(str(value), 300)


def _replay(record: Record, candidate: Record, clause: Record) -> str:
    """The command that asks the candidate again, as a shell takes it."""
    name, slug = str(candidate["name"]), str(clause["id"])
    alone = len(record["candidates"]) == 1
    odd = "#" in name  # ends the path of a reference
    reference = f"REPORT.json#{slug}" if alone or odd else f"REPORT.json#{name}/{slug}"
    words = ["conformance", "replay", reference]
    if odd and not alone:
        words += ["--candidate", name]
    if sum(other["id"] == slug for other in candidate["clauses"]) > 1 and clause["dtype"]:
        words += ["--dtype", str(clause["dtype"])]
    return shlex.join(words)


# Bytes of a whole page, with something to spare below two megabytes.
LARGEST_PAGE: Final = 1_900_000
# What failures may have in any case, and the part of it for those that are told in full.
_LEAST: Final = 300_000
_SHARE_IN_FULL: Final = 0.75


@dataclass(frozen=True, kw_only=True)
class Told:
    """The failures of the candidates as pieces of the page, by the number of the candidate."""

    pieces: dict[int, list[str]]
    anchors: frozenset[str]
    left_out: list[str]


NOTHING: Final = Told(pieces={}, anchors=frozenset(), left_out=[])


@dataclass(kw_only=True)
class _Room:
    """The bytes that are left, and what had to be shortened.

    ``ways`` are those in which the next failure may be told, in full first: one that found no room
    is given up for all that follow, so that a page stops where the important ends.
    """

    total: int
    used: int = 0
    ways: tuple[bool, ...] = (True, False)
    brief: int = 0
    missing: int = 0
    pieces: dict[Place, str] = field(default_factory=dict)

    def place(self, one: Failure) -> None:
        """Tell a failure in as many words as there is room for."""
        for full in self.ways:
            piece = rendered("failure.html.jinja", failure=one, full=full)
            needed = self.used + size(piece)
            if needed <= self.total * (_SHARE_IN_FULL if full else 1.0):
                self.used = needed
                self.brief += not full
                self.pieces[one.place] = piece
                return
            self.ways = tuple(way for way in self.ways if way != full)


def told(record: Record, found: Mapping[Place, str], room: int) -> Told:
    """Every failure of a record, in ``room`` bytes; candidates take turns."""
    own = _Room(total=max(room, _LEAST))
    order = _in_turns(record, found)
    for place in order:
        if own.ways:
            own.place(failure(record, place, found[place]))
    own.missing = len(order) - len(own.pieces)
    pieces: dict[int, list[str]] = {}
    for place in sorted(own.pieces, key=order.index):
        pieces.setdefault(place[0], []).append(own.pieces[place])
    shown = frozenset(found[place] for place in own.pieces)
    return Told(pieces=pieces, anchors=shown, left_out=_left_out(own))


def _in_turns(record: Record, found: Mapping[Place, str]) -> list[Place]:
    """The most urgent failure of every candidate, then the next one of each."""
    by_candidate = [
        sorted((place for place in found if place[0] == number), key=partial(urgency, record))
        for number in range(len(record["candidates"]))
    ]
    return [place for turn in zip_longest(*by_candidate) for place in turn if place is not None]


def _left_out(own: _Room) -> list[str]:
    said = []
    if own.brief:
        said.append(f"{counted(own.brief, 'failure')} shown without the tensors of its input")
    if own.missing:
        said.append(f"{counted(own.missing, 'failure')} shown in the table of clauses alone")
    return said


def size(text: str) -> int:
    """The bytes of a piece of a page."""
    return len(text.encode("utf-8", errors="backslashreplace"))
