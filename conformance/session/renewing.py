"""Renewing a file of expected failures from a run: what ``--write-expected`` does."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import tomlkit

from ..base.expected import ExpectedFailure, entry_lines, list_line, parse, read_text
from ..base.files import write_text
from ..base.printable_text import printable
from ..errors import UsageError
from .accepted_failures import Acceptance, UnjudgedRun, accept
from .expectations import check_entries

_HEAD: Final = """\
# Failures that are known and accepted, for `conformance check --expected-failures`: say in each
# entry why. One that passes, fails in another way, or is past its day (expires = 2027-01-31) is
# red. `conformance check --write-expected` renews the file and keeps what still holds.
"""
_KEYS: Final = ("clause", "reason", "candidate", "kind", "diagnosis", "dtype", "device", "expires")
_ANY: Final = {"candidate": "*", "dtype": "*", "device": "*"}
_LONGEST: Final = 96


@dataclass(frozen=True, kw_only=True)
class ExpectationFile:
    """A file's text above the first entry, and the entries with their own texts."""

    head: str = ""
    entries: tuple[tuple[ExpectedFailure, str], ...] = ()


def read_written(text: str, path: Path) -> ExpectationFile:
    """Take a file apart; the comments directly above an entry belong to it."""
    entries = parse(text, path)
    lines = text.split("\n")
    entry_line_ranges = entry_lines(text)
    if len(entry_line_ranges) != len(entries) or (not entry_line_ranges and list_line(text)):
        return _of_list(entries, lines)
    head = "\n".join(lines[: entry_line_ranges[0].first - 1]) if entry_line_ranges else text
    texts = ["\n".join(lines[entry.first - 1 : entry.end - 1]) for entry in entry_line_ranges]
    return ExpectationFile(head=head, entries=tuple(zip(entries, texts, strict=True)))


def _of_list(entries: Sequence[ExpectedFailure], lines: Iterable[str]) -> ExpectationFile:
    """Read a file written as ``expected = [...]``, with its first comments."""
    head = itertools.takewhile(lambda line: line.lstrip().startswith("#"), lines)
    texts = tuple((entry, entry_text(entry)) for entry in entries)
    return ExpectationFile(head="\n".join(head), entries=texts)


def rewrite(before: Sequence[ExpectationFile], acceptance: Acceptance, path: Path) -> str:
    """The text of the new file, sorted by clause and candidate.

    Raises UsageError where an entry cannot be written as TOML.
    """
    own = {entry: text for file in reversed(before) for entry, text in file.entries}
    kept = [(entry, own[entry]) for entry in acceptance.kept]
    added = [
        (new.entry, entry_text(new.entry, map(_comment_line, new.comments)))
        for new in acceptance.added
    ]
    texts = [text.strip() for _, text in sorted((*kept, *added), key=lambda pair: _key(pair[0]))]
    head = next((file.head.strip() for file in before if file.head.strip()), _HEAD.strip())
    whole = "\n\n".join([head, *texts]).replace("\r\n", "\n") + "\n"
    if any("\r\n" in text for file in before for text in (file.head, *dict(file.entries).values())):
        whole = whole.replace("\n", "\r\n")
    _check(whole, acceptance.entries, path)
    return whole


def entry_text(entry: ExpectedFailure, comments: Iterable[str] = ()) -> str:
    """An entry as TOML, without the keys that restrict nothing."""
    table = tomlkit.table()
    for key in _KEYS:
        value: Any = getattr(entry, key)
        if value is not None and value != _ANY.get(key):
            table.add(key, value)
    document, array = tomlkit.document(), tomlkit.aot()
    array.append(table)
    document.append("expected", array)
    return "".join([*(f"# {comment}\n" for comment in comments), tomlkit.dumps(document)])


def _comment_line(text: str) -> str:
    """Return a one-line comment of limited length."""
    line = printable(" ".join(text.split()))
    return line if len(line) <= _LONGEST else f"{line[:_LONGEST]} ..."


def _key(entry: ExpectedFailure) -> tuple[str, ...]:
    parts = (entry.clause, entry.candidate, entry.dtype, entry.device, entry.kind, entry.diagnosis)
    return tuple(str(part or "") for part in (*parts, entry.expires, entry.reason))


def _check(text: str, entries: Sequence[ExpectedFailure], path: Path) -> None:
    """Require that the file's text parses to the given entries."""
    try:
        text.encode()
        said = sorted(map(_key, parse(text, path)))
    except (UnicodeEncodeError, UsageError):
        said = []
    if said != sorted(map(_key, entries)):
        msg = f"{path} is left as it is: a name or a reason in it cannot be written as TOML"
        raise UsageError(msg)


@dataclass(frozen=True, kw_only=True)
class Gate:
    """The files of expected failures of a run, and whether it is strict.

    expected: the file of expected failures.
    write: the file to renew; without ``expected`` it is read first, if it exists.
    strict: a failed SHOULD is red.
    """

    expected: Path | None = None
    write: Path | None = None
    strict: bool = False

    @property
    def files(self) -> list[Path]:
        """The files to read, without repetition."""
        renewed = self.write if self.write is not None and self.write.is_file() else None
        paths = [path for path in (self.expected, renewed) if path is not None]
        same = len(paths) > 1 and paths[0].resolve() == paths[1].resolve()
        return paths[:1] if same else paths

    def entries(self, slugs: Collection[str]) -> tuple[ExpectedFailure, ...]:
        """The expected failures of the run; raises UsageError for a bad file."""
        read = [parse(read_text(path), path) for path in self.files]
        for path, entries in zip(self.files, read, strict=True):
            check_entries(entries, slugs, path)
        return read[0] if read else ()


@dataclass(frozen=True, kw_only=True)
class Renewed:
    """The entries of the renewed file, and the record's ``written_expectations``."""

    entries: tuple[ExpectedFailure, ...]
    written: dict[str, Any]


def renew(gate: Gate, run: UnjudgedRun) -> Renewed | str:
    """Write the file that makes a run green; else return a sentence why it is unchanged."""
    path = gate.write
    if path is None:
        return "no file was named"
    broken = [
        result.id for some in run.results.values() for result in some if result.status == "error"
    ]
    if broken:
        return f"{path} is left as it was: the harness failed in {broken[0]}"
    try:
        before = [read_written(read_text(file), file) for file in gate.files]
        acceptance = accept(run, [entry for file in before for entry, _ in file.entries])
        text = rewrite(before, acceptance, path)
        write_text(text, path)
        entries = parse(text, path)
    except UsageError as error:
        return str(error)
    written = {
        "file": str(path),
        "kept": len(acceptance.kept),
        "added": [new.entry.as_json() for new in acceptance.added],
        "dropped": [{**entry.as_json(), "dropped": why} for entry, why in acceptance.dropped],
    }
    return Renewed(entries=entries, written=written)
