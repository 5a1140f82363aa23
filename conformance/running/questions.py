"""The problems of one clause, in the order in which they are asked."""

from __future__ import annotations

from collections.abc import Iterator

from ..base.tally import Tally
from ..clauses.registry import Clause
from ..clauses.subject import Subject
from ..problems.pool import Pool
from ..problems.problem import Problem
from .memory import Memory


class Questions:
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
        memory: Memory | None = None,
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
