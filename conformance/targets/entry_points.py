"""What installed distributions bring along: the entry points of a group, loaded one by one."""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Final

from ..errors import UsageError
from .loading import one_line

CLAUSES: Final = "attention_conformance.clauses"
MISTAKES: Final = "attention_conformance.mistakes"


def registered(group: str) -> list[EntryPoint]:
    """The entry points of a group, in an order that does not depend on the path."""
    return sorted(entry_points(group=group), key=lambda entry: (home(entry), entry.name))


def home(entry: EntryPoint) -> str:
    """The distribution that an entry point comes from, with its version."""
    if entry.dist is None:
        return "an unknown distribution"
    return f"{entry.dist.metadata['Name']} {entry.dist.version}"


def taking_in(entry: EntryPoint, what: str, take: Callable[[Any], Any]) -> Any:
    """``take`` what an entry point holds, and return what it returns.

    ``what`` is the plural of what is expected there. Whatever its code raises becomes a UsageError
    that names the entry point and its distribution.
    """
    try:
        return take(entry.load())
    except KeyboardInterrupt:
        raise
    except UsageError as error:
        raise UsageError(_refusal(entry, what, str(error))) from None
    except BaseException as error:  # noqa: BLE001 (any error of another's code is one sentence)
        raise UsageError(_refusal(entry, what, one_line(error))) from None


def _refusal(entry: EntryPoint, what: str, why: str) -> str:
    return (
        f"the {what} {entry.name!r} that {home(entry)} registers ({entry.value}) cannot be used: "
        f"{why}; mend or uninstall it"
    )
