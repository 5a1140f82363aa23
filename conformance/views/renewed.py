"""What became of the file of expected failures that a run renewed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import IO, Any

from rich.text import Text

from ..base.printable import printable_record
from .printing import indented, write

Record = Mapping[str, Any]


def show_renewed(report: Record, file: IO[str]) -> None:
    """Write what was added to the file and dropped from it; nothing where no file was asked for."""
    told = report.get("written_expectations")
    if told is not None:
        write(_parts(printable_record(told)), file)


def _parts(told: Record) -> Iterator[Any]:
    if told.get("refused"):
        yield Text(str(told["refused"]), style="bold red")
        return
    counts = f"{len(told['added'])} added, {told['kept']} kept, {len(told['dropped'])} dropped"
    yield Text(f"wrote {told['file']}: {counts}", style="bold")
    for entry in told["added"]:
        yield indented(f"added {_named(entry)}", 2)
    for entry in told["dropped"]:
        yield indented(f"dropped {_named(entry)}: {entry['dropped']}", 2)
    if told["added"]:
        yield Text("say in each new entry why the failure is accepted: its reason is a TODO")


def _named(entry: Record) -> str:
    where = [entry[key] for key in ("dtype", "device") if entry.get(key) not in (None, "*")]
    which = [entry[key] for key in ("kind", "diagnosis") if entry.get(key)]
    return f"{entry['clause']} of {entry['candidate']} ({', '.join([*which, *where])})"
