"""A candidate under test in one dtype, called for clauses, with its golden answers."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import Any, Final, Protocol
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from ..base.geometry import PROBE
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
from ..calls.devices import CPU, bits_of, moved
from ..calls.differentiating import (
    Gradients,
    NotDifferentiable,
    Taped,
    as_returned,
    lost,
    require_gradients,
)
from ..calls.integrity import Seal, seal, tampered_at_load, watching
from ..calls.recording import RecordedBackward, RecordedCall, Recording
from ..calls.weight_leaves import build_with_leaves
from ..declare.candidate import Candidate
from ..oracle.gradient_oracle import GradientOracle
from ..oracle.oracle import Golden, Oracle
from ..oracle.yardstick import Yardstick, yardstick
from ..problems.fitting import causal_flag, fitted_geometry
from ..problems.inputs import Inputs
from ..problems.materialise import materialise
from ..problems.problem import Problem
from ..problems.space import Space
from ..tolerance import model

Snapshot = list[tuple[Tensor, int, Tensor | None]]


def snapshot(call_arguments: Arguments) -> Snapshot:
    """The tensors of a call with their versions, and with copies of those on the CPU."""
    positional, keywords = call_arguments
    tensors = [value for value in (*positional, *keywords.values()) if isinstance(value, Tensor)]
    with torch.no_grad():
        return [
            (tensor, tensor._version, bits_of(tensor).clone() if tensor.is_cpu else None)  # noqa: SLF001 (public in all but name)
            for tensor in tensors
        ]


def unwritten(call_arguments: Arguments, inputs: Inputs) -> Arguments:
    """The arguments without the caches that a call is to write into."""
    positional, keywords = call_arguments
    return (positional[:1] if inputs.writes else positional), keywords


def was_written(before: Snapshot) -> bool:
    """Whether a tensor was written to since the snapshot.

    On the CPU bits are compared. On a device only the version that torch counts is: to compare bits
    would mean to wait for it.
    """
    with torch.no_grad():
        return any(
            tensor._version != version if copy is None else not torch.equal(bits_of(tensor), copy)  # noqa: SLF001
            for tensor, version, copy in before
        )


_LOST: Final = "the answer does not require a gradient, though {}"
_LOST_HERE: Final = f"{_LOST}; the answer to a plain call, where all inputs do, requires one"
_NONE: Final = "its answer carries no gradient"
_REFUSES: Final = "it refuses inputs that require gradients"


class Differentiator:
    """The gradients of a subject; ``oracle`` computes the golden gradients."""

    def __init__(self, subject: Subject) -> None:
        self.subject = subject
        self.oracle = GradientOracle(subject.oracle)

    def of(self, inputs: Inputs, upstream: Tensor) -> Gradients:
        """The gradients of every input, and of a layer's weights where they can be computed."""
        return self.pull(self.tape(inputs, weights=True), upstream)

    def tape(
        self,
        inputs: Inputs,
        *,
        forward: Forward | None = None,
        call_arguments: Arguments | None = None,
        names: tuple[str, ...] | None = None,
        bias: bool = False,
        weights: bool = False,
    ) -> Taped:
        """Call with gradients recorded; raises the exceptions of :meth:`of`.

        ``forward`` and ``call_arguments`` are made from the inputs where they are None. ``names``
        are the positional arguments that require a gradient ("input 0" …; None: all), and ``bias``
        and ``weights`` say whether the additive mask and the weights do.
        """
        subject, weight_leaves = self.subject, None
        if forward is None and weights:
            forward, weight_leaves = build_with_leaves(subject.candidate, inputs)
            if subject.recording is not None and subject.candidate.kind == "layer":
                subject.recording.add_built(forward, inputs)
        forward = subject.forward(inputs) if forward is None else forward
        call_arguments = arguments(inputs) if call_arguments is None else call_arguments
        leaves = require_gradients(call_arguments, names, bias=bias)
        recorded = inputs.replace(grad_mode=True)
        try:
            with subject.timed():
                answer = subject.call_with(forward, call_arguments, recorded)
        except CandidateFailure as failure:
            self._refused(failure, recorded)
            raise
        taped = Taped(
            inputs=inputs,
            arguments=call_arguments,
            leaves=leaves,
            answer=answer,
            weights=weight_leaves,
            # The gradients of a module's own parameters belong to its owner and are kept.
            other_parameters=tuple(forward.parameters()) if isinstance(forward, nn.Module) else (),
        )
        if not taped.returned.requires_grad:
            self._without_history(names, bias=bias)
        return taped

    def pull(self, taped: Taped, upstream: Tensor, *, again: bool = False) -> Gradients:
        """The gradients that flow back through a recorded call."""
        try:
            with self.subject.timed():
                gradients = taped.pull(upstream, again=again)
        except CandidateFailure as failure:
            if not self._promised and failure.violation.got == NotImplementedError.__name__:
                raise NotDifferentiable(failure.violation.message) from failure
            raise
        if self.subject.recording is not None:
            self.subject.recording.pulled.append(
                RecordedBackward(
                    answer=taped.answer,
                    upstream=as_returned(upstream, taped).detach(),
                    leaves=tuple(taped.leaves),
                    gradients=gradients.by_name,
                )
            )
        return gradients

    @property
    def _promised(self) -> bool:
        """Whether the candidate itself promises gradients, beyond the default."""
        return "gradients" in self.subject.declaration.declared_features

    def _refused(self, failure: CandidateFailure, inputs: Inputs) -> None:
        """Raise NotDifferentiable where the same call is answered without gradients."""
        if failure.violation.kind != "raised" or self._promised:
            return
        if self.subject.answers(inputs.replace(grad_mode=False)):
            raise NotDifferentiable(_REFUSES) from failure

    def _without_history(self, names: tuple[str, ...] | None, *, bias: bool) -> None:
        """Raise for an answer that requires no gradient, though differentiable arguments do.

        CandidateFailure where gradients are promised or a plain call's answer requires them, else
        NotDifferentiable.
        """
        positional = self.subject.declaration.positional
        roles = [] if names is None else [positional[int(name.split()[-1])] for name in names]
        roles += ["the additive mask"] * (bias and names is not None)
        which = f"{roles[0]} alone requires one" if len(roles) == 1 else "the inputs do"
        if self._promised:
            raise lost(_LOST.format(which))
        if self._has_history:
            raise lost(_LOST_HERE.format(which))
        raise NotDifferentiable(_NONE)

    @cached_property
    def _has_history(self) -> bool:
        """Whether the answer of a small call without options requires a gradient."""
        subject = self.subject
        problem = Problem(
            geometry=fitted_geometry(PROBE, subject.candidate, Space()),
            dtype=subject.dtype,
            seed=1,
            causal=causal_flag(subject.candidate, flagged=False),
        )
        inputs = subject.inputs(problem).replace(grad_mode=True)
        with subject.recorded(None):
            try:
                call_arguments = arguments(inputs)
                require_gradients(call_arguments, None)
                answer = subject.call_with(subject.forward(inputs), call_arguments, inputs)
            except CandidateFailure:
                return False
        return answer.returned is not None and answer.returned.requires_grad


# Logits of the problems whose tensors and golden answers are remembered. A golden answer has some
# twenty stages of eight bytes each for a logit: about 50 MB, as much as the spaces in turn need.
REMEMBERED_LOGITS: Final = 300_000
# The logits counted for a problem with next to none.
LEAST_LOGITS: Final = 256
# Perturbed calls that measure the spread of a candidate whose weights are unknown.
SPREAD_CALLS = 4


class RememberedInputs(Protocol):
    """Makes the tensors of a problem, and remembers them."""

    @property
    def __wrapped__(self) -> Callable[..., Inputs]:
        """The function that makes the tensors anew."""

    def __call__(self, problem: Problem, /) -> Inputs:
        """The tensors of a problem; a remembered problem gives the identical object."""


class _Remembered:
    """The tensors of the latest problems; golden answers live as long."""

    def __init__(self, make: Callable[[Problem], Inputs]) -> None:
        self.__wrapped__ = make
        self._made: dict[Problem, Inputs] = {}
        self._logits = 0

    def __call__(self, problem: Problem) -> Inputs:
        """The tensors of a problem; a remembered problem gives the identical object."""
        made = self._made.pop(problem, None)
        if made is None:
            made = self.__wrapped__(problem)
            self._logits += _logits(problem)
        self._made[problem] = made
        while self._logits > REMEMBERED_LOGITS and len(self._made) > 1:
            oldest = next(iter(self._made))
            del self._made[oldest]
            self._logits -= _logits(oldest)
        return made


def _logits(problem: Problem) -> int:
    sizes = problem.geometry
    heads = sizes.batch * sizes.num_heads
    return max(LEAST_LOGITS, heads * sizes.query_length * sizes.key_length)


class Subject:
    """A candidate on one device and its oracle, for the checks of the clauses.

    ``sealed`` is the state of the judge that calls must keep; its present state by default. With
    ``only_violations`` checks skip the question whether an example binds. With ``slow_calls`` the
    candidate is not called again where a known answer to equal inputs suffices; other candidates
    are called again, as chance may decide an answer.
    """

    only_violations = False

    def __init__(
        self,
        candidate: Candidate,
        dtype: str,
        device: str = "cpu",
        *,
        sealed: Seal | None = None,
        slow_calls: bool = False,
    ) -> None:
        self.candidate = candidate.on(device)
        self.declaration = self.candidate.declaration
        self.dtype = dtype
        self.device = device
        self.oracle = Oracle(self.declaration, dtype)
        self.gradients = Differentiator(self)
        self.candidate_seconds = 0.0
        self.recording: Recording | None = None
        # The inputs of the first call and its answer: the answer must not change later on.
        self.first_answer: tuple[Inputs, Tensor] | None = None
        self.inputs: RememberedInputs = _Remembered(self._materialise)
        self._yardsticks: WeakKeyDictionary[Inputs, Yardstick] = WeakKeyDictionary()
        self.slow_calls = slow_calls
        # The problems that clauses asked where calls are slow, and the answers to plain calls.
        self.asked: list[Problem] = []
        self.known: dict[Inputs, Tensor] = {}
        # The inputs of the first call that wrote into its arguments.
        self.edited: list[Inputs] = []
        self.sealed, self._replaced = sealed or seal(), tampered_at_load()

    def share(self, other: Subject) -> None:
        """Use the problems and golden answers of a subject of the same declaration and dtype."""
        self.oracle, self.inputs, self._yardsticks = other.oracle, other.inputs, other._yardsticks
        self.gradients = Differentiator(self)

    def tampered(self) -> list[str]:
        """The names that loading, or calls since the last look, replaced in torch or the harness.

        The original objects are put back.
        """
        names = [*self._replaced, *self.sealed.broken()]
        self._replaced.clear()
        return names

    def like(self, candidate: Candidate | None = None) -> Subject:
        """The subject of another candidate, or of this candidate anew; dtype and device stay.

        Both share the record of the candidate's replacements in torch, which are undone once.
        """
        return Subject(candidate or self.candidate, self.dtype, self.device, sealed=self.sealed)

    def called_otherwise(self, change: Callable[[Forward], Forward]) -> Subject:
        """The subject of this candidate with ``change`` applied to every forward."""
        function = self.candidate.function

        def built(*given: Any, **options: Any) -> Forward:
            return change(function(*given, **options))

        changed = built if self.candidate.kind == "layer" else change(function)
        return self.like(dataclasses.replace(self.candidate, function=changed))

    def _materialise(self, problem: Problem) -> Inputs:
        inputs = materialise(problem, self.candidate)
        return inputs if inputs.device == self.device else inputs.replace(device=self.device)

    @contextmanager
    def recorded(self, into: Recording | None) -> Iterator[None]:
        """Keep the calls that are made meanwhile in a recording; None keeps none."""
        before, self.recording = self.recording, into
        try:
            yield
        finally:
            self.recording = before

    @contextmanager
    def looking_for_violations(self) -> Iterator[None]:
        """Spare the checks of clauses meanwhile what says only whether an example binds."""
        before, self.only_violations = self.only_violations, True
        try:
            yield
        finally:
            self.only_violations = before

    @contextmanager
    def timed(self) -> Iterator[None]:
        """Add the seconds spent in the block to the candidate's seconds."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.candidate_seconds += time.perf_counter() - start

    def forward(self, inputs: Inputs) -> Forward:
        """The callable for the inputs; a layer is built for them."""
        with self.timed(), watching(self.sealed, self._replaced):
            forward = build_forward(self.candidate, inputs)
        if self.recording is not None and self.candidate.kind == "layer":
            self.recording.add_built(forward, inputs)
        return forward

    def call(self, forward: Forward, inputs: Inputs) -> Answer:
        """Call a forward with copies of the inputs; raises CandidateFailure for a bad answer."""
        with self.timed():
            answer = self.call_with(forward, arguments(inputs), inputs)
        if self.slow_calls and not inputs.grad_mode:
            self.known[inputs] = answer.output
        return answer

    def call_with(self, forward: Forward, call_arguments: Arguments, inputs: Inputs) -> Answer:
        """Call with arguments made from ``inputs``; raises CandidateFailure.

        Raises RowWithoutKeysRefused where a query has no key and the candidate promises nothing for
        rows without keys, and StridesRefused for tensors that the candidate declares it may refuse.
        """
        answer_of = self._call if self.recording is None else self._call_and_record
        try:
            return answer_of(forward, call_arguments, inputs)
        except CandidateFailure as failure:
            if failure.violation.kind == "raised":
                if self._may_refuse(inputs):
                    raise RowWithoutKeysRefused(failure.violation) from failure
                if self.declaration.strides == "contiguous" and not is_contiguous(call_arguments):
                    raise StridesRefused(failure.violation) from failure
            raise

    def _call(self, forward: Forward, call_arguments: Arguments, inputs: Inputs) -> Answer:
        before = snapshot(unwritten(call_arguments, inputs))
        with watching(self.sealed, self._replaced):
            returned = guarded(forward, *call_arguments, grad_mode=inputs.grad_mode)
        if not self.edited and was_written(before):
            self.edited.append(inputs)
        answer = read_answer(returned, inputs)
        if self.first_answer is None:
            self.first_answer = (inputs, answer.output)
        return answer

    def _call_and_record(
        self, forward: Forward, call_arguments: Arguments, inputs: Inputs
    ) -> Answer:
        """Call, and record the call with copies of its arguments made before."""
        made = RecordedCall(
            inputs=inputs,
            forward=forward,
            arguments=call_arguments,
            before=moved(call_arguments, CPU),
        )
        recording = Recording() if self.recording is None else self.recording
        calls = recording.calls
        recording.begin(made)
        try:
            answer = self._call(forward, call_arguments, inputs)
        except CandidateFailure as failure:
            calls.append(dataclasses.replace(made, refused=failure.violation))
            raise
        calls.append(
            dataclasses.replace(
                made,
                answer=answer,
                output=answer.output.clone(),
                weights=None if answer.weights is None else answer.weights.clone(),
            )
        )
        return answer

    def _may_refuse(self, inputs: Inputs) -> bool:
        """Whether a query has no key and the candidate promises nothing about rows without keys."""
        if self.oracle.empty_rule(inputs) != "any" or not (inputs.masked or inputs.causal):
            return False
        empty = ~inputs.allowed(self.declaration.semantics).any(dim=-1)
        return bool((empty if inputs.absent is None else empty & ~inputs.absent).any())

    def answer(self, inputs: Inputs) -> Tensor:
        """The candidate's output for some inputs."""
        return self.call(self.forward(inputs), inputs).output

    def any_answer(self, inputs: Inputs) -> Tensor:
        """The candidate's output for some inputs, of an earlier call unless calls are recorded."""
        known = self.known.get(inputs) if self.recording is None else None
        return self.answer(inputs) if known is None else known

    def known_problems(self) -> list[Problem]:
        """The distinct problems asked by clauses whose answers are kept."""
        return [one for one in dict.fromkeys(self.asked) if self.inputs(one) in self.known]

    def answer_or_refusal(self, inputs: Inputs) -> Tensor | None:
        """The candidate's output; None where it raises. A bad answer is a CandidateFailure."""
        try:
            return self.answer(inputs)
        except CandidateFailure as failure:
            if failure.violation.kind != "raised":
                raise
            return None

    def answers(self, inputs: Inputs) -> bool:
        """Whether the candidate gives an answer that can be read; nothing is recorded."""
        with self.recorded(None):
            try:
                self.answer(inputs)
            except CandidateFailure:
                return False
        return True

    def golden(self, inputs: Inputs) -> Golden:
        """The golden answer with its bound; remembered."""
        return self.oracle.answer(inputs)

    def yardstick(self, inputs: Inputs) -> Yardstick:
        """The sharpest bound and the most exact answer for some inputs; remembered."""
        remembered = self._yardsticks.get(inputs)
        if remembered is None:
            self.golden(inputs)
            start = time.perf_counter()
            remembered = yardstick(self.oracle, inputs)
            self.oracle.seconds += time.perf_counter() - start
            self._yardsticks[inputs] = remembered
        return remembered

    def frame(self, inputs: Inputs) -> tuple[Tensor | None, Tensor, Tensor]:
        """Golden output, bound and judged rows; a measured bound where no golden exists."""
        if self.candidate.golden_known:
            expected = self.golden(inputs)
            return expected.output, expected.bound, expected.judged
        empty = ~inputs.allowed(self.declaration.semantics).any(dim=-1)
        judged = ~inputs.answer_rows(empty, self.declaration.semantics)
        return None, self.spread(inputs), judged

    def spread(self, inputs: Inputs) -> Tensor:
        """How far the candidate's own answers lie apart when its inputs change by one unit each."""
        with self.recorded(None):
            forward = self.forward(inputs)
            base = self.call(forward, inputs).output.double()
            unit = torch.finfo(inputs.query.dtype).eps
            widest = torch.zeros_like(base)
            generator = torch.Generator().manual_seed(len(str(inputs.geometry)))
            for _ in range(SPREAD_CALLS):
                other = self.call(forward, nudged(inputs, generator)).output.double()
                widest = torch.maximum(widest, _finite((other - base).abs()))
        largest = widest.amax() + unit * _finite(base.abs()).amax() if base.numel() else 0.0
        return torch.zeros_like(base) + model.SPREAD_FACTOR * largest


def _finite(sizes: Tensor) -> Tensor:
    """Replace NaN and infinities by zero: rows without keys would spoil the bound of all rows."""
    return sizes.nan_to_num(nan=0.0, posinf=0.0)


def nudged(inputs: Inputs, generator: torch.Generator) -> Inputs:
    """The inputs with each number of the tokens changed by about one unit in the last place."""

    def changed(tensor: Tensor) -> Tensor:
        signs = torch.randint(0, 2, tensor.shape, generator=generator).double() * 2.0 - 1.0
        unit = torch.finfo(tensor.dtype).eps
        return (tensor.double() * (1.0 + unit * signs)).to(tensor.dtype)

    return inputs.map_tokens(changed)
