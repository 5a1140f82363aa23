"""Mistakes that distributions bring as points of the semantics: failures bear their names."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

from ..._golden import golden
from ...base.mistake import Mistake, mistakes_in
from ...targets.loading import MISTAKE_GROUP, registered, taking_in
from .named import NamedMistake


@cache
def registered_mistakes() -> tuple[NamedMistake, ...]:
    """Every registered mistake with ``changes``; raises UsageError for one that cannot be used."""
    found: list[NamedMistake] = []
    for point in registered(MISTAKE_GROUP):
        found.extend(taking_in(point, "mistakes", _named))
    return tuple(found)


def _named(given: Any) -> list[NamedMistake]:
    return [_as_point(mistake) for mistake in _points(given)]


def _points(given: Any) -> Iterator[Mistake]:
    return (mistake for mistake in mistakes_in(given) if mistake.changes)


def _as_point(mistake: Mistake) -> NamedMistake:
    golden.STANDARD.replace(**mistake.changes)  # raises for what is no field, or no value of one
    return NamedMistake(
        name=mistake.name,
        text=mistake.sentence,
        fix=mistake.fix,
        clause=mistake.primary,
        changes=dict(mistake.changes),
    )
