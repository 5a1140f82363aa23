"""state.settings: what torch keeps for everybody is not changed by a call."""

from __future__ import annotations

import sys
from typing import Any

import torch

from ..base.results import Violation
from ..calls.calling import arguments
from ..calls.devices import forked_random
from ..problems.problem import Problem
from ..problems.space import Space
from .registry import Finding, clause
from .subject import Subject

SEEDS = (1, 2)
SUBNORMAL = sys.float_info.min / 2.0


@clause(
    "state.settings",
    level="SHOULD",
    sentence="A call changes none of torch's own settings and does not seed its random numbers.",
    source="torch.set_default_dtype, torch.manual_seed: they act on the whole process",
    space=Space(mask="maybe", causal="maybe", extras="maybe", share=0.25),
    explained=False,
)
def settings(subject: Subject, problem: Problem) -> Finding:
    """The settings right before and after; random numbers after calls from two seeds."""
    inputs = subject.inputs(problem)
    forward = subject.forward(inputs)
    seen: list[tuple[dict[str, Any], dict[str, Any]]] = []
    drawn: list[float] = []

    def watched(*positional: Any, **keywords: Any) -> Any:
        before = _settings()
        answer = forward(*positional, **keywords)
        seen.append((before, _settings()))
        return answer

    with forked_random(subject.device):
        for seed in SEEDS:
            torch.manual_seed(seed)
            subject.ask(watched, arguments(inputs), inputs)
            drawn.append(float(torch.rand(())))
    # Where the golden stands in for the candidate nothing is called.
    pairs = ((name, before[name], after[name]) for before, after in seen[:1] for name in before)
    changed = [name for name, before, after in pairs if before != after]
    if drawn[0] == drawn[1]:
        changed.append("the seed of its random numbers")
    if not changed:
        return Finding()
    message = f"the call changed {' and '.join(changed)} of torch"
    return Finding(violation=Violation(kind="mutated", message=message, got=changed))


def _settings() -> dict[str, Any]:
    return {
        "the default dtype": torch.get_default_dtype(),
        "the default device": str(torch.get_default_device()),
        "the grad mode": torch.is_grad_enabled(),
        "the deterministic mode": torch.are_deterministic_algorithms_enabled(),
        "the number of threads": torch.get_num_threads(),
        "the precision of products": torch.get_float32_matmul_precision(),
        "the flushing of subnormal numbers": SUBNORMAL * 1.0 == 0.0,
        "the precision of float32 products on CUDA": _products(),
    }


def _products() -> object:
    """Torch 2.9 has a name for it; to ask in the older way is an error where that was used."""
    matmul = torch.backends.cuda.matmul
    try:
        return matmul.fp32_precision
    except AttributeError:
        return matmul.allow_tf32
