"""device.memory: how the memory of a call grows with the length."""

from __future__ import annotations

from itertools import pairwise

from ..calling import arguments, guarded
from ..candidate import Candidate
from ..devices import judged_on
from ..geometry import Geometry
from ..peak_memory import peak_bytes, why_unmeasured
from ..problem import Problem
from ..registry import Finding, clause
from ..results import Violation
from ..space import PROBE, Space, admits_lengths
from ..subject import Subject
from ._devices import in_this_process

# Each twice the one before. Tiles stop growing somewhere: of the CPU's flash kernel at 1024.
LENGTHS = (1024, 2048, 4096)
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
    space=Space(causal="maybe", share=0.1),
    applies=(_promises, _measured, _takes_long_ones),
    explained=False,
)
def memory(subject: Subject, problem: Problem) -> Finding:
    """Queries and keys of three lengths, each twice the one before, and the bytes held at the peak.

    What grows by ``a + b n`` with a fixed part at most doubles, each allocation being rounded up;
    with a quadratic part it at most quadruples. Tiles that grow up to some length may look like
    more in one step, but not in both.
    """
    declared = str(subject.declaration.memory)
    peaks = [_peak(subject, problem, length) for length in LENGTHS]
    factor = 2 ** POWERS[declared]
    growths = [after / max(before, 1) for before, after in pairwise(peaks)]
    if min(growths) <= factor:
        return Finding()
    shown = ", ".join(f"{peak} at {length}" for peak, length in zip(peaks, LENGTHS, strict=True))
    message = f"declared to grow {declared}ly with the length, its memory does not: bytes {shown}"
    return Finding(violation=Violation(kind="memory", message=message, got=peaks, expected=factor))


def _peak(subject: Subject, problem: Problem, length: int) -> int:
    """The bytes of a second call: what is made once and kept is there by then."""
    inputs = subject.inputs(problem.replace(geometry=_long(problem.geometry, length), mask=None))
    forward = subject.forward(inputs)

    def call() -> None:
        guarded(forward, *given)

    given = arguments(inputs)
    call()
    given = arguments(inputs)
    return peak_bytes(call, subject.device)


def _long(geometry: Geometry, length: int) -> Geometry:
    return geometry.replace(query_length=length, key_length=length)
