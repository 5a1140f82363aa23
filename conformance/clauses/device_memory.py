"""device.canaries, .fresh-memory, .memory: what a call writes outside, takes for zero, holds."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from torch import Tensor

from ..base.geometry import Geometry
from ..calls.calling import Answer, Arguments, CandidateFailure, Forward, arguments, guarded
from ..calls.devices import judged_on, whole_storage
from ..calls.memory import Allocations, allocations, peak_bytes, why_unmeasured
from ..declare.candidate import Candidate
from ..problems.inputs import Inputs
from ..problems.problem import Problem
from ..problems.space import PROBE, Space, admits_lengths
from ._vocabulary import identical, same_unless_identical
from .device import in_this_process
from .registry import Finding, clause, requires, violated
from .subject import Subject

# That of shape.bounds, so that the golden answers are there already.
ANY = Space(mask="maybe", causal="maybe", share=0.5)


@dataclass
class _Watched:
    """A forward whose allocations are guarded while it runs."""

    forward: Forward
    allocations: Allocations = field(default_factory=allocations)

    def __call__(self, *positional: Any, **keywords: Any) -> Any:
        """The call, between guards."""
        with self.allocations:
            return self.forward(*positional, **keywords)


def _watch(subject: Subject, inputs: Inputs, given: Arguments) -> tuple[Answer | None, Allocations]:
    """The answer between guards; None from a candidate that can be called, but not watched.

    It has been called before: what is compiled or tuned in the first call is so by now.
    """
    watched = _Watched(subject.forward(inputs))
    try:
        return subject.ask(watched, given, inputs), watched.allocations
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
    source="PEERS: canaries; tiles that are stored without a mask",
    space=ANY,
    applies=(in_this_process,),
    explained=False,
)
def canaries(subject: Subject, problem: Problem) -> Finding:
    """Patterns around every input and every tensor that torch makes meanwhile, bit for bit."""
    layout = "between-canaries"
    inputs = subject.inputs(problem).replace(layout=layout, mask_layout=layout)
    subject.answer(inputs)
    given = arguments(inputs)
    tensors = _named(subject, given)
    before = {name: whole_storage(tensor).clone() for name, tensor in tensors.items()}
    answer, allocations = _watch(subject, inputs, given)
    changed = [name for name, tensor in tensors.items() if _beside_changed(tensor, before[name])]
    beside = f"into memory beside its {' and '.join(changed)}" if changed else allocations.damage()
    if beside:
        return violated("memory", f"the call wrote {beside}", got=changed)
    return Finding(binding=answer is not None, inapplicable="" if answer else UNWATCHED)


def _named(subject: Subject, given: Arguments) -> dict[str, Tensor]:
    positional, keywords = given
    named = dict(zip(subject.declaration.positional, positional, strict=False))
    named |= {name: value for name, value in keywords.items() if isinstance(value, Tensor)}
    return {name: tensor for name, tensor in named.items() if isinstance(tensor, Tensor)}


def _beside_changed(tensor: Tensor, before: Tensor) -> bool:
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
    """What torch hands out unfilled is NaN, and the answer is what it is otherwise."""
    inputs = subject.inputs(problem)
    plain = subject.answer(inputs)
    answer, allocations = _watch(subject, inputs, arguments(inputs))
    if answer is None or not allocations.unwritten:
        told = UNWATCHED if answer is None else NOTHING_UNWRITTEN
        return Finding(binding=False, inapplicable=told)
    wording = "with NaN in memory that nobody has written the answer is another"
    return same_unless_identical(subject, (inputs, plain), (inputs, answer.output), wording)


# Each twice the one before. Tiles stop growing somewhere: of the CPU's flash kernel at 1024.
LENGTHS = (1024, 2048, 4096)
HEADS = {"num_heads", "num_kv_heads"}
POWERS = {"linear": 1, "quadratic": 2}


_promises = requires(lambda c: c.declaration.memory, "no growth of its memory is declared")


def _measured(candidate: Candidate) -> str:
    return in_this_process(candidate) or why_unmeasured(judged_on(candidate.declaration.devices))


def _takes_long_ones(candidate: Candidate) -> str:
    longest = _long(PROBE, LENGTHS[-1])
    fits = all(admits_lengths(candidate, _long(PROBE, length)) for length in LENGTHS)
    return "" if fits else f"it does not take a length of {longest.key_length}"


@clause(
    "device.memory",
    sentence="The peak of a call's memory grows with the length no faster than is declared.",
    source="Dao et al. 2022, FlashAttention: memory linear in the length",
    space=Space(causal="offered", share=0.01),
    applies=(_promises, _measured, _takes_long_ones),
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
    found = (_growth(subject, problem.replace(causal=causal)) for causal in ways)
    return next((bad for bad in found if bad.violation is not None), Finding())


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
    """The bytes of a call, after one of another length: what is made once is there by then."""
    inputs = _of_length(subject, problem, length)
    forward = subject.forward(inputs)

    def call() -> None:
        guarded(forward, *given)

    given = arguments(inputs)
    return peak_bytes(call, subject.device)


def _of_length(subject: Subject, problem: Problem, length: int) -> Inputs:
    sizes = _long(_small(subject.candidate, problem.geometry), length)
    return subject.inputs(problem.replace(geometry=sizes, mask=None))


def _small(candidate: Candidate, geometry: Geometry) -> Geometry:
    """One item, and one head of a core, where no promise is in the way: what all share shows."""
    if admits_lengths(candidate, geometry.replace(batch=1)):
        geometry = geometry.replace(batch=1)
    pins = candidate.declaration.pins
    tied = {*pins.sizes, *pins.equal_to, *pins.equal_to.values()} & HEADS
    if candidate.kind == "core" and not tied and pins.build is None:
        geometry = geometry.replace(num_heads=1, num_kv_heads=1)
    return geometry


def _long(geometry: Geometry, length: int) -> Geometry:
    return geometry.replace(query_length=length, key_length=length)
