"""The calls of one example as they were made: their arguments and their answers."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor

from ..base.results import Violation
from ..problems.inputs import Inputs
from .calling import Answer, Arguments, Forward


@dataclass(frozen=True, kw_only=True, eq=False)
class RecordedCall:
    """One call of the candidate.

    inputs
        What the arguments were made of; they may lie in memory in another way.
    forward
        What was called: the core itself, or a layer that was built.
    arguments, before
        The arguments themselves, and copies from before the call in the same memory layout.
    answer, output, weights
        What was returned, and copies from right after the call; None when it was refused.
    refused
        How the answer could not be judged: an exception, a wrong shape or type.
    """

    inputs: Inputs
    forward: Forward
    arguments: Arguments
    before: Arguments
    answer: Answer | None = None
    output: Tensor | None = None
    weights: Tensor | None = None
    refused: Violation | None = None


@dataclass(frozen=True, kw_only=True, eq=False)
class RecordedBackward:
    """The gradients of one call.

    answer
        What that call returned.
    upstream
        The output gradient, like what was returned.
    leaves, gradients
        The arguments that required gradients (see ``Taped.positional_names``), and their gradients
        by the names of the inputs.
    """

    answer: Answer
    upstream: Tensor
    leaves: tuple[str, ...]
    gradients: dict[str, Tensor]


@dataclass
class Recording:
    """The calls of an example in their order, and the inputs each layer was built for.

    Gradients that were computed are in ``pulled``.
    """

    calls: list[RecordedCall] = field(default_factory=list)
    built: list[tuple[Forward, Inputs]] = field(default_factory=list)
    pulled: list[RecordedBackward] = field(default_factory=list)

    def begin(self, made: RecordedCall) -> None:
        """Called before each call of the candidate; subclasses override it."""

    def add_built(self, forward: Forward, inputs: Inputs) -> None:
        """Keep what a layer was built for."""
        self.built.append((forward, inputs))

    def number(self, output: Tensor) -> int | None:
        """The number of the call that returned a tensor."""
        for number, call in enumerate(self.calls):
            if call.answer is not None and output is call.answer.output:
                return number
        return None
