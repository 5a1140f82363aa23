"""A candidate's own expected failures, with the place where they are declared."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ..base.expected import ExpectedFailure, Place
from ..declare.candidate import Candidate
from .source_location import whereabouts


def declared_expectations(candidate: Candidate) -> tuple[ExpectedFailure, ...]:
    """The expected failures of a declaration, each with the place where it is to be changed."""
    entries = candidate.declaration.expected_failures
    if not entries:
        return ()
    place = _place(candidate, whereabouts(candidate))
    return tuple(replace(entry, place=entry.place or place) for entry in entries)


def _place(candidate: Candidate, location: Mapping[str, Any] | None) -> Place:
    """The line of the declaration, or the candidate's name where it has no source."""
    if location is None or location["line"] is None:
        return Place(file=f"the declaration of {candidate.name} ({candidate.target})")
    return Place(file=str(location["file"]), line=int(location["line"]))
