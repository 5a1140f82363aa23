"""The matrix as one self-contained page."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.resources import files
from typing import Any, Final

import jinja2

from .teeth import SYMBOLS, families, summary_lines, symbol

Record = Mapping[str, Any]

_CLASSES: Final = dict(
    zip(
        SYMBOLS,
        ("primary", "caught", "slipped", "passed", "untestable", "expected", "error", ""),
        strict=True,
    )
)
_LONGEST_REASON: Final = 200


def render_html(record: Record) -> str:
    """The page; every text of the record is escaped."""
    environment = jinja2.Environment(
        autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined
    )
    text = (files(__package__) / "templates" / "teeth.html.jinja").read_text(encoding="utf-8")
    columns = families(record)
    return environment.from_string(text).render(
        record=record,
        families=columns,
        clauses={clause["id"]: clause for clause in record["clauses"]},
        groups=[("Mistakes", record["mistakes"]), ("Correct candidates", record["correct"])],
        legend=[(sign, _CLASSES[sign], meaning) for sign, meaning in SYMBOLS.items()],
        verdict=list(summary_lines(record)),
        symbol=symbol,
        style_of=lambda row, slug: _CLASSES[symbol(row, slug)],
        reason_of=_reason,
    )


def _reason(row: Record, slug: str) -> str:
    """What the clause said of a row, short enough for a tooltip."""
    reason = row["reasons"].get(slug, "")
    return reason if len(reason) <= _LONGEST_REASON else f"{reason[:_LONGEST_REASON]}…"
