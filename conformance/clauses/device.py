"""device.*: answers on two devices, streams, captured graphs and memory."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from ..base.geometry import PROBE, Geometry
from ..calls.calling import Answer, Arguments, CandidateFailure, Forward, arguments, guarded
from ..calls.devices import (
    CPU,
    here,
    kind_of,
    module_of,
    offers,
    synchronise,
    whole_storage,
)
from ..calls.memory import Allocations, allocations, peak_bytes, why_unmeasured
from ..declare.candidate import Candidate
from ..problems.inputs import Inputs
from ..problems.problem import Problem
from ..problems.recipes import LIVELY
from ..problems.space import Space, admits_lengths
from .judging import identical, relate, same_unless_identical
from .rearranging import one_item
from .registry import Applies, Finding, clause, declares, requires, violated
from .subject import Subject


def on_a_device(candidate: Candidate) -> str:
    """Why a clause about other devices than the CPU does not apply, or ""."""
    if kind_of(candidate.declaration.devices[0]) != CPU:
        return ""
    return f"it is judged on the CPU, and {here()}"


def called_on_the_cpu(candidate: Candidate) -> str:
    """Why a candidate cannot be called on the CPU, or ""."""
    declared = candidate.declared_on or candidate.declaration.devices
    if any(kind_of(name) == CPU for name in declared):
        return ""
    return f"it is declared for {' and '.join(declared)} alone"


def needing(what: str, *functions: str) -> Applies:
    """Require that torch's module for the judged device has the named functions."""

    def applies(candidate: Candidate) -> str:
        device = candidate.declaration.devices[0]
        return "" if offers(device, *functions) else f"torch has no {what} on {device}"

    return applies


def in_this_process(candidate: Candidate) -> str:
    """Why what a candidate does with memory cannot be observed, or ""."""
    if candidate.graph is not None:
        return "onnxruntime makes its tensors in a process of its own"
    arrays = candidate.declaration.arrays
    return "" if arrays == "torch" else f"its {arrays} arrays are not torch's"


# How often a call is made again: races and atomic sums show in some calls only.
REPEATS = 8


@clause(
    "device.matches-cpu",
    sentence="On a device the answer is that of the same candidate on the CPU, within both bounds.",
    source="pytorch#112577, #116333: kernels of one operator that differ by device",
    space=Space(mask="maybe", causal="maybe", extras="maybe", values=LIVELY),
    counterfactual="the mean of the values",
    applies=(on_a_device, called_on_the_cpu),
    explained=False,
)
def matches_cpu(subject: Subject, problem: Problem) -> Finding:
    """The answer to one problem on both devices."""
    on_device = subject.inputs(problem)
    on_cpu = on_device.replace(device="cpu")
    return relate(
        subject,
        (on_cpu, subject.answer(on_cpu)),
        (on_device, subject.answer(on_device)),
        f"on {subject.device} the answer is another than on the CPU",
        counterfactual=on_device.replace(scale=0.0),
    )


@clause(
    "device.deterministic",
    level="SHOULD",
    sentence="On a device the same call made many times gives the same bits each time.",
    source="flash-attention#359: races; atomic additions finish in any order",
    space=Space(mask="maybe", causal="maybe", edges="lengths", share=0.5),
    applies=(on_a_device,),
    explained=False,
)
def deterministic(subject: Subject, problem: Problem) -> Finding:
    """Equal calls of one forward; on a CPU state.bitwise-repeatable checks them."""
    inputs = subject.inputs(problem)
    forward = subject.forward(inputs)
    first = subject.call(forward, inputs).output
    for number in range(1, REPEATS):
        if not identical(first, subject.call(forward, inputs).output):
            message = f"on {subject.device} call {number + 1} of equal ones gives other bits"
            return violated("value", message)
    return Finding()


@clause(
    "device.batch-invariant",
    level="SHOULD",
    sentence="The bits of an item's answer do not depend on the other items of its batch.",
    source=(
        "He et al. 2025, Defeating nondeterminism in LLM inference: splits chosen by the batch; "
        "declared, as torch.matmul does not promise it"
    ),
    space=Space(mask="maybe", causal="maybe", least=(("batch", 2),), edges="lengths"),
    applies=(declares("batch_invariant", "batch_invariant is not declared"),),
    explained=False,
)
def batch_invariant(subject: Subject, problem: Problem) -> Finding:
    """An item of a batch, and the same item alone."""
    inputs = subject.inputs(problem)
    item = problem.seed % inputs.geometry.batch
    alone, view = one_item(subject, inputs, item)
    together, single = view(subject.answer(inputs)), subject.answer(alone)
    if identical(together, single):
        return Finding(binding=alone.geometry.batch != inputs.geometry.batch)
    largest = float((together.double() - single.double()).abs().nan_to_num().max())
    count = inputs.geometry.batch
    message = f"an item of {count} is answered with other bits alone (by up to {largest:.3g})"
    return violated("value", message, got=largest, expected=0.0)


# Long enough for a kernel that does not wait to end before its inputs arrive: cycles of
# torch.cuda._sleep (about 25 ms), or products of square matrices on devices without that function.
CYCLES = 50_000_000
PRODUCTS, WIDTH = 40, 1024
WARM_UP = 3


@clause(
    "device.stream",
    sentence=(
        "Called on a stream that is not the default one, it works on that stream: its answer is "
        "right once that stream is synchronised."
    ),
    source="CUDA programming guide, streams; pytorch, CUDA semantics: the current stream",
    space=Space(mask="maybe", causal="maybe", values=LIVELY, share=0.5),
    applies=(on_a_device, needing("streams", "Stream", "stream")),
    explained=False,
)
def stream(subject: Subject, problem: Problem) -> Finding:
    """The tensors hold NaN until the busy stream fills them.

    A candidate that works on another stream without waiting reads NaN. Only this stream is waited
    for.
    """
    inputs = subject.inputs(problem)
    forward = subject.forward(inputs)
    plain = subject.call(forward, inputs).output  # compiles and tunes beforehand
    call_arguments, values = arguments(inputs), arguments(inputs)
    for tensor in _floating(call_arguments):
        tensor.fill_(torch.nan)
    synchronise(subject.device)
    late = _Late(forward, call_arguments, values, subject.device)
    answer = subject.call_with(late, call_arguments, inputs).output
    wording = "on a stream of its own the answer is another: something does not wait for it"
    return relate(subject, (inputs, plain), (inputs, answer), wording)


class _Late:
    """Calls a forward on a side stream where the input values arrive late."""

    def __init__(
        self, forward: Forward, call_arguments: Arguments, values: Arguments, device: str
    ) -> None:
        self.forward = forward
        self.pairs = list(zip(_floating(call_arguments), _floating(values), strict=True))
        self.device = device

    def __call__(self, *positional: Any, **keywords: Any) -> Any:
        module = module_of(self.device)
        side = module.Stream(device=self.device)
        with module.stream(side):
            fall_behind(self.device)
            for tensor, values in self.pairs:
                tensor.data.copy_(values)  # counts as no change of the tensor by the candidate
            returned = _copied(self.forward(*positional, **keywords))
        side.synchronize()
        return returned


def fall_behind(device: str) -> None:
    """Keep the current stream of a device busy for a while."""
    sleep = getattr(module_of(device), "_sleep", None)
    if sleep is not None:
        sleep(CYCLES)
        return
    busy = torch.ones(WIDTH, WIDTH, device=device)
    for _ in range(PRODUCTS):
        busy = busy @ busy


def _copied(returned: Any) -> Any:
    if isinstance(returned, tuple):
        return tuple(_copied(part) for part in returned)
    return returned.clone() if isinstance(returned, Tensor) else returned


def _floating(call_arguments: Arguments) -> list[Tensor]:
    tensors = {id(tensor): tensor for tensor in call_arguments[0] if tensor.is_floating_point()}
    return list(tensors.values())


@clause(
    "device.graph-capture",
    sentence="Captured as a graph and replayed with other inputs, it gives the answer to these.",
    source="pytorch, CUDA graphs: static inputs, no synchronisation, nothing decided by values",
    space=Space(causal="maybe", values=LIVELY, share=0.5),
    counterfactual="the answer to what was captured",
    applies=(
        declares("graph_capture", "graph_capture is not declared"),
        on_a_device,
        needing("graphs", "CUDAGraph", "graph", "Stream", "stream"),
    ),
    explained=False,
)
def graph_capture(subject: Subject, problem: Problem) -> Finding:
    """One capture; the replay answers the values of another seed."""
    first = subject.inputs(problem)
    drawn = subject.inputs(problem.replace(seed=problem.seed + 1))
    other = drawn.replace(weights=first.weights, generic=False)
    forward = subject.forward(first)
    eager = subject.call(forward, other).output
    call_arguments = arguments(first)
    captured = _Captured(forward, arguments(other), subject.device)
    answer = subject.call_with(captured, call_arguments, other).output
    wording = "replayed from a graph the answer is another than when it is called"
    return relate(subject, (other, eager), (other, answer), wording, counterfactual=first)


class _Captured:
    """Captures a forward as a CUDA graph and replays it with new values in the captured tensors."""

    def __init__(self, forward: Forward, values: Arguments, device: str) -> None:
        self.forward = forward
        self.values = values
        self.device = device

    def __call__(self, *positional: Any, **keywords: Any) -> Any:
        """Warm up on a stream of its own, as torch requires; capture; replay."""
        module = module_of(self.device)
        side = module.Stream(device=self.device)
        synchronise(self.device)
        with module.stream(side):
            for _ in range(WARM_UP):
                self.forward(*positional, **keywords)
        synchronise(self.device)
        graph = module.CUDAGraph()
        with module.graph(graph):
            returned = self.forward(*positional, **keywords)
        for tensor, values in zip(positional, self.values[0], strict=True):
            tensor.copy_(values)
        graph.replay()
        synchronise(self.device)
        return returned


# Equal to the space of shape.bounds, so that the golden answers are already computed.
ANY = Space(mask="maybe", causal="maybe", share=0.5)


@dataclass
class _GuardedForward:
    forward: Forward
    allocations: Allocations = field(default_factory=allocations)

    def __call__(self, *positional: Any, **keywords: Any) -> Any:
        with self.allocations:
            return self.forward(*positional, **keywords)


def _watch(
    subject: Subject, inputs: Inputs, call_arguments: Arguments
) -> tuple[Answer | None, Allocations]:
    """The answer, with guards around allocations; None from a candidate that fails under them.

    An earlier call has already compiled and tuned.
    """
    watched = _GuardedForward(subject.forward(inputs))
    try:
        return subject.call_with(watched, call_arguments, inputs), watched.allocations
    except CandidateFailure:
        return None, watched.allocations


UNWATCHED = "it cannot be called while what torch allocates is watched"
NOTHING_UNWRITTEN = "it allocates no memory that torch leaves unwritten"


@clause(
    "device.canaries",
    sentence=(
        "Nothing is written outside of tensors: neither beside those that it is given nor beside "
        "those that it allocates."
    ),
    source="compute-sanitizer, memcheck; tiles that are stored without a mask",
    space=ANY,
    applies=(in_this_process,),
    explained=False,
)
def canaries(subject: Subject, problem: Problem) -> Finding:
    """Patterns around every input and every tensor that torch allocates, compared bit for bit."""
    layout = "between-canaries"
    inputs = subject.inputs(problem).replace(layout=layout, mask_layout=layout)
    subject.answer(inputs)
    call_arguments = arguments(inputs)
    tensors = _named(subject, call_arguments)
    before = {name: whole_storage(tensor).clone() for name, tensor in tensors.items()}
    answer, guard = _watch(subject, inputs, call_arguments)
    changed = [name for name, tensor in tensors.items() if _changed_around(tensor, before[name])]
    damage = f"into memory beside its {' and '.join(changed)}" if changed else guard.damage()
    if damage:
        return violated("memory", f"the call wrote {damage}", got=changed)
    return Finding(binding=answer is not None, inapplicable="" if answer else UNWATCHED)


def _named(subject: Subject, call_arguments: Arguments) -> dict[str, Tensor]:
    positional, keywords = call_arguments
    named = dict(zip(subject.declaration.positional, positional, strict=False))
    named |= {name: value for name, value in keywords.items() if isinstance(value, Tensor)}
    return {name: tensor for name, tensor in named.items() if isinstance(tensor, Tensor)}


def _changed_around(tensor: Tensor, before: Tensor) -> bool:
    """Whether the storage has changed outside of the tensor's own elements."""
    after = whole_storage(tensor).clone()
    own = after.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())
    own.copy_(before.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset()))
    return not identical(after, before)


@clause(
    "device.fresh-memory",
    sentence="The answer does not depend on what newly allocated memory happens to hold.",
    source="torch.empty: uninitialised data; torch.utils.deterministic.fill_uninitialized_memory",
    space=ANY,
    applies=(in_this_process,),
    explained=False,
)
def fresh_memory(subject: Subject, problem: Problem) -> Finding:
    """Fill memory that torch leaves unwritten with NaN; the answer must not change."""
    inputs = subject.inputs(problem)
    plain = subject.answer(inputs)
    answer, guard = _watch(subject, inputs, arguments(inputs))
    if answer is None or not guard.unwritten:
        reason = UNWATCHED if answer is None else NOTHING_UNWRITTEN
        return Finding(inapplicable=reason)
    wording = "with NaN in memory that nobody has written the answer is another"
    return same_unless_identical(subject, (inputs, plain), (inputs, answer.output), wording)


# Each twice the one before. Tiles stop growing somewhere: of the CPU's flash kernel at 1024.
LENGTHS = (1024, 2048, 4096)
HEADS = {"num_heads", "num_kv_heads"}
POWERS = {"linear": 1, "quadratic": 2}


_promises = requires(lambda c: c.declaration.memory, "no growth of its memory is declared")


def _measured(candidate: Candidate) -> str:
    return in_this_process(candidate) or why_unmeasured(candidate.declaration.devices[0])


def _takes_long_sequences(candidate: Candidate) -> str:
    longest = _long(PROBE, LENGTHS[-1])
    fits = all(admits_lengths(candidate, _long(PROBE, length)) for length in LENGTHS)
    return "" if fits else f"it does not take a length of {longest.key_length}"


@clause(
    "device.memory",
    sentence="The peak of a call's memory grows with the length no faster than is declared.",
    source="Dao et al. 2022, FlashAttention: memory linear in the length",
    space=Space(causal="offered", share=0.01),
    applies=(_promises, _measured, _takes_long_sequences),
    explained=False,
)
def memory(subject: Subject, problem: Problem) -> Finding:
    """Queries and keys of three lengths, each twice the one before, and the bytes held at the peak.

    What grows by ``a + b n`` grows by twice as much in the second step as in the first, with a
    quadratic part by up to four times as much: the middle of both decides. A tile that ends to grow
    in between, and a fixed part that outweighs the rest, look like more; but then the peak itself
    does not double in both steps.
    """
    always = subject.declaration.always_causal
    ways = (True,) if always else tuple(dict.fromkeys((problem.causal, False)))
    findings = (_growth(subject, problem.replace(causal=causal)) for causal in ways)
    return next((finding for finding in findings if finding.violation is not None), Finding())


def _growth(subject: Subject, problem: Problem) -> Finding:
    power = POWERS[str(subject.declaration.memory)]
    subject.answer(_of_length(subject, problem, LENGTHS[0]))
    peaks = [_peak(subject, problem, length) for length in LENGTHS]
    doubled = all(after > 2**power * before for before, after in pairwise(peaks))
    first, second = (after - before for before, after in pairwise(peaks))
    if not doubled or 2 * second <= (2**power + 2 ** (power + 1)) * first:
        return Finding()
    shown = ", ".join(f"{peak} at {length}" for peak, length in zip(peaks, LENGTHS, strict=True))
    declared = f"declared to grow {subject.declaration.memory}ly with the length"
    causal = ", causal" if problem.causal else ""
    message = f"{declared}, the memory of a call{causal} grows faster: bytes {shown}"
    return violated("memory", message, got=peaks)


def _peak(subject: Subject, problem: Problem, length: int) -> int:
    """The peak of a call's bytes; what a candidate makes once was made by an earlier call."""
    inputs = _of_length(subject, problem, length)
    forward = subject.forward(inputs)

    def call() -> None:
        guarded(forward, *call_arguments)

    call_arguments = arguments(inputs)
    return peak_bytes(call, subject.device)


def _of_length(subject: Subject, problem: Problem, length: int) -> Inputs:
    sizes = _long(_small(subject.candidate, problem.geometry), length)
    return subject.inputs(problem.replace(geometry=sizes, mask=None))


def _small(candidate: Candidate, geometry: Geometry) -> Geometry:
    """Reduce to one item, and a core to one head, where allowed: the length dominates."""
    if admits_lengths(candidate, geometry.replace(batch=1)):
        geometry = geometry.replace(batch=1)
    pins = candidate.declaration.pins
    tied = {*pins.sizes, *pins.equal_to, *pins.equal_to.values()} & HEADS
    if candidate.kind == "core" and not tied and pins.build is None:
        geometry = geometry.replace(num_heads=1, num_kv_heads=1)
    return geometry


def _long(geometry: Geometry, length: int) -> Geometry:
    return geometry.replace(query_length=length, key_length=length)
