"""The golden in the candidate's place: a clause that would fail it proves nothing.

Reduced problems leave what is drawn: a value of zero may make a check divide by zero. So a smaller
problem counts only if the same check passes an implementation that is right.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..._golden import golden
from ...base.results import Violation
from ...calls.calling import Answer, Arguments, CandidateFailure, Forward, read_answer
from ...calls.differentiating import Gradients, Taped
from ...clauses.subject import Differentiator, Subject
from ...oracle.gradient_oracle import separate_cache
from ...oracle.oracle import Golden
from ...problems.inputs import Inputs


class NoControlError(Exception):
    """The golden cannot stand in: the weights are unknown, or a call is not one it can answer."""


class GoldenDifferentiator(Differentiator):
    """Gradients of the golden, rounded; it records no calls."""

    def of(self, inputs: Inputs, upstream: Tensor) -> Gradients:
        """The golden gradients."""
        subject = self.subject
        if not subject.candidate.golden_known:
            raise NoControlError
        gradients = separate_cache(self.oracle.answer(inputs, upstream).gradients, inputs)
        dtype = inputs.query.dtype
        return Gradients(
            by_name={name: each.value.to(dtype) for name, each in gradients.items()},
            missing=frozenset(),
            output=subject.golden(inputs).output.to(dtype),
        )

    def tape(self, inputs: Inputs, **_options: object) -> Taped:
        """Nothing is recorded."""
        del inputs
        raise NoControlError


class Control(Subject):
    """A subject that answers with the golden, rounded to the dtype of the query."""

    def __init__(self, subject: Subject) -> None:
        super().__init__(subject.candidate, subject.dtype, subject.device, sealed=subject.sealed)
        self.oracle = subject.oracle
        self.gradients = GoldenDifferentiator(self)
        self.gradients.oracle = subject.gradients.oracle
        self.inputs = subject.inputs

    def forward(self, inputs: Inputs) -> Forward:
        """No layer is built: the answer follows from the inputs alone."""
        del inputs
        return _not_called

    def call_with(self, forward: Forward, call_arguments: Arguments, inputs: Inputs) -> Answer:
        """The golden answer; an exception for inputs that do not fit each other."""
        del forward, call_arguments
        if self.candidate.kind == "positions":
            return _answer(_encoded(inputs), None, inputs)
        if not self.candidate.golden_known:
            raise NoControlError
        try:
            expected = self.golden(inputs)
        except (ValueError, RuntimeError, IndexError) as error:
            refused = Violation(kind="raised", message=str(error), got=type(error).__name__)
            raise CandidateFailure(refused) from error
        output = expected.output if inputs.dropout is None else _dropped(expected, inputs)
        return _answer(output, expected.weights, inputs)


def _not_called() -> None:
    """Stand where a layer would."""


def _answer(output: Tensor, weights: Tensor | None, inputs: Inputs) -> Answer:
    """What a candidate would have returned, read like its own; it is on the CPU."""
    inputs = inputs.replace(device="cpu")
    tensors = [output] if weights is None else [output, weights]
    returned = [tensor.to(inputs.query.dtype) for tensor in tensors]
    if not inputs.batched:
        returned = [tensor.squeeze(0) for tensor in returned]
    return read_answer(tuple(returned) if inputs.return_weights else returned[0], inputs)


def _encoded(inputs: Inputs) -> Tensor:
    tokens = inputs.key.double()
    table = golden.sinusoidal_positions(tokens.shape[-2], tokens.shape[-1])
    return (tokens + table).to(inputs.key.dtype)


def _dropped(golden_answer: Golden, inputs: Inputs) -> Tensor:
    """The output of a core with weights dropped at random."""
    if inputs.is_layer or inputs.dropout is None:
        raise NoControlError
    kept = torch.rand(golden_answer.weights.shape) >= inputs.dropout
    heads = golden_answer.core.value
    value = heads.repeat_interleave(golden_answer.weights.shape[1] // heads.shape[1], dim=1)
    return golden_answer.weights * kept / (1.0 - inputs.dropout) @ value
