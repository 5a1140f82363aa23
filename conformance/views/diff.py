"""What changed from one record to another: at a terminal, and as markdown."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import IO, Any, Final

from rich.text import Text

from ..base.texts import printable_record
from .markdown import code, escaped, row, table
from .printing import indented, write

Record = Mapping[str, Any]
SECTIONS: Final = {
    "added": "new failures",
    "changed": "changed",
    "drift": "margins that moved",
    "fixed": "fixed",
    "came": "came",
    "went": "went",
}
_STYLES: Final = {True: "bold red", False: "green"}
_FAILS: Final = ("failed", "expected-failure", "error")


def show_diff(difference: Record, file: IO[str]) -> None:
    """Write the difference: what got worse first, in one line each, and a last line for all."""
    write(_parts(printable_record(difference)), file)


def _parts(found: Record) -> Iterator[Any]:
    for entry in found["conditions"]:
        yield Text(f"{entry['name']}: {entry['old']}, now {entry['new']}", style="dim")
    for entry in found["declarations"]:
        line = f"{entry['candidate']} declares {entry['name']}: {told(entry)}"
        yield Text(line, style="yellow")
    for entry in found["verdicts"]:
        line = f"{entry['candidate']}: {entry['old']}, now {entry['new']}"
        yield Text(line, style=_STYLES[entry["worse"]])
    for entry in found["expectations"]:
        yield Text(expectation(entry), style=_STYLES[entry["worse"]])
    for section, title in SECTIONS.items():
        yield from _section(title, found[section])
    yield Text(f"\n{summary(found)}", style=_STYLES[found["worse"]])


def _section(title: str, entries: Sequence[Record]) -> Iterator[Any]:
    """The entries of a section, those that are worse first."""
    if not entries:
        return
    yield Text(f"\n{title} ({len(entries)})", style="bold")
    ordered = sorted(entries, key=lambda entry: not entry["worse"])
    for line, worse in _lines(ordered):
        yield indented(Text(line, style=_STYLES[worse]), 2)


def _lines(entries: Iterable[Record]) -> Iterator[tuple[str, bool]]:
    """A line an entry; clauses that only came or went, and do not fail, share one."""
    groups: dict[tuple[str, bool], list[str]] = {}
    for entry in entries:
        if entry["clause"] is None or "how" in entry or _fails(entry):
            yield f"{where(entry)}: {how(entry)}", entry["worse"]
        else:
            key = (f"{where({**entry, 'clause': None})}, {how(entry)}", entry["worse"])
            groups.setdefault(key, []).append(entry["clause"])
    for (told_of, worse), slugs in groups.items():
        yield f"{told_of}: {', '.join(slugs)}", worse


def _fails(entry: Record) -> bool:
    return bool(entry.get("new")) and entry["new"]["status"] in _FAILS


def how(entry: Record) -> str:
    """What happened to a clause or a candidate, and how it fails now."""
    if entry["clause"] is None:
        return ", ".join(filter(None, (entry["verdict"], entry["verdict_reason"])))
    side = entry.get("new") or entry["old"]
    change = str(entry.get("how") or side["status"])
    if not _fails(entry):
        return change
    named = " or ".join(side["diagnosis"])
    diagnosed = f" ({named})" if named and named not in change else ""
    return f"{change}{diagnosed}" + (f": {side['message']}" if side["message"] else "")


def where(entry: Record) -> str:
    """Candidate, clause and the condition in which it was judged."""
    device = entry.get("device", "")
    words = [entry.get("level"), entry.get("dtype"), "" if device == "cpu" else device]
    condition = " ".join(filter(None, words))
    named = " ".join(filter(None, (entry["candidate"], entry["clause"])))
    return named + (f" [{condition}]" if condition else "")


def told(entry: Record) -> str:
    """Old and new value of a promise."""
    old, new = (("nothing" if entry[key] is None else entry[key]) for key in ("old", "new"))
    return f"{old}, now {new}"


def expectation(entry: Record) -> str:
    """An expectation that holds no more, or holds again."""
    words = f"the expected failure {entry['clause']} of {entry['candidate']}"
    if entry["worse"]:
        return f"{words} is {entry['problem']}: {entry['why']}"
    return f"{words} is no more {entry['problem']}"


def summary(found: Record) -> str:
    """The last line: how many of each, and whether anything got worse."""
    counts = [_counted(len(found[key]), title) for key, title in SECTIONS.items() if found[key]]
    listed = ", ".join([*counts, _counted(found["same"], "clauses as before")])
    return f"{'worse' if found['worse'] else 'nothing got worse'}: {listed}"


def _counted(number: int, things: str) -> str:
    """``1 new failure``, ``2 new failures``."""
    one = {"new failures": "new failure", "clauses as before": "clause as before"}
    one["margins that moved"] = "margin that moved"
    return f"{number} {one.get(things, things) if number == 1 else things}"


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
