"""Records of one example's calls: arguments and answers."""

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
        The origin of the arguments, possibly in another memory layout.
    forward
        The called function: the core, or a built layer.
    arguments, before
        The arguments, and copies from before the call in the same memory layout.
    answer, output, weights
        The returned object, and copies from right after the call; None when refused.
    refused
        Why the answer could not be judged: an exception, a wrong shape or type.
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
        The answer of the call.
    upstream
        The output gradient, of the answer's form.
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
