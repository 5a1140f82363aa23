"""Libraries in turn: an environment, its candidates, a record; goes on where it was stopped."""

from __future__ import annotations

import datetime as dt
import json
import platform
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from importlib.metadata import version as installed_version
from pathlib import Path
from typing import Final, TextIO

from . import environment, judging, records
from .library import Library, SurveyError

_SHARD: Final = re.compile(r"([1-9]\d*)/([1-9]\d*)")
_IMPORTING: Final = 300.0
_CHECKOUT: Final = Path(__file__).resolve().parent.parent


def shard(names: Sequence[str], part: str | None) -> list[str]:
    """The names of one part of several, such as "2/3"; all of them without a part."""
    if part is None:
        return list(names)
    match = _SHARD.fullmatch(part)
    number, of = (int(match[1]), int(match[2])) if match else (1, 0)
    if number > of:
        msg = f"--shard {part}: write I/N, a part from 1 to N of N parts, such as 2/3"
        raise SurveyError(msg)
    return list(names[number - 1 :: of])


class Journal:
    """Which libraries of a sweep are done, as a file; it is removed when all of them are.

    A library whose file changed since is done anew.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def _done(self) -> dict[str, str]:
        if not self.path.exists():
            return {}
        done: dict[str, str] = json.loads(self.path.read_text(encoding="utf-8"))
        return done

    def left(self, libraries: Iterable[Library]) -> list[Library]:
        """The libraries that are not done."""
        done = self._done()
        return [library for library in libraries if done.get(library.name) != library.digest]

    def add(self, library: Library) -> None:
        """Note that a library is done."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        done = {**self._done(), library.name: library.digest}
        self.path.write_text(json.dumps(done, indent=1), encoding="utf-8")

    def close(self) -> None:
        """End the sweep: the next one begins with the first library."""
        self.path.unlink(missing_ok=True)


def survey(
    library: Library,
    folder: Path,
    *,
    keep: bool = False,
    only: Sequence[str] = (),
    save: Callable[[records.Record], None],
) -> records.Record:
    """The record of a library, judged in an environment of its own below ``folder``.

    What cannot be installed or imported is a record with the reason. ``only`` names candidates.
    ``save`` gets the record after each of them, so that nothing is lost where a run is stopped.
    """
    so_far = judged(library, folder, keep=keep, only=only, commit=commit())
    return kept(library, so_far, save, sys.stdout)


def kept(
    library: Library,
    so_far: Iterable[records.Record],
    save: Callable[[records.Record], None],
    progress: TextIO,
) -> records.Record:
    """The last of a library's records; each is saved, and its new rows are written."""
    printed, record = 0, {}
    for record in so_far:
        for row in record["candidates"][printed:]:
            print(f"{library.name} {row['name']}: {row['verdict']}", file=progress, flush=True)
        printed = max(printed, len(record["candidates"]))
        save(record)
    return record


def judged(
    library: Library, folder: Path, *, keep: bool, only: Sequence[str], commit: str
) -> Iterator[records.Record]:
    """The record of a library after each of its candidates, or once with the reason."""
    began = time.monotonic()
    own = folder / library.name
    record: records.Record = {
        "survey": records.SCHEMA,
        "library": library.name,
        "distribution": library.distribution,
        "version": "",
        "requirements": list(library.pins),
        "date": dt.datetime.now(dt.UTC).date().isoformat(),
        "tool": installed_version("attention-conformance"),
        "python": platform.python_version(),
        "torch": installed_version("torch"),
        "status": "judged",
        "reason": "",
        "seconds": 0.0,
        "candidates": [],
    }
    made = {"date": record["date"], "digest": library.digest, "commit": commit}
    try:
        with environment.environment(library, own, keep=keep) as python:
            record["version"] = environment.version(python, library.distribution)
            if reason := _import(python, library):
                record |= {"status": "not imported", "reason": reason}
            else:
                for candidate in only or library.candidates:
                    rows = judging.judge(python, library, candidate, own)
                    record["candidates"] += [{**row, **made} for row in rows]
                    record["seconds"] = round(time.monotonic() - began, 1)
                    yield records.decided(record, library)
    except environment.InstallationError as error:
        record |= {"status": "not installed", "reason": judging.short(error)}
    if record["status"] != "judged":
        record["seconds"] = round(time.monotonic() - began, 1)
        yield records.decided(record, library)


def commit() -> str:
    """The commit of the checkout, with "+" where the harness differs from it; "" without git."""
    git = shutil.which("git")
    if git is None:
        return ""
    said = []
    for command in (("rev-parse", "HEAD"), ("status", "--porcelain", "conformance", "reference")):
        try:
            done = subprocess.run(
                [git, "-C", str(_CHECKOUT), *command], capture_output=True, text=True, check=True
            )
        except subprocess.CalledProcessError:
            return ""
        said.append(done.stdout.strip())
    head, changed = said
    return head[:12] + ("+" if changed else "")


def _import(python: Path, library: Library) -> str:
    """Why a library's file cannot be imported in its environment, else ""."""
    folder, module = str(library.path.parent), library.path.stem
    script = f"import sys; sys.path.insert(0, {folder!r}); import {module}"
    try:
        done = subprocess.run(
            [python, "-I", "-c", script],
            capture_output=True,
            text=True,
            timeout=_IMPORTING,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"its import took longer than {_IMPORTING:g} s"
    if not done.returncode:
        return ""
    lines = done.stderr.strip().splitlines()
    return judging.short(lines[-1]) if lines else f"its import ended with {done.returncode}"
