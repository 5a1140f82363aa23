"""What the clauses about devices share: where they apply, and which device they speak of."""

from __future__ import annotations

from collections.abc import Callable

from ..calls.devices import CPU, here, judged_on, kind_of, offers
from ..declare.candidate import Candidate

Applies = Callable[[Candidate], str]


def on_a_device(candidate: Candidate) -> str:
    """Why a clause about other devices than the CPU has nothing to ask, or ""."""
    if kind_of(judged_on(candidate.declaration.devices)) != CPU:
        return ""
    return f"it is judged on the CPU, and {here()}"


def called_on_the_cpu(candidate: Candidate) -> str:
    """Why a candidate cannot be called on the CPU, or ""."""
    declared = candidate.declared_on or candidate.declaration.devices
    if any(kind_of(name) == CPU for name in declared):
        return ""
    return f"it is declared for {' and '.join(declared)} alone"


def needing(what: str, *functions: str) -> Applies:
    """Require that torch's module for the judged device has some functions."""

    def applies(candidate: Candidate) -> str:
        device = judged_on(candidate.declaration.devices)
        return "" if offers(device, *functions) else f"torch has no {what} on {device}"

    return applies


def declares(feature: str) -> Applies:
    """Require a feature that is promised."""

    def applies(candidate: Candidate) -> str:
        return "" if feature in candidate.declaration.features else f"{feature} is not declared"

    return applies


def in_this_process(candidate: Candidate) -> str:
    """Why what a candidate does with memory cannot be seen, or ""."""
    if candidate.graph is not None:
        return "onnxruntime makes its tensors in a process of its own"
    arrays = candidate.declaration.arrays
    return "" if arrays == "torch" else f"its {arrays} arrays are not torch's"
