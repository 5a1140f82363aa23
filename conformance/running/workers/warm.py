"""Imports, problems and results a warm process prepares before being forked for a candidate."""

from __future__ import annotations

import ast
import contextlib
import os
from collections.abc import Mapping
from typing import Any, Final

from ...base.limits import uncollected

with uncollected():
    from ..._golden import golden
    from ...base.profile import PROFILES
    from ...calls import integrity, torch_state
    from ...calls.calling import Forward
    from ...clauses.registry import all_clauses
    from ...clauses.subject import Subject
    from ...declare.candidate import like_nobody
    from ...declare.decorators import core
    from ...diagnosis import Diagnostician
    from ...diagnosis.mistaken_answer import DiagnosedSubject, act
    from ...diagnosis.mistakes import NamedMistake, named_mistakes
    from ...errors import DeclarationError
    from ...problems.inputs import Inputs
    from ..explainer import Explainer
    from ..runner import PREPARED, CandidateRun
    from .planning import plan_targets
    from .pool import PROMISED
    from .worker import ready

    QUICK = PROFILES["quick"]
    WARMED = (plan_targets, named_mistakes(), ready(), Explainer)

# Mistakes diagnosed in advance: the first any core can make, the second with a mask.
COMMONEST: Final = ("scale-missing", "mask-inverted")
# The families of the clauses whose problems are drawn in advance.
MEASURED: Final = ("numerics", "mask", "softcap", "window")
# Possible failures under strange promises.
_CANNOT_PREPARE: Final = (DeclarationError, LookupError, RuntimeError, TypeError, ValueError)


class _Mistaken(DiagnosedSubject):
    """A subject that answers like a candidate with one mistake."""

    def __init__(self, subject: Subject, mistake: NamedMistake) -> None:
        super().__init__(subject)
        self._mistake = mistake

    def forward(self, inputs: Inputs) -> Forward:
        def answer(*_arguments: object, **_keywords: object) -> Any:
            acted = act(self.oracle, self.declaration.semantics, (self._mistake,), inputs)
            return acted.output.to(inputs.query.dtype)

        return answer


def prepare(promises: Mapping[str, Any]) -> list[str]:
    """Return the names of mistakes possible for a core with these promises.

    Problems of the clauses, golden answers, bounds and answers under further mistakes follow from
    the promises alone, and are kept for the next candidate with equal promises.
    """
    candidate = core(**promises)(like_nobody)
    run = CandidateRun(candidate, profile=QUICK)
    first = {one.name: one for one in reversed(named_mistakes())}
    entries = []
    with (
        torch_state.one_thread(),
        torch_state.neutral(),
    ):  # threads of torch would not outlive a fork
        _measure(run)
        subject = Subject(candidate, candidate.declaration.dtypes[0])
        for name in COMMONEST if candidate.declaration.masks else COMMONEST[:1]:
            entries += Diagnostician(_Mistaken(subject, first[name]), named_mistakes()).explain()
    PREPARED[:] = [run]
    return [str(entry["name"]) for entry in entries]


def _measure(run: CandidateRun) -> None:
    """Draw the problems of MUST clauses about answers, and compute their goldens and bounds."""
    clauses = {clause.id: clause for clause in all_clauses()}
    for planned in run.planned():
        if planned.reason or planned.level != "MUST" or planned.family not in MEASURED:
            continue
        subject = run.subject(planned.dtype, planned.device)
        for problem in run.pool.problems(clauses[planned.id].space, planned.dtype, planned.device):
            with contextlib.suppress(*_CANNOT_PREPARE):
                subject.yardstick(subject.inputs(problem))


with integrity.loading():  # what a process that is forked from here need not record again
    pass
if PROMISED in os.environ:
    # Impossible promises are refused with the first candidate that makes them. After any other
    # failure here the candidate is judged without prepared results.
    with uncollected(), contextlib.suppress(*_CANNOT_PREPARE):
        promised = ast.literal_eval(os.environ[PROMISED])
        if "semantics" in promised:
            promised["semantics"] = golden.Semantics(**promised["semantics"])
        prepare(promised)
