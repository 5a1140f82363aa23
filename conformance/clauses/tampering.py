"""state.untampered, .unseen, .settings: candidates change neither the harness nor torch."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from ..calls.calling import arguments
from ..calls.devices import forked_random, seed_random
from ..calls.torch_state import product_precision
from ..oracle.comparison import GROSS, compare, moves
from ..oracle.oracle import Golden, Oracle
from ..problems.inputs import Inputs
from ..problems.materialise import materialise
from ..problems.problem import Problem
from ..problems.recipes import LIVELY
from ..problems.space import Space
from .judging import has_signal, identical, same_unless_identical
from .registry import Finding, clause, violated
from .subject import Subject

# Seeds that no other clause draws from: the answers were never computed before.
UNSEEN = 0x5EED
ANY_KIND = ("core", "layer", "positions")


@clause(
    "state.untampered",
    sentence=(
        "A call leaves the judge alone: torch's functions, the harness, the questions and their "
        "golden answers stay what they are."
    ),
    source="by definition: a verdict is the judge's; docs/judge.md lists what calls have tried",
    space=Space(mask="maybe", causal="maybe", share=0.25, kinds=ANY_KIND),
    explained=False,
)
def untampered(subject: Subject, problem: Problem) -> Finding:
    """Inputs and golden answer before and after a call; names and modes over the whole run."""
    replaced = subject.tampered()
    if replaced:
        return _violated_by(replaced)
    inputs = subject.inputs(problem)
    expected = _golden(subject, inputs)
    copies = [(name, tensor, tensor.clone()) for name, tensor in _reachable(inputs, expected)]
    subject.answer(inputs)
    replaced = subject.tampered()
    replaced += [name for name, tensor, before in copies if not identical(tensor, before)]
    if expected is not None and not replaced and not _golden_again(subject, inputs, expected):
        replaced = ["what the golden answer is computed with"]
    return _violated_by(replaced) if replaced else Finding()


def _violated_by(replaced: list[str]) -> Finding:
    named = list(dict.fromkeys(replaced))
    return violated("tampered", f"a call changed what judges it: {', '.join(named)}", got=named)


def _golden(subject: Subject, inputs: Inputs) -> Golden | None:
    has_golden = subject.candidate.golden_known and subject.candidate.kind != "positions"
    return subject.golden(inputs) if has_golden else None


def _reachable(inputs: Inputs, expected: Golden | None) -> Iterator[tuple[str, Tensor]]:
    """The harness's tensors within reach of a candidate in its process, with their names."""
    for name in ("query", "key", "value", "keep", "bias"):
        tensor = getattr(inputs, name)
        if tensor is not None:
            yield f"the judge's own {name}", tensor
    weights = inputs.weights
    for name in ("q", "k", "v", "o") if weights is not None else ():
        tensor = getattr(weights, name)
        if tensor is not None:
            yield f"the judge's own projection {name}", tensor
    if expected is not None:
        yield "the golden answer", expected.output
        yield "the bound", expected.bound


def _golden_again(subject: Subject, inputs: Inputs, expected: Golden) -> bool:
    """Whether the golden answer computed once more is the same, but for float64's own rounding."""
    again = subject.oracle.answer_at(inputs, subject.declaration.semantics)
    looser = (again.bound > GROSS * expected.bound) & expected.judged
    return not moves(expected.output, again.output, expected.bound, expected.judged) and not bool(
        looser.any()
    )


@clause(
    "state.unseen",
    sentence="A question whose golden answer does not exist yet is answered as well as any other.",
    source="by definition: an answer is computed; docs/judge.md: golden answers looked up",
    space=Space(mask="maybe", causal="maybe", values=LIVELY, share=0.5),
    needs_golden=True,
    counterfactual="zeros, the mean of the values, the first value",
    explained=False,
)
def unseen(subject: Subject, problem: Problem) -> Finding:
    """New inputs late in a run; they and the golden answer are made again after the call."""
    drawn = problem.replace(seed=problem.seed ^ UNSEEN)
    inputs = materialise(drawn, subject.candidate)
    answer = subject.answer(inputs)
    remade = materialise(drawn, subject.candidate)
    if not all(
        identical(first[1], second[1])
        for first, second in zip(_reachable(inputs, None), _reachable(remade, None), strict=True)
    ):
        return violated("tampered", "a call changed what judges it: the question itself")
    oracle = Oracle(subject.declaration, subject.dtype)
    expected = oracle.answer(remade)
    wording = "the answer to a question nobody has answered before is wrong"
    agreement = compare(
        answer, expected.output, expected.bound, judged=expected.judged, wording=wording
    )
    binding = bool(expected.judged.any()) and has_signal(
        expected, remade, expected.bound, expected.judged
    )
    if agreement.violation is not None:
        # Asked like other clauses ask: the golden answer is in memory, and a variable here.
        usual = subject.inputs(drawn)
        subject.golden(usual)
        again = subject.answer(usual)
        if same_unless_identical(subject, (inputs, answer), (usual, again), "").violation is None:
            return Finding(binding=binding)  # wrong both times: other clauses say why
    return Finding.of(agreement, binding=binding)


SEEDS = (1, 2)
# So many numbers are the same after two seeds once in 2 ** 96 calls; one would be once in 2 ** 24.
DRAWN = 4
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
    observed: list[tuple[dict[str, Any], dict[str, Any]]] = []
    drawn: list[list[float]] = []

    def watched(*positional: Any, **keywords: Any) -> Any:
        before = _settings()
        answer = forward(*positional, **keywords)
        observed.append((before, _settings()))
        return answer

    with forked_random(subject.device):
        for seed in SEEDS:
            seed_random(subject.device, seed)
            subject.call_with(watched, arguments(inputs), inputs)
            drawn.append(torch.rand(DRAWN).tolist())
    # Where the golden stands in for the candidate nothing is called.
    pairs = ((name, before[name], after[name]) for before, after in observed[:1] for name in before)
    changed = [name for name, before, after in pairs if before != after]
    if drawn[0] == drawn[1]:
        changed.append("the seed of its random numbers")
    if not changed:
        return Finding()
    return violated("mutated", f"the call changed {' and '.join(changed)} of torch", got=changed)


def _settings() -> dict[str, Any]:
    return {
        "the default dtype": torch.get_default_dtype(),
        "the default device": str(torch.get_default_device()),
        "the grad mode": torch.is_grad_enabled(),
        "the deterministic mode": torch.are_deterministic_algorithms_enabled(),
        "the number of threads": torch.get_num_threads(),
        "the precision of products": product_precision(),
        "the use of autocast": torch.is_autocast_enabled("cpu"),
        "the detection of anomalies": torch.is_anomaly_enabled(),
        "the flushing of subnormal numbers": SUBNORMAL * 1.0 == 0.0,
    }
