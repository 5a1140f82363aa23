"""What changed from one record to another, as markdown for a comment or a step summary."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from ..base.printable import printable_record
from .diff import SECTIONS, expectation, how, summary, told
from .markup import code, escaped, row, table

Record = Mapping[str, Any]
_ROWS: Final = 100
_CELL: Final = 300
_SIGNS: Final = {True: "❌", False: "✅"}


def render_diff_markdown(difference: Record) -> str:
    """The difference as GitHub's markdown: a summary, and a table for each kind of change."""
    found = printable_record(difference)
    return "\n\n".join(_blocks(found)) + "\n"


def _blocks(found: Record) -> Iterator[str]:
    yield f"## {_SIGNS[found['worse']]} Attention conformance: what changed"
    yield escaped(summary(found))
    facts = list(_facts(found))
    if facts:
        yield "\n".join(f"- {fact}" for fact in facts)
    for section, title in SECTIONS.items():
        if found[section]:
            yield f"### {title.capitalize()} ({len(found[section])})"
            yield from _table(found[section])


def _facts(found: Record) -> Iterator[str]:
    for entry in found["verdicts"]:
        line = f"{code(entry['candidate'])}: {escaped(entry['old'])}, now {escaped(entry['new'])}"
        yield f"{_SIGNS[entry['worse']]} {line}"
    for entry in found["expectations"]:
        yield f"{_SIGNS[entry['worse']]} {escaped(expectation(entry))}"
    for entry in found["declarations"]:
        yield f"{code(entry['candidate'])} declares {code(entry['name'])}: {escaped(told(entry))}"
    for entry in found["conditions"]:
        yield escaped(f"{entry['name']}: {entry['old']}, now {entry['new']}")


def _table(entries: Sequence[Record]) -> Iterator[str]:
    ordered = sorted(entries, key=lambda entry: not entry["worse"])
    rows = [_row(entry) for entry in ordered[:_ROWS]]
    yield table(("", "candidate", "clause", "in", "what"), rows)
    if len(entries) > _ROWS:
        yield f"_and {len(entries) - _ROWS} more: the JSON has all._"


def _row(entry: Record) -> str:
    where = " ".join(filter(None, (entry.get(key, "") for key in ("level", "dtype", "device"))))
    return row(
        _SIGNS[entry["worse"]],
        code(entry["candidate"], in_table=True),
        code(entry["clause"] or "", in_table=True),
        escaped(where),
        escaped(_short(how(entry))),
    )


def _short(text: str) -> str:
    return text if len(text) <= _CELL else f"{text[:_CELL]}…"
