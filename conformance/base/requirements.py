"""Which installed packages are older than this distribution needs."""

from __future__ import annotations

import re
from importlib import metadata
from typing import Final

_DISTRIBUTION: Final = "attention-conformance"
_AT_LEAST: Final = re.compile(r"(?P<name>[\w.-]+)>=(?P<least>[\d.]+)$")


def outdated() -> str:
    """A sentence on installed packages that are too old; "" where none is, or nothing is known."""
    try:
        needed = metadata.requires(_DISTRIBUTION) or []
    except metadata.PackageNotFoundError:  # a checkout on the path
        return ""
    found = [said for text in needed if (match := _AT_LEAST.match(text)) and (said := _old(match))]
    if not found:
        return ""
    return (
        f"{' and '.join(found)}: upgrade, or judge in an environment of its own what asks for an "
        "older version"
    )


def _old(needed: re.Match[str]) -> str:
    name, least = needed["name"], needed["least"]
    try:
        here = metadata.version(name)
    except metadata.PackageNotFoundError:
        return ""
    if _numbers(here) >= _numbers(least):
        return ""
    return f"{name} {here} is installed, and {_DISTRIBUTION} needs {name}>={least}"


def _numbers(version: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", version.partition("+")[0])]
