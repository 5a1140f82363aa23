"""An acted mistake in the candidate's place: whether it fails a clause as the candidate does."""

from __future__ import annotations

from torch import Tensor

from ..base.results import Violation
from ..calls.calling import Answer, Arguments, CandidateFailure, Forward
from ..calls.differentiating import Taped
from ..clauses.differentiator import Differentiator
from ..clauses.registry import Clause
from ..clauses.subject import Subject
from ..problems.inputs import Inputs
from ..problems.problem import Problem
from .acting import Made, act
from .mistakes import NotExpressible


class NoDifferentiator(Differentiator):
    """Nothing is differentiated: an acted answer has no history."""

    def tape(self, inputs: Inputs, **_asked: object) -> Taped:
        """LookupError, which speaks against no mistake."""
        del inputs
        msg = "an acted mistake has no gradients"
        raise LookupError(msg)


class StandIn(Subject):
    """A subject that answers as a candidate with some mistakes, rounded to the query's dtype."""

    def __init__(self, subject: Subject, made: Made) -> None:
        super().__init__(subject.candidate, subject.dtype)
        self.oracle = subject.oracle
        self.inputs = subject.inputs
        self.gradients = NoDifferentiator(self)
        self.made = made

    def forward(self, inputs: Inputs) -> Forward:
        """No layer is built: the answer follows from the inputs alone."""
        del inputs
        return _not_called

    def ask(self, forward: Forward, given: Arguments, inputs: Inputs) -> Answer:
        """The acted answer; CandidateFailure for one of another shape, as for a candidate's."""
        del forward, given
        declared = self.declaration.semantics
        acted = act(self.oracle, declared, self.made, inputs)
        output: Tensor = acted.output.to(inputs.query.dtype)
        if output.shape != inputs.output_shape:
            told = f"the output has shape {list(output.shape)}"
            raise CandidateFailure(Violation(kind="shape", message=told))
        weights = acted.core.weights.to(inputs.query.dtype) if inputs.return_weights else None
        return Answer(output=output, returned=output, weights=weights)


def _not_called() -> None:
    """Stand where a layer would."""


def fails_alike(subject: Subject, made: Made, clause: Clause, problem: Problem) -> bool:
    """Whether a candidate with some mistakes fails a clause on a problem.

    True as well where the mistakes cannot be acted out on what the clause asks: then nothing
    speaks against them.
    """
    try:
        finding = clause.check(StandIn(subject, made), problem)
    except CandidateFailure:
        return True
    except (NotExpressible, LookupError, ValueError, RuntimeError):
        return True
    return finding.violation is not None
