"""The changes from one record to another: at a terminal, and as Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import IO, Any, Final

from rich.text import Text

from ..base.printable_text import printable_record
from .complete import Record
from .markdown import code, escaped, row, table
from .printing import indented, write
from .wording import cut

# Each section of a difference with its title, and the names of its entries.
SECTIONS: Final = {
    "added": ("new failures", "new failure"),
    "changed": ("changed", "changed"),
    "drift": ("margins that moved", "margin that moved"),
    "fixed": ("fixed", "fixed"),
    "came": ("came", "came"),
    "went": ("went", "went"),
}
_STYLES: Final = {True: "bold red", False: "green"}
_FAILS: Final = ("failed", "expected-failure", "error")
_ROWS: Final = 100
_CELL: Final = 300
_SIGNS: Final = {True: "❌", False: "✅"}


def show_diff(difference: Record, file: IO[str]) -> None:
    """Write the difference: a line for each change, worse ones first, and a summary line."""
    write(_parts(printable_record(difference)), file)


def _parts(difference: Record) -> Iterator[Any]:
    for entry in difference["conditions"]:
        yield Text(f"{entry['name']}: {_change(entry)}", style="dim")
    for entry in difference["declarations"]:
        line = f"{entry['candidate']} declares {entry['name']}: {_change(entry)}"
        yield Text(line, style="yellow")
    for entry in difference["verdicts"]:
        yield Text(f"{entry['candidate']}: {_change(entry)}", style=_STYLES[entry["worse"]])
    for entry in difference["expectations"]:
        yield Text(_expectation(entry), style=_STYLES[entry["worse"]])
    for section, (title, _) in SECTIONS.items():
        if entries := difference[section]:
            yield Text(f"\n{title} ({len(entries)})", style="bold")
            for line, worse in _lines(_worse_first(entries)):
                yield indented(Text(line, style=_STYLES[worse]), 2)
    yield Text(f"\n{_summary(difference)}", style=_STYLES[difference["worse"]])


def _worse_first(entries: Sequence[Record]) -> list[Record]:
    return sorted(entries, key=lambda entry: not entry["worse"])


def _lines(entries: Iterable[Record]) -> Iterator[tuple[str, bool]]:
    """Yield a line for each entry; clauses that only came or went without failing share one."""
    groups: dict[tuple[str, bool], list[str]] = {}
    for entry in entries:
        if entry["clause"] is None or "how" in entry or _fails(entry):
            yield f"{_where(entry)}: {_how(entry)}", entry["worse"]
        else:
            key = (f"{_where({**entry, 'clause': None})}, {_how(entry)}", entry["worse"])
            groups.setdefault(key, []).append(entry["clause"])
    for (shared, worse), slugs in groups.items():
        yield f"{shared}: {', '.join(slugs)}", worse


def _fails(entry: Record) -> bool:
    return bool(entry.get("new")) and entry["new"]["status"] in _FAILS


def _how(entry: Record) -> str:
    """Describe the change of a clause or candidate, and the present failure."""
    if entry["clause"] is None:
        return ", ".join(filter(None, (entry["verdict"], entry["verdict_reason"])))
    side = entry.get("new") or entry["old"]
    change = str(entry.get("how") or side["status"])
    if not _fails(entry):
        return change
    named = " or ".join(side["diagnosis"])
    diagnosed = f" ({named})" if named and named not in change else ""
    return f"{change}{diagnosed}" + (f": {side['message']}" if side["message"] else "")


def _where(entry: Record) -> str:
    condition = _condition(entry)
    named = " ".join(filter(None, (entry["candidate"], entry["clause"])))
    return named + (f" [{condition}]" if condition else "")


def _condition(entry: Record) -> str:
    device = entry.get("device", "")
    words = (entry.get("level"), entry.get("dtype"), "" if device == "cpu" else device)
    return " ".join(filter(None, words))


def _change(entry: Record) -> str:
    old, new = ("nothing" if entry[key] is None else entry[key] for key in ("old", "new"))
    return f"{old}, now {new}"


def _expectation(entry: Record) -> str:
    words = f"the expected failure {entry['clause']} of {entry['candidate']}"
    problem = entry["problem"]
    said = "fails in another way" if problem == "different" else f"is {problem}"
    return f"{words} {said}: {entry['why']}" if entry["worse"] else f"{words} {said} no more"


def _summary(difference: Record) -> str:
    counts = [
        f"{len(difference[key])} {words[len(difference[key]) == 1]}"
        for key, words in SECTIONS.items()
        if difference[key]
    ]
    same = difference["same"]
    counts.append(f"{same} {'clause' if same == 1 else 'clauses'} as before")
    return f"{'worse' if difference['worse'] else 'nothing got worse'}: {', '.join(counts)}"


def render_diff_markdown(difference: Record) -> str:
    """The difference as GitHub's markdown: a summary, and a table for each kind of change."""
    return "\n\n".join(_blocks(printable_record(difference))) + "\n"


def _blocks(difference: Record) -> Iterator[str]:
    yield f"## {_SIGNS[difference['worse']]} Attention conformance: what changed"
    yield escaped(_summary(difference))
    if facts := list(_facts(difference)):
        yield "\n".join(f"- {fact}" for fact in facts)
    for section, (title, _) in SECTIONS.items():
        if entries := difference[section]:
            yield f"### {title.capitalize()} ({len(entries)})"
            rows = map(_row, _worse_first(entries)[:_ROWS])
            yield table(("", "candidate", "clause", "in", "what"), rows)
            if len(entries) > _ROWS:
                yield f"_and {len(entries) - _ROWS} more: the JSON has all._"


def _facts(difference: Record) -> Iterator[str]:
    for entry in difference["verdicts"]:
        yield f"{_SIGNS[entry['worse']]} {code(entry['candidate'])}: {escaped(_change(entry))}"
    for entry in difference["expectations"]:
        yield f"{_SIGNS[entry['worse']]} {escaped(_expectation(entry))}"
    for entry in difference["declarations"]:
        declares = f"{code(entry['candidate'])} declares {code(entry['name'])}"
        yield f"{declares}: {escaped(_change(entry))}"
    for entry in difference["conditions"]:
        yield escaped(f"{entry['name']}: {_change(entry)}")


def _row(entry: Record) -> str:
    return row(
        _SIGNS[entry["worse"]],
        code(entry["candidate"], in_table=True),
        code(entry["clause"] or "", in_table=True),
        escaped(_condition(entry)),
        escaped(cut(_how(entry), _CELL)),
    )
