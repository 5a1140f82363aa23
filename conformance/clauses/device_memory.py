"""device.memory: how the memory of a call grows with the length."""

from __future__ import annotations

from itertools import pairwise

from ..base.geometry import Geometry
from ..base.results import Violation
from ..calls.calling import arguments, guarded
from ..calls.devices import judged_on
from ..calls.peak_memory import peak_bytes, why_unmeasured
from ..declare.candidate import Candidate
from ..problems.inputs import Inputs
from ..problems.problem import Problem
from ..problems.space import PROBE, Space, admits_lengths
from ._devices import in_this_process
from .registry import Finding, clause
from .subject import Subject

# Each twice the one before. Tiles stop growing somewhere: of the CPU's flash kernel at 1024.
LENGTHS = (1024, 2048, 4096)
HEADS = {"num_heads", "num_kv_heads"}
POWERS = {"linear": 1, "quadratic": 2}


def _promises(candidate: Candidate) -> str:
    return "" if candidate.declaration.memory else "no growth of its memory is declared"


def _measured(candidate: Candidate) -> str:
    return in_this_process(candidate) or why_unmeasured(judged_on(candidate.declaration.devices))


def _takes_long_ones(candidate: Candidate) -> str:
    longest = _long(PROBE, LENGTHS[-1])
    fits = all(admits_lengths(candidate, _long(PROBE, length)) for length in LENGTHS)
    return "" if fits else f"it does not take a length of {longest.key_length}"


@clause(
    "device.memory",
    level="MUST",
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
    return Finding(violation=Violation(kind="memory", message=message, got=peaks))


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
