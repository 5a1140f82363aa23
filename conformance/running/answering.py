"""Whether a candidate answers at all: trial calls before any clause is asked.

A wrong signature, an operator that the CPU lacks or a size that a library refuses would else fail
every clause for one reason.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from multiprocessing import parent_process
from typing import Final

from ..base.results import Violation
from ..calls import torch_state
from ..calls.calling import CandidateFailure, RowWithoutKeysRefused
from ..clauses.registry import Clause, all_clauses
from ..clauses.subject import Subject
from ..errors import RAISED_AT
from ..problems.edges import edge_problems
from ..problems.problem import Problem
from .asking import Planned
from .runner import CandidateRun, one_thread

# The clause that shows the exception where a candidate answers in another dtype or not alone.
_WITNESS: Final = "shape.output"
# Edges of each space that are tried before a candidate is said never to answer.
_OF_EACH_SPACE: Final = 3


@dataclass(frozen=True, kw_only=True)
class Silence:
    """What the first of some trial calls raised, where all of them raised."""

    dtype: str
    device: str
    calls: int
    violation: Violation

    def sentence(self, shown: str) -> str:
        """What is wrong with a candidate, with the way to the exception in lines of their own."""
        lines = reversed(self.violation.traceback.splitlines())
        way = f"{RAISED_AT}{next(lines, '')}" + "".join(f"\n  called at {line}" for line in lines)
        return (
            f"no call of {shown} succeeds: each of {self.calls} trial calls raised, the first "
            f"{self.violation.message.removeprefix('raised ')}; mend the call, or pin with "
            f"geometry= what it can take{way}"
        )


def silences(run: CandidateRun, planned: Sequence[Planned]) -> list[Silence]:
    """The dtypes and devices in which every trial call of a candidate raised."""
    places = dict.fromkeys((one.dtype, one.device) for one in planned if not one.reason)
    found = [_silence(run, dtype, device) for dtype, device in places]
    return [one for one in found if one is not None]


def is_silent(found: Sequence[Silence], planned: Sequence[Planned]) -> bool:
    """Whether a candidate answers in no dtype and on no device that anything is planned for."""
    places = {(one.dtype, one.device) for one in planned if not one.reason}
    return bool(places) and places == {(one.dtype, one.device) for one in found}


def without_repetition(planned: Sequence[Planned], found: Sequence[Silence]) -> list[Planned]:
    """The plan in which one clause tells what every other one would tell again.

    What is asked of the file of a graph needs no call of it, and is asked all the same.
    """
    witnesses = {(one.dtype, one.device): _witness(planned, one) for one in found}

    def left(one: Planned) -> Planned:
        witness = witnesses.get((one.dtype, one.device), "")
        if one.reason or not witness or one.id == witness or one.family == "export":
            return one
        where = one.dtype if one.device == "cpu" else f"{one.dtype} on {one.device}"
        reason = f"not asked: every call in {where} raises, as {witness} tells"
        return dataclasses.replace(one, reason=reason)

    return [left(one) for one in planned]


def _witness(planned: Sequence[Planned], silence: Silence) -> str:
    """The clause that is asked: a MUST if there is one."""
    place = silence.dtype, silence.device
    own = [one for one in planned if not one.reason and (one.dtype, one.device) == place]
    calls = [one for one in own if one.family != "export"]
    ranked = sorted(calls, key=lambda one: (one.level != "MUST", one.id != _WITNESS))
    return ranked[0].id if ranked else ""


def _silence(run: CandidateRun, dtype: str, device: str) -> Silence | None:
    """What the first call raised, None where one of them does not raise."""
    first: Violation | None = None
    calls = 0
    subject = Subject(run.candidate, dtype, device)  # its own: trial calls are no questions
    with one_thread(), torch_state.neutral():
        for problem in _problems(run, dtype, device):
            calls += 1
            try:
                inputs = subject.inputs(problem)
                subject.call(subject.forward(inputs), inputs)
            except KeyboardInterrupt:
                if parent_process() is None:
                    raise
                return None  # a worker hears no Ctrl-C: the candidate raised it, as the run tells
            except RowWithoutKeysRefused:
                continue
            except CandidateFailure as failure:
                if failure.violation.kind != "raised":
                    return None
                first = first or failure.violation
            else:
                return None
    if first is None:
        return None
    return Silence(dtype=dtype, device=device, calls=calls, violation=first)


def _problems(run: CandidateRun, dtype: str, device: str) -> Iterator[Problem]:
    """Edges of every space that the candidate may be asked in, then drawn ones of the plainest.

    They do not depend on which clauses are selected: a single clause may ask what may be refused.
    """
    spaces = list(dict.fromkeys(clause.space for clause in _applicable(run, device)))
    for space in spaces:
        edges = edge_problems(run.candidate, space, dtype=dtype, most=_OF_EACH_SPACE)
        yield from (problem.replace(device=device) for problem in edges)
    yield from run.pool.problems(spaces[0], dtype, device) if spaces else ()


def _applicable(run: CandidateRun, device: str) -> list[Clause]:
    candidate = run.candidate.on(device)
    clauses = [clause for clause in all_clauses() if not clause.not_applicable(candidate)]
    return sorted(clauses, key=lambda clause: clause.id != _WITNESS)
