"""The common parts of pages: the completed record, looks of statuses, and templates.

Every text of a record is escaped, and nothing is fetched from anywhere. A page carries its own
style and script. The content security policy allows this script alone, by its hash, and no request
at all: even a text that escaped the escaping could neither run nor load.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import math
import re
from collections.abc import Iterable, Mapping
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Final

from . import wording
from .complete import Record
from .complete import complete as completed

if TYPE_CHECKING:
    import jinja2

Place = tuple[int, int]
# The anchor of each result that has details on the page, by the numbers of candidate and result.
Anchors = Mapping[Place, str]
# An anchor or "", and a result.
Result = tuple[str, Record]

_TOOL: Final[Record] = {"name": "attention-conformance", "version": "", "specification": ""}
_VIOLATION: Final[Record] = {"kind": "", "message": "", "measured": {}, "where": []}


def complete(record: Record) -> dict[str, Any]:
    """A copy with every key that pages read; null counts as missing."""
    copy = filled({}, record)
    copy["candidates"] = [filled({}, entry) for entry in copy.get("candidates", ())]
    for entry in copy["candidates"]:
        entry["clauses"] = [filled({}, clause) for clause in entry.get("clauses", ())]
    copy = completed(copy)
    copy["tool"] = filled(_TOOL, copy["tool"])
    for candidate in copy["candidates"]:
        for clause in candidate["clauses"]:
            clause["margin"] = number(clause["margin"])
            clause.setdefault("blame", None)
            if clause["violation"] is not None:
                clause["violation"] = filled(_VIOLATION, clause["violation"])
    return copy


def filled(defaults: Record, values: Any) -> dict[str, Any]:
    """A mapping with defaults in the place of what is missing or null."""
    own = values if isinstance(values, Mapping) else {}
    return {**defaults, **{name: value for name, value in own.items() if value is not None}}


def number(value: Any) -> float | None:
    """Return a number of a record, ``"inf"`` and ``"nan"`` included; None for other values."""
    if isinstance(value, bool) or value is None:
        return None
    try:
        return float(value)
    except (TypeError, ValueError):
        return None


def worst(margins: Iterable[float | None]) -> float | None:
    """Return the largest margin, NaN being the worst; None without margins."""
    every = [value for value in margins if value is not None]
    return max(every, key=lambda value: math.inf if math.isnan(value) else value) if every else None


def anchored(candidate: Record, number: int, anchors: Anchors) -> list[Result]:
    """Return the results of a candidate, with the anchors of their details or ""."""
    clauses = enumerate(candidate["clauses"])
    return [(anchors.get((number, place), ""), clause) for place, clause in clauses]


def group_by_clause(results: Iterable[Result]) -> dict[str, list[Result]]:
    """The results by clause, in the order in which the clauses first appear."""
    groups: dict[str, list[Result]] = {}
    for anchor, clause in results:
        groups.setdefault(str(clause["id"]), []).append((anchor, clause))
    return groups


# Class, sign and meaning of a result, in the order of a legend.
KINDS: Final[Mapping[str, tuple[str, str]]] = {
    "pass": ("✓", "passed"),
    "fail": ("✗", "failed a MUST"),
    "should": ("△", "failed a SHOULD or MAY"),
    "unexpected": ("+", "passed, but was expected to fail"),
    "error": ("!", "the harness failed"),
    "untestable": ("?", "could not be tested"),
    "expected": ("~", "failed as expected"),
    "na": ("-", "not applicable"),
    "absent": ("", "not part of the run"),
}
# The counts of a candidate, in the order of the columns.
LABELS: Final[Mapping[str, str]] = {
    "pass": "passed",
    "fail": "failed",
    "should": "SHOULD failed",
    "unexpected": "unexpected",
    "expected": "expected",
    "untestable": "untestable",
    "error": "error",
    "na": "n/a",
}
# From the worst: the sign of a cell standing for several results.
WORST_FIRST: Final = tuple(
    "error fail unexpected untestable should expected pass na absent".split()
)
_BY_STATUS: Final = {
    "passed": "pass",
    "error": "error",
    "not-applicable": "na",
    "untestable": "untestable",
    "expected-failure": "expected",
    "unexpected-pass": "unexpected",
}
_VERDICTS: Final = {
    "conforms": ("pass", "✓"),
    "conforms-with-deviations": ("pass", "✓"),
    "conforms-up-to-gauge": ("pass", "✓"),
    "inconclusive": ("untestable", "?"),
    "interrupted": ("untestable", "?"),
    "error": ("error", "!"),
}


def kind(clause: Record) -> str:
    """Return the class of a result: its status, distinguishing failures of a MUST."""
    if clause["status"] == "failed":
        return "fail" if clause["level"] == "MUST" else "should"
    return _BY_STATUS.get(clause["status"], "untestable")


def worst_kind(results: Iterable[Record]) -> str:
    """Return the worst class of the results."""
    kinds = set(map(kind, results))
    return next(name for name in WORST_FIRST if name in kinds)


def sign(name: str) -> str:
    """The sign of a class."""
    return KINDS[name][0]


def verdict(word: str) -> tuple[str, str]:
    """Class and sign of a verdict; an unknown one counts as a failure."""
    return _VERDICTS.get(word, ("fail", "✗"))


def margin(value: float | None) -> str:
    """A margin with two digits; infinity as its sign."""
    if value is None:
        return ""
    return "∞" if math.isinf(value) else f"{value:.2g}"


def short(text: str, most: int) -> str:
    """A text cut to a length, with the number of the characters that were cut off."""
    text = str(text)
    if len(text) <= most:
        return text
    return f"{text[:most]}… ({len(text) - most:,} more characters in the record)"


# Where names may be broken: browsers break after none of these.
_JOINT: Final = re.compile(r"(?<=[_./:])(?=\w)")


def joints(text: str, whole: int = 0) -> list[str]:
    """Split a text where its names may be broken, not inside words.

    Names of at most ``whole`` characters are left whole.
    """
    longer = re.compile(rf"\S{{{whole + 1},}}")
    return longer.sub(lambda word: _JOINT.sub("\0", word[0]), str(text)).split("\0")


def duration(value: float | None) -> str:
    """Return a duration in words; "" if unknown."""
    return wording.seconds(value) if value else ""


@functools.cache
def environment() -> jinja2.Environment:
    """Return the environment of the templates, with filters and globals."""
    import jinja2  # noqa: PLC0415 (a terminal needs no templates)

    made = jinja2.Environment(
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
        loader=jinja2.FunctionLoader(resource),
    )
    made.filters.update(
        coverage=wording.coverage,
        duration=duration,
        joints=joints,
        margin=margin,
        short=short,
    )
    script = resource("page.js")
    made.globals.update(
        style=resource("page.css"),
        script=script,
        policy=policy(script),
        verdict=verdict,
    )
    return made


def policy(script: str) -> str:
    """What a page may load and run: its own styles, and the script of exactly this text."""
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return (
        f"default-src 'none'; script-src 'sha256-{digest}'; style-src 'unsafe-inline'; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )


def resource(name: str) -> str:
    """The text of a file in the folder of the templates."""
    return (files(__package__) / "templates" / name).read_text(encoding="utf-8")


def rendered(name: str, **data: Any) -> str:
    """Render a template with its data."""
    return environment().get_template(name).render(**data)
