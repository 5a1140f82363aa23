"""Asks a candidate for gradients, and judges whether it has promised any."""

from __future__ import annotations

import time
from functools import cached_property
from typing import TYPE_CHECKING, Final

from torch import Tensor, nn

from ..calls.calling import Arguments, CandidateFailure, Forward, arguments
from ..calls.differentiating import (
    Gradients,
    NotDifferentiable,
    Taped,
    as_returned,
    asking_for_gradients,
    lost,
)
from ..calls.recording import Pulled
from ..calls.weight_leaves import build_with_leaves
from ..oracle.gradient_oracle import GradientOracle
from ..problems.inputs import Inputs
from ..problems.problem import Problem
from ..problems.settling import settle, settle_causal
from ..problems.space import PROBE, Space

if TYPE_CHECKING:
    from .subject import Subject

_LOST: Final = "the answer does not require a gradient, though the inputs do"
_LOST_HERE: Final = f"{_LOST}, though that to a plain question does"
_NONE: Final = "its answer requires no gradient, and gradients are no promise of its own"
_REFUSES: Final = "it refuses inputs that require gradients, which are no promise of its own"


class Differentiator:
    """The gradients of a subject; ``oracle`` knows the golden ones."""

    def __init__(self, subject: Subject) -> None:
        self.subject = subject
        self.oracle = GradientOracle(subject.oracle)

    def of(self, inputs: Inputs, upstream: Tensor) -> Gradients:
        """The gradients of every input, and of a layer's weights where they can be had.

        ``upstream`` is the gradient of the answer, in its axes. Raises CandidateFailure, and
        NotDifferentiable for a candidate that promises no gradients of its own accord.
        """
        return self.pull(self.tape(inputs, weights=True), upstream)

    def tape(
        self,
        inputs: Inputs,
        *,
        forward: Forward | None = None,
        given: Arguments | None = None,
        names: tuple[str, ...] | None = None,
        bias: bool = False,
        weights: bool = False,
    ) -> Taped:
        """Call with gradients recorded; see :meth:`of` for what it raises.

        ``forward`` and ``given`` are made where none are given; ``names`` are the positional
        arguments that ask for gradients ("input 0" …), ``bias`` and ``weights`` whether those do.
        """
        subject, leaves, start = self.subject, None, time.perf_counter()
        if forward is None and weights:
            forward, leaves = build_with_leaves(subject.candidate, inputs)
            if subject.recording is not None and subject.candidate.kind == "layer":
                subject.recording.add_built(forward, inputs)
        forward = subject.forward(inputs) if forward is None else forward
        given = arguments(inputs) if given is None else given
        asking = asking_for_gradients(given, names, bias=bias)
        recorded = inputs.replace(grad_mode=True)
        try:
            answer = subject.ask(forward, given, recorded)
        except CandidateFailure as failure:
            self._refused(failure, recorded)
            raise
        finally:
            subject.candidate_seconds += time.perf_counter() - start
        taped = Taped(
            inputs=inputs,
            given=given,
            leaves=asking,
            answer=answer,
            weights=leaves,
            beside=_parameters(forward),
        )
        if not taped.returned.requires_grad:
            self._without_history()
        return taped

    def pull(self, taped: Taped, upstream: Tensor, *, again: bool = False) -> Gradients:
        """The gradients that flow back through a recorded call."""
        start = time.perf_counter()
        try:
            found = taped.pull(upstream, again=again)
        except CandidateFailure as failure:
            if not self._promised and failure.violation.got == NotImplementedError.__name__:
                raise NotDifferentiable(failure.violation.message) from failure
            raise
        finally:
            self.subject.candidate_seconds += time.perf_counter() - start
        if self.subject.recording is not None:
            self.subject.recording.pulled.append(_pulled(taped, upstream, found))
        return found

    @property
    def _promised(self) -> bool:
        """Whether gradients are a promise that the candidate makes, not only a default."""
        return "gradients" in self.subject.declaration.declared_features

    def _refused(self, failure: CandidateFailure, inputs: Inputs) -> None:
        """Raise NotDifferentiable for what is refused only because gradients are asked for."""
        if failure.violation.kind != "raised" or self._promised:
            return
        with self.subject.recorded(None):
            try:
                self.subject.answer(inputs.replace(grad_mode=False))
            except CandidateFailure:
                return
        raise NotDifferentiable(_REFUSES) from failure

    def _without_history(self) -> None:
        """Raise for an answer without one: a failure where another answer has one, or must."""
        if self._promised:
            raise lost(_LOST)
        if self._has_history:
            raise lost(_LOST_HERE)
        raise NotDifferentiable(_NONE)

    @cached_property
    def _has_history(self) -> bool:
        """Whether the answer to a small plain question requires a gradient."""
        subject = self.subject
        problem = Problem(
            geometry=settle(PROBE, subject.candidate, Space()),
            dtype=subject.dtype,
            seed=1,
            causal=settle_causal(subject.candidate, flagged=False),
        )
        inputs = subject.inputs(problem).replace(grad_mode=True)
        with subject.recorded(None):
            try:
                given = arguments(inputs)
                asking_for_gradients(given, None)
                answer = subject.ask(subject.forward(inputs), given, inputs)
            except CandidateFailure:
                return False
        return answer.returned is not None and answer.returned.requires_grad


def _parameters(forward: Forward) -> tuple[Tensor, ...]:
    """What a module learns; the gradients of it are its owner's."""
    return tuple(forward.parameters()) if isinstance(forward, nn.Module) else ()


def _pulled(taped: Taped, upstream: Tensor, found: Gradients) -> Pulled:
    """The same for a recording."""
    return Pulled(
        answer=taped.answer,
        upstream=as_returned(upstream, taped).detach(),
        leaves=tuple(taped.leaves),
        found=found.found,
    )
