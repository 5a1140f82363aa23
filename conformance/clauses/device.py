"""device.matches-cpu, .deterministic, .batch-invariant: one device beside another, and itself."""

from __future__ import annotations

from ..base.results import Violation
from ..problems.problem import Problem
from ..problems.recipes import LIVELY
from ..problems.space import Space
from ._devices import called_on_the_cpu, declares, on_a_device
from ._vocabulary import identical, one_item, relate
from .registry import Finding, clause
from .subject import Subject

# How often a call is made again: races and atomic sums show in some calls only.
REPEATS = 8


@clause(
    "device.matches-cpu",
    level="MUST",
    sentence="On a device the answer is that of the same candidate on the CPU, within both bounds.",
    source="pytorch#112577, #116333: kernels of one operator that differ by device",
    space=Space(mask="maybe", causal="maybe", extras="maybe", values=LIVELY),
    counterfactual="the mean of the values",
    applies=(on_a_device, called_on_the_cpu),
    explained=False,
)
def matches_cpu(subject: Subject, problem: Problem) -> Finding:
    """The same numbers on both."""
    there = subject.inputs(problem)
    here = there.replace(device="cpu")
    return relate(
        subject,
        (here, subject.answer(here)),
        (there, subject.answer(there)),
        f"on {subject.device} the answer is another than on the CPU",
        counterfactual=lambda: subject.oracle.output(there.replace(scale=0.0)),
    )


@clause(
    "device.deterministic",
    level="SHOULD",
    sentence="On a device the same call made many times gives the same bits each time.",
    source="BUGS 50, 55: races; atomic additions finish in any order",
    space=Space(mask="maybe", causal="maybe", edges="lengths", share=0.5),
    applies=(on_a_device,),
    explained=False,
)
def deterministic(subject: Subject, problem: Problem) -> Finding:
    """Equal calls of one forward; on a CPU state.bitwise-repeatable asks the same."""
    inputs = subject.inputs(problem)
    forward = subject.forward(inputs)
    first = subject.call(forward, inputs).output
    for number in range(1, REPEATS):
        if not identical(first, subject.call(forward, inputs).output):
            message = f"on {subject.device} call {number + 1} of equal ones gives other bits"
            return Finding(violation=Violation(kind="value", message=message))
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
    applies=(declares("batch_invariant"),),
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
    return Finding(violation=Violation(kind="value", message=message, got=largest, expected=0.0))
