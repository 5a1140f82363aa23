"""The details of what failed: requirement, diagnosis, smallest input, comparison, replay."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from . import counterexample, html_words, tensors, wording
from .html_calls import Call, attention, calls, compared
from .html_heat import Heat
from .html_record import where

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
        if told and not tensors.is_table(value):
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
