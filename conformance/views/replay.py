"""What became of the failures of a report, for a person."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import IO, Any, Final

from rich.text import Text

from ..base.printable import printable_record
from .printing import indented, write
from .terminal import explained

_SAID: Final = {
    "fails": ("still fails", "bold red"),
    "differs": ("fails differently", "bold red"),
    "passes": ("passes now", "green"),
}

# Candidate, the clause's entry with what was found today, the outcome, and which earlier calls it
# needs.
Entry = tuple[str, Mapping[str, Any], str, str]


def show(entry: Entry, file: IO[str]) -> None:
    """Write what one counterexample gave."""
    write(_parts(entry), file)


def _parts(entry: Entry) -> Iterator[Any]:
    name, clause, outcome, after = entry
    words, style = _SAID[outcome]
    words += f", but only after {after}" if after else ""
    where = (
        clause["dtype"] if clause["device"] == "cpu" else f"{clause['dtype']} {clause['device']}"
    )
    yield Text.assemble(
        (printable_record(name), "bold"), f" {clause['id']} [{where}]: ", (words, style)
    )
    if outcome != "passes":
        yield from explained(printable_record(dict(clause)))


def show_count(outcomes: Iterable[str], file: IO[str]) -> None:
    """Write how many of them still fail."""
    every = list(outcomes)
    counted = [f"{every.count(word)} {_SAID[word][0]}" for word in _SAID if word in every]
    many = "1 counterexample" if len(every) == 1 else f"{len(every)} counterexamples"
    write([indented(f"{many}: {', '.join(counted)}", 0)], file)
