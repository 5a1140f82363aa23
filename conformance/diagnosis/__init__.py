"""Names the mistake in a candidate, by acting out every named mistake.

The candidate is called once on a small battery of problems. A single named mistake, else a pair, is
reported if its answers agree with the candidate's within their own bound on every problem and the
declared point's do not; the first problems of a long battery may suffice. If none agrees,
``unknown-mistake`` is reported with facts, not a guess.

The package may import ``clauses`` and the layers below.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..clauses.registry import Clause
from ..clauses.subject import Subject
from ..problems.problem import Problem
from .diagnostician import Diagnostician
from .ranks import diagnostician


def diagnose(
    subject: Subject, clause: Clause | None = None, problem: Problem | None = None
) -> list[dict[str, Any]]:
    """Return the report's entries for the mistakes behind a candidate's answers.

    With a clause and the problem on which it fails: the entries that explain this failure. Empty
    for a candidate that answers rightly, and without a golden answer.
    """
    return diagnostician(subject).explain(clause, problem)


def names(entries: Sequence[dict[str, Any]]) -> list[str]:
    """Return the names of entries."""
    return [str(entry["name"]) for entry in entries]


__all__ = ["Diagnostician", "diagnose", "names"]
