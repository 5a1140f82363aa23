"""compile.*: what torch.compile makes of a candidate answers like the candidate itself."""

from __future__ import annotations

from weakref import WeakKeyDictionary

from ..adapters.compiled import ASKED, graphs_compiled
from ..declare.candidate import Candidate
from ..problems.problem import Problem
from ..problems.space import Space
from ._vocabulary import relate
from .registry import Finding, clause, requires
from .subject import Subject

_EAGER: WeakKeyDictionary[Subject, Subject] = WeakKeyDictionary()
NOTHING = "torch.compile compiles nothing of it: every call runs as it is"


_is_compiled = requires(lambda c: c.eager is not None, "it is not compiled (--compile)")


def asked_eagerly(candidate: Candidate, slug: str) -> str:
    """Why a clause is left to the candidate as it is, before torch.compile, or ""."""
    if candidate.eager is None or slug in ASKED:
        return ""
    return "asked of the candidate as it is, uncompiled"


@clause(
    "compile.agrees",
    sentence="Through torch.compile, with static and with dynamic sizes, the answer is the same.",
    source="torch.compile's contract; pytorch#96941, #127055: compiled attention alone is wrong",
    space=Space(mask="maybe", causal="maybe", extras="maybe"),
    applies=(_is_compiled,),
    explained=False,
)
def compiled_agrees(subject: Subject, problem: Problem) -> Finding:
    """The eager candidate's answer and the compiled one's, within both bounds."""
    inputs = subject.inputs(problem)
    answer = subject.answer(inputs)
    graphs = graphs_compiled()
    eager = _eager(subject).answer(inputs)
    wording = "compiled, it answers otherwise than as it is"
    found = relate(subject, (inputs, eager), (inputs, answer), wording)
    if not graphs:
        return Finding(binding=False, inapplicable=NOTHING, violation=found.violation)
    return found


def _eager(subject: Subject) -> Subject:
    """The same candidate before it was compiled, asked the same."""
    if subject.candidate.eager is None:
        msg = "the clause does not apply to what is not compiled"
        raise LookupError(msg)
    if subject not in _EAGER:
        _EAGER[subject] = Subject(subject.candidate.eager, subject.dtype, subject.device)
    return _EAGER[subject]
