"""A candidate under test in one dtype: what clauses ask it, and what the golden says."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from ..calls.calling import (
    Answer,
    Arguments,
    CandidateFailure,
    Forward,
    RowWithoutKeysRefused,
    StridesRefused,
    arguments,
    build_forward,
    guarded,
    is_contiguous,
    read_answer,
)
from ..calls.edits import taken, written
from ..calls.integrity import seal, tampered_at_load, watching
from ..calls.recording import Call, Recording, copied, kept
from ..declare.candidate import Candidate
from ..oracle.oracle import Golden, Oracle
from ..oracle.yardstick import Yardstick, yardstick
from ..problems.inputs import Inputs
from ..problems.materialise import materialise
from ..problems.problem import Problem
from ..tolerance import model
from .differentiator import Differentiator

REMEMBERED_PROBLEMS = 4096
# Perturbed calls that measure the spread of a candidate whose weights nobody knows.
SPREAD_CALLS = 4


class Subject:
    """The candidate on one device and its oracle, as the checks of the clauses see them."""

    def __init__(self, candidate: Candidate, dtype: str, device: str = "cpu") -> None:
        self.candidate = candidate.on(device)
        self.declaration = self.candidate.declaration
        self.dtype = dtype
        self.device = device
        self.oracle = Oracle(self.declaration, dtype)
        self.gradients = Differentiator(self)
        self.candidate_seconds = 0.0
        self.recording: Recording | None = None
        # What was asked first, and the answer: it must be the same later on.
        self.first_answer: tuple[Inputs, Tensor] | None = None
        self.inputs = lru_cache(maxsize=REMEMBERED_PROBLEMS)(self._materialise)
        self._yardsticks: WeakKeyDictionary[Inputs, Yardstick] = WeakKeyDictionary()
        # The first call that was seen to write into what it was given.
        self.edited: list[Inputs] = []
        self._seal, self._replaced = seal(), tampered_at_load()

    def tampered(self) -> list[str]:
        """What calls since the last time, or loading, replaced of the judge; it is put back."""
        found = [*self._replaced, *self._seal.broken()]
        self._replaced.clear()
        return found

    def _materialise(self, problem: Problem) -> Inputs:
        return materialise(problem, self.candidate).replace(device=self.device)

    @contextmanager
    def recorded(self, into: Recording | None) -> Iterator[None]:
        """Keep the calls that are made meanwhile in a recording; None keeps none."""
        before, self.recording = self.recording, into
        try:
            yield
        finally:
            self.recording = before

    def forward(self, inputs: Inputs) -> Forward:
        """The callable for some inputs; a layer is built anew."""
        start = time.perf_counter()
        try:
            with watching(self._seal, self._replaced):
                forward = build_forward(self.candidate, inputs)
        finally:
            self.candidate_seconds += time.perf_counter() - start
        if self.recording is not None and self.candidate.kind == "layer":
            self.recording.add_built(forward, inputs)
        return forward

    def call(self, forward: Forward, inputs: Inputs) -> Answer:
        """Call a forward with copies of the inputs; raises CandidateFailure for a bad answer."""
        start = time.perf_counter()
        try:
            return self.ask(forward, arguments(inputs), inputs)
        finally:
            self.candidate_seconds += time.perf_counter() - start

    def ask(self, forward: Forward, given: Arguments, inputs: Inputs) -> Answer:
        """Call with tensors that are made from some inputs; raises CandidateFailure.

        Raises RowWithoutKeysRefused where a query has no key and nothing is promised about it, and
        StridesRefused for tensors that a candidate declares that it may refuse.
        """
        answer_of = self._answered if self.recording is None else self._recorded
        try:
            return answer_of(forward, given, inputs)
        except CandidateFailure as failure:
            if failure.violation.kind == "raised":
                if self._may_refuse(inputs):
                    raise RowWithoutKeysRefused(failure.violation) from failure
                if self.declaration.strides == "contiguous" and not is_contiguous(given):
                    raise StridesRefused(failure.violation) from failure
            raise

    def _answered(self, forward: Forward, given: Arguments, inputs: Inputs) -> Answer:
        before = taken(given)
        with watching(self._seal, self._replaced):
            returned = guarded(forward, *given, grad_mode=inputs.grad_mode)
        if not self.edited and written(before):
            self.edited.append(inputs)
        answer = read_answer(returned, inputs)
        if self.first_answer is None:
            self.first_answer = (inputs, answer.output)
        return answer

    def _recorded(self, forward: Forward, given: Arguments, inputs: Inputs) -> Answer:
        """The same, kept with its arguments as they were before the call."""
        made = Call(inputs=inputs, forward=forward, given=given, before=copied(given))
        recording = Recording() if self.recording is None else self.recording
        calls = recording.calls
        recording.begin(made)
        try:
            answer = self._answered(forward, given, inputs)
        except CandidateFailure as failure:
            calls.append(dataclasses.replace(made, refused=failure.violation))
            raise
        calls.append(
            dataclasses.replace(
                made, answer=answer, output=kept(answer.output), weights=kept(answer.weights)
            )
        )
        return answer

    def _may_refuse(self, inputs: Inputs) -> bool:
        """Whether some query has no key and the candidate promises nothing about such rows."""
        if self.oracle.empty_rule(inputs) != "any" or not (inputs.masked or inputs.causal):
            return False
        empty = ~inputs.allowed(self.declaration.semantics).any(dim=-1)
        return bool((empty if inputs.absent is None else empty & ~inputs.absent).any())

    def answer(self, inputs: Inputs) -> Tensor:
        """The candidate's output for some inputs."""
        return self.call(self.forward(inputs), inputs).output

    def golden(self, inputs: Inputs) -> Golden:
        """The golden answer and its bound; remembered."""
        return self.oracle.answer(inputs)

    def yardstick(self, inputs: Inputs) -> Yardstick:
        """The sharpest bound and the most exact answer for some inputs; remembered."""
        found = self._yardsticks.get(inputs)
        if found is None:
            self.golden(inputs)
            start = time.perf_counter()
            found = yardstick(self.oracle, inputs)
            self.oracle.seconds += time.perf_counter() - start
            self._yardsticks[inputs] = found
        return found

    def frame(self, inputs: Inputs) -> tuple[Tensor | None, Tensor, Tensor]:
        """Golden output, bound and judged rows; a measured bound where no golden exists."""
        if self.candidate.golden_known:
            known = self.golden(inputs)
            return known.output, known.bound, known.judged
        empty = ~inputs.allowed(self.declaration.semantics).any(dim=-1)
        judged = (~empty).all(dim=1).unsqueeze(-1) if inputs.is_layer else ~empty.unsqueeze(-1)
        return None, self.spread(inputs), judged

    def spread(self, inputs: Inputs) -> Tensor:
        """How far the candidate's own answers lie apart when its inputs change by one unit each."""
        with self.recorded(None):
            return self._measured_spread(inputs)

    def _measured_spread(self, inputs: Inputs) -> Tensor:
        forward = self.forward(inputs)
        base = self.call(forward, inputs).output.double()
        unit = torch.finfo(inputs.query.dtype).eps
        widest = torch.zeros_like(base)
        generator = torch.Generator().manual_seed(len(str(inputs.geometry)))
        for _ in range(SPREAD_CALLS):
            moved = inputs.with_tokens(
                query=_nudge(inputs.query, generator),
                key=_nudge(inputs.key, generator),
                value=_nudge(inputs.value, generator),
            )
            apart = (self.call(forward, moved).output.double() - base).abs()
            widest = torch.maximum(widest, _finite(apart))
        largest = widest.amax() + unit * _finite(base.abs()).amax() if base.numel() else 0.0
        return torch.zeros_like(base) + model.SPREAD_FACTOR * largest


def _finite(sizes: Tensor) -> Tensor:
    """Zero where a row without keys is NaN, so that it does not blind the bound of the others."""
    return sizes.nan_to_num(nan=0.0, posinf=0.0)


def _nudge(tensor: Tensor, generator: torch.Generator) -> Tensor:
    signs = torch.randint(0, 2, tensor.shape, generator=generator).double() * 2.0 - 1.0
    unit = torch.finfo(tensor.dtype).eps
    return (tensor.double() * (1.0 + unit * signs)).to(tensor.dtype)
