"""The table from bugs seen in the wild to the mistakes that stand for them."""

from __future__ import annotations

from candidates.broken import MISTAKES
from candidates.broken.coverage import BUGS, ELSEWHERE

LAST_BUG = 62
NAMES = frozenset(mistake.name for mistake in MISTAKES)


def test_every_bug_is_accounted_for() -> None:
    """Each number has mistakes or a reason why there is none, and never both."""
    assert {*BUGS, *ELSEWHERE} == set(range(1, LAST_BUG + 1))
    assert not set(BUGS) & set(ELSEWHERE)


def test_every_mistake_of_the_table_exists() -> None:
    """The table names mistakes of the catalogue, at least one for each bug."""
    for number, names in BUGS.items():
        assert names, number
        assert set(names) <= NAMES, (number, set(names) - NAMES)


def test_every_reason_is_said() -> None:
    """What no mistake stands for has a reason in words."""
    assert all(
        len(reason.split()) >= len("for the clauses of".split()) for reason in ELSEWHERE.values()
    )
