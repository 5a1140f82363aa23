"""What failed before: problems kept in a database of hypothesis and asked first in the next run.

The runner draws problems by hypothesis but does not let it run clauses (a pool is shared by all of
them), so hypothesis' own replay of failures never comes to work: this does the same for Problems.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from ..declare.candidate import Candidate
from ..problems.problem import Problem, problem_from_json
from ..targets.loading import one_line

if TYPE_CHECKING:
    from hypothesis.database import ExampleDatabase

# As many of a clause are asked, the smallest first.
MOST: Final = 10


class Memory:
    """The failing problems of one specification.

    They are kept by candidate (its name and kind), clause, dtype and device. What a database cannot
    do any more, such as a server that went away, does not disturb the run: ``trouble`` says it.
    """

    def __init__(self, database: ExampleDatabase, specification: str) -> None:
        self._database = database
        self._specification = specification
        self.trouble = ""

    def problems(self, candidate: Candidate, clause: str, dtype: str, device: str) -> list[Problem]:
        """The problems that failed before, the smallest first."""
        key = self._key(candidate, clause, dtype, device)
        found: list[Problem] = []
        with self._untroubled():
            for value in self._database.fetch(key):
                problem = _read(value)
                if problem is not None and (problem.dtype, problem.device) == (dtype, device):
                    found.append(problem)
        return sorted(dict.fromkeys(found), key=_size)[:MOST]

    def keep(self, candidate: Candidate, clause: str, problem: Problem) -> None:
        """Remember a problem that failed."""
        with self._untroubled():
            self._database.save(self._key_of(candidate, clause, problem), _written(problem))

    def forget(self, candidate: Candidate, clause: str, problem: Problem) -> None:
        """Let go of a problem that passes now."""
        with self._untroubled():
            self._database.delete(self._key_of(candidate, clause, problem), _written(problem))

    def _key_of(self, candidate: Candidate, clause: str, problem: Problem) -> bytes:
        return self._key(candidate, clause, problem.dtype, problem.device)

    def _key(self, candidate: Candidate, clause: str, dtype: str, device: str) -> bytes:
        parts = (self._specification, candidate.shown_kind, candidate.name, clause, dtype, device)
        return "|".join(parts).encode()

    @contextlib.contextmanager
    def _untroubled(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # noqa: BLE001 (whatever a client of a database raises)
            self.trouble = one_line(error)


def _written(problem: Problem) -> bytes:
    return json.dumps(problem.as_json(), sort_keys=True).encode()


def _read(value: bytes) -> Problem | None:
    """The problem of an entry, None for what this version did not write."""
    try:
        return problem_from_json(json.loads(value))
    except (ValueError, TypeError, KeyError, AttributeError):
        return None


def _size(problem: Problem) -> tuple[int, str]:
    return sum(vars(problem.geometry).values()), repr(problem)
