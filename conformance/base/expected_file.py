"""Reading a file of expected failures: TOML with a table ``[[expected]]`` for each."""

from __future__ import annotations

import tomllib
from dataclasses import fields
from pathlib import Path
from typing import Any, Final

from ..errors import DeclarationError, UsageError, did_you_mean
from .expected import ExpectedFailure, Place
from .expected_lines import entry_lines, list_line

KEYS: Final = tuple(field.name for field in fields(ExpectedFailure) if field.name != "place")
_NEEDED: Final = ("clause", "reason")


def read_text(path: Path) -> str:
    """The text of a file; raises UsageError. Its newlines stay as they are."""
    try:
        return path.read_bytes().decode("utf-8-sig")
    except FileNotFoundError:
        msg = f"there is no file {path} with expected failures"
        raise UsageError(msg) from None
    except (OSError, UnicodeDecodeError) as error:
        msg = f"{path} cannot be read as TOML: {error}"
        raise UsageError(msg) from None


def parse(text: str, path: Path) -> tuple[ExpectedFailure, ...]:
    """The entries of a file's text; raises UsageError that names file and entry."""
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        msg = f"{path} cannot be read as TOML: {error}"
        raise UsageError(msg) from None
    entries = data.get("expected", [])
    for key in data:
        if key != "expected":
            msg = f"{path} has an unknown key {key!r}{did_you_mean(key, ['expected'])}"
            raise UsageError(msg)
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        msg = f"{path}: write each expected failure as a table [[expected]]"
        raise UsageError(msg)
    places = places_of(text, path, len(entries))
    return tuple(
        read_entry(entry, _named(path, number, place), place)
        for number, (entry, place) in enumerate(zip(entries, places, strict=True), 1)
    )


def places_of(text: str, path: Path, count: int) -> list[Place]:
    """Where each of the entries of a file stands."""
    found = entry_lines(text)
    if len(found) != count:
        return [Place(file=str(path), line=list_line(text))] * count
    return [Place(file=str(path), line=entry.header, keys=entry.keys) for entry in found]


def _named(path: Path, number: int, place: Place) -> str:
    line = "" if place.line is None else f"line {place.line}, "
    return f"{path}, {line}entry {number}"


def read_entry(data: dict[str, Any], where: str, place: Place | None = None) -> ExpectedFailure:
    """One entry; raises UsageError that says where it is and what is wrong with it."""
    for key in data:
        if key not in KEYS:
            msg = f"{where} has an unknown key {key!r}{did_you_mean(key, KEYS)}"
            raise UsageError(msg)
    for key in _NEEDED:
        if key not in data:
            msg = f"{where} has no {key!r}: give a clause and the reason why it is known to fail"
            raise UsageError(msg)
    try:
        return ExpectedFailure(**data, place=place)
    except DeclarationError as error:
        msg = f"{where}: {error}"
        raise UsageError(msg) from None
