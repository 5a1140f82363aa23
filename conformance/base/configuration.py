"""``[tool.conformance]`` of pyproject.toml: the choices of a project."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from ..errors import UsageError, did_you_mean
from .files import parse_toml
from .limits import read_seconds
from .profile import DTYPES, profile_named

FILE: Final = "pyproject.toml"
_LISTS: Final = ("targets", "only", "skip", "dtype")
_KEYS: Final = ("targets", "profile", "only", "skip", "expected-failures", "max-time", "dtype")


@dataclass(frozen=True, kw_only=True)
class Configuration:
    """The choices of a project; None, or nothing, without a choice.

    Targets that are paths, and the file of expected failures, are relative to the working folder.
    """

    targets: tuple[str, ...] = ()
    profile: str | None = None
    only: tuple[str, ...] = ()
    skip: tuple[str, ...] = ()
    dtype: tuple[str, ...] = ()
    expected_failures: str | None = None
    max_time: str | None = None


NOTHING: Final = Configuration()


def configuration(folder: Path) -> Configuration:
    """The table of the nearest pyproject.toml in a folder or above it; raises UsageError."""
    file = next((one / FILE for one in (folder, *folder.parents) if (one / FILE).is_file()), None)
    if file is None:
        return NOTHING
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):  # the file's own tools report the error
        return NOTHING
    if "conformance" not in text:
        return NOTHING
    table = parse_toml(text, file).get("tool", {}).get("conformance")
    return NOTHING if table is None else _located(_read(table, file), file.parent)


def _read(table: Any, file: Path) -> Configuration:
    where = f"[tool.conformance] of {file}"
    if not isinstance(table, dict):
        msg = f"{where} is no table: write [tool.conformance] and keys below it"
        raise UsageError(msg)
    for key, value in table.items():
        if key not in _KEYS:
            msg = f"{where} has {key!r}{did_you_mean(key, _KEYS)}"
            raise UsageError(msg)
        texts = value if key in _LISTS and isinstance(value, list) else [value]
        if not texts or not all(isinstance(text, str) for text in texts):
            kind = "a text or a list of texts" if key in _LISTS else "a text"
            msg = f"{where}: {key} is {value!r:.60}: give {kind}"
            raise UsageError(msg)
    try:
        return _checked(table)
    except UsageError as error:
        msg = f"{where}: {error}"
        raise UsageError(msg) from error


def _checked(table: dict[str, Any]) -> Configuration:
    listed = {key: _texts(table.get(key, [])) for key in _LISTS}
    for dtype in listed["dtype"]:
        if dtype not in DTYPES:
            msg = f"there is no dtype {dtype!r}{did_you_mean(dtype, DTYPES)}"
            raise UsageError(msg)
    if "max-time" in table:
        read_seconds(table["max-time"])
    return Configuration(
        profile=profile_named(table["profile"]).name if "profile" in table else None,
        expected_failures=table.get("expected-failures"),
        max_time=table.get("max-time"),
        **listed,
    )


def _texts(value: str | list[str]) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) else tuple(value)


def _located(read: Configuration, folder: Path) -> Configuration:
    """The configuration with its paths as seen from the working folder."""

    def seen(path: str) -> str:
        return os.path.relpath(folder / path)

    return replace(
        read,
        targets=tuple(
            seen(target) if (folder / (target.rpartition(":")[0] or target)).exists() else target
            for target in read.targets
        ),
        expected_failures=None if read.expected_failures is None else seen(read.expected_failures),
    )
