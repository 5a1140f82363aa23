"""The problems of one clause in the order in which they are asked: known failures first."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from ..clauses.registry import Clause
from ..clauses.subject import Subject
from ..declare.candidate import Candidate
from ..problems.pool import Pool
from ..problems.problem import Problem, problem_from_json
from ..targets.loading import one_line
from .tally import Tally

if TYPE_CHECKING:
    from hypothesis.database import ExampleDatabase


# As many of a clause are asked, the smallest first.
MOST: Final = 10


class FailureMemory:
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


class ClauseProblems:
    """What a clause asks a subject; the tally says what is planned, and hears what each showed.

    Of a shard they are its own: the first shard has those of the database, too.
    """

    def __init__(
        self,
        clause: Clause,
        subject: Subject,
        *,
        pool: Pool,
        tally: Tally,
        memory: FailureMemory | None = None,
    ) -> None:
        self._clause = clause
        self._subject = subject
        self._pool = pool
        self._tally = tally
        self._memory = memory

    def of_round(self, number: int) -> Iterator[Problem]:
        """The examples of the profile, or those of a later round of one that explores."""
        return self._explored(number) if number else self._first()

    def _first(self) -> Iterator[Problem]:
        """What failed before, the pool, and a few more until one binds where none of them did."""
        tally, shard = self._tally, self._tally.shard
        place = self._clause.space, self._subject.dtype, self._subject.device
        known, found = self._remembered(), self._pool.problems(*place)
        own = [problem for number, problem in enumerate(found) if shard.owns(number)]
        tally.main, tally.remembered = len(found), len(known)
        tally.planned = len(known) + len(own)
        yield from known
        yield from own
        if tally.settled:
            return
        for number, problem in enumerate(self._pool.further(*place), len(found)):
            if shard.owns(number):
                yield problem
            if tally.settled_by_further:
                return

    def _explored(self, number: int) -> Iterator[Problem]:
        """Freshly drawn problems; each shard draws its own."""
        shard = self._tally.shard
        turn = (number - 1) * shard.count + shard.index
        subject = self._subject
        found = self._pool.drawn(self._clause.space, subject.dtype, subject.device, turn=turn)
        self._tally.planned = len(found)
        yield from found

    def _remembered(self) -> list[Problem]:
        if self._memory is None or self._tally.shard.index > 1:
            return []
        subject, space = self._subject, self._clause.space
        candidate = subject.candidate
        known = self._memory.problems(candidate, self._clause.id, subject.dtype, subject.device)
        return [problem for problem in known if space.admits(problem, candidate)]

    def passed(self, problem: Problem) -> None:
        """Forget a problem of the database that fails no more."""
        if self._memory is not None and self._tally.examples <= self._tally.remembered:
            self._memory.forget(self._subject.candidate, self._clause.id, problem)
