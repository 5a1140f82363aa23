"""The problems of one clause in the order of trial: earlier failures first."""

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


# Problems tried for a clause, the smallest first.
MOST: Final = 10


# An entry of a database: key and problem.
Kept = tuple[bytes, bytes]


class FailureMemory:
    """The failing problems of one specification.

    Keyed by candidate (name and kind), clause, dtype and device. A failing database, such as a lost
    server, does not disturb the run: ``trouble`` says why it failed. If ``waits``, nothing is
    written, as candidates could read the seed there: ``taken`` returns the entries to write.
    """

    def __init__(
        self, database: ExampleDatabase, specification: str, *, waits: bool = False
    ) -> None:
        self._database = database
        self._specification = specification
        self._waits = waits
        self._waiting: list[Kept] = []
        self.trouble = ""

    def taken(self) -> list[Kept]:
        """The entries that are still to be written, once."""
        entries, self._waiting = self._waiting, []
        return entries

    def problems(self, candidate: Candidate, clause: str, dtype: str, device: str) -> list[Problem]:
        """The problems that failed before, the smallest first."""
        key = self._key(candidate, clause, dtype, device)
        problems: list[Problem] = []
        with self._untroubled():
            for value in self._database.fetch(key):
                problem = _read(value)
                if problem is not None and (problem.dtype, problem.device) == (dtype, device):
                    problems.append(problem)
        return sorted(dict.fromkeys(problems), key=_size)[:MOST]

    def keep(self, candidate: Candidate, clause: str, problem: Problem) -> None:
        """Remember a failing problem."""
        entry = self._key_of(candidate, clause, problem), _written(problem)
        if self._waits:
            self._waiting.append(entry)
            return
        with self._untroubled():
            self._database.save(*entry)

    def forget(self, candidate: Candidate, clause: str, problem: Problem) -> None:
        """Delete a problem that passes now."""
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
    """Decode an entry; None for entries this version did not write."""
    try:
        return problem_from_json(json.loads(value))
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError):
        return None


def _size(problem: Problem) -> tuple[int, str]:
    return sum(vars(problem.geometry).values()), repr(problem)


class ClauseProblems:
    """The problems of a clause for a subject within its shard; their number goes to the tally.

    The first shard also has the problems of the database.
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
        self._place = clause.space, subject.dtype, subject.device

    def problems_of_round(self, number: int) -> Iterator[Problem]:
        """Yield the profile's examples, or the examples of a later exploring round."""
        return self._explored(number) if number else self._first()

    def _first(self) -> Iterator[Problem]:
        """Yield remembered failures, the pool, then further problems until one binds."""
        tally, shard = self._tally, self._tally.shard
        remembered = self._remembered()
        tally.remembered = len(remembered)
        self._count(exactly=shard.count > 1)
        yield from remembered
        known: set[Problem] = set()
        for number, problem in enumerate(self._pool.in_turn(*self._place)):
            if shard.owns(number):
                yield self._answered(known) or self._problem_for(problem)
        self._count(exactly=True)
        if tally.is_decided:
            return
        for number, problem in enumerate(self._pool.further(*self._place), tally.main):
            if shard.owns(number):
                yield self._problem_for(problem)
            if tally.binding:  # of the further examples only a binding one decides
                return

    def _count(self, *, exactly: bool) -> None:
        """Tell the tally the number of problems: an estimate before any is made, or ``exactly``."""
        space, dtype, _ = self._place
        main = len(self._pool.problems(space, dtype)) if exactly else self._pool.count(space, dtype)
        own = sum(map(self._tally.shard.owns, range(main)))
        self._tally.main, self._tally.planned = main, self._tally.remembered + own

    def _explored(self, number: int) -> Iterator[Problem]:
        """Draw fresh problems for an exploring round; every shard draws different ones."""
        shard = self._tally.shard
        turn = (number - 1) * shard.count + shard.index
        drawn = self._pool.drawn(*self._place, turn=turn)
        self._tally.planned = len(drawn)
        yield from map(self._problem_for, drawn)

    def _answered(self, known: set[Problem]) -> Problem | None:
        """Return a further problem with a known answer, for clauses indifferent to the problem."""
        if not self._clause.of_any_answer or not self._subject.slow_calls:
            return None
        space, candidate = self._place[0], self._subject.candidate
        for problem in self._subject.known_problems():
            if problem not in known and space.admits(problem, candidate):
                known.add(problem)
                return problem
        return None

    def _problem_for(self, drawn: Problem) -> Problem:
        return self._clause.problem_for(self._subject, drawn)

    def _remembered(self) -> list[Problem]:
        if self._memory is None or self._tally.shard.index > 1:
            return []
        space, dtype, device = self._place
        candidate = self._subject.candidate
        problems = self._memory.problems(candidate, self._clause.id, dtype, device)
        return [problem for problem in problems if space.admits(problem, candidate)]

    def passed(self, problem: Problem) -> None:
        """Forget a problem of the database that fails no more."""
        if self._memory is not None and self._tally.examples <= self._tally.remembered:
            self._memory.forget(self._subject.candidate, self._clause.id, problem)
