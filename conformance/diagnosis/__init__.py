"""Names the mistake: what a candidate does instead, found by acting out every named mistake.

The candidate is called once on a small battery of problems. A single named mistake, else a pair of
them, is reported when its answers lie within their own bound on every problem and the declared
point's do not; of a long battery the first problems may suffice.
Where none does, ``unknown-mistake`` comes with the facts, rather than a guess.

It may import ``clauses`` and what lies below it.
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
    """The mistakes behind a candidate's answers, as the report's entries.

    With a clause and the problem on which it fails: what explains that failure. Nothing for a
    candidate that answers rightly, and where no golden answer exists.
    """
    return diagnostician(subject).explain(clause, problem)


def names(entries: Sequence[dict[str, Any]]) -> list[str]:
    """The names of some entries."""
    return [str(entry["name"]) for entry in entries]


__all__ = ["Diagnostician", "diagnose", "names"]
