"""What the table of each family is made of."""

from __future__ import annotations

from typing import Final

Specific = dict[str, tuple[str, frozenset[str]]]

NOTHING_ELSE: Final[frozenset[str]] = frozenset()

# What a candidate remembers or draws at random may show in any clause.
ANYTHING: Final = frozenset({"*"})


def also(slugs: str) -> frozenset[str]:
    """The other clauses that a mistake may fail too, given as words."""
    return frozenset(slugs.split())
