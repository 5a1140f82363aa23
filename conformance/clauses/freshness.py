"""state.answer-is-fresh: an answer shares its memory with nothing."""

from __future__ import annotations

from torch import Tensor

from ..base.results import Violation
from ..calls.calling import arguments
from ..problems.problem import Problem
from ..problems.recipes import LIVELY
from ..problems.space import Space
from ._vocabulary import same_unless_identical, still_says
from .registry import Finding, clause
from .subject import Subject


@clause(
    "state.answer-is-fresh",
    level="MUST",
    sentence=(
        "The answer is a tensor of its own: changing the inputs does not change it, and changing "
        "it changes no later answer."
    ),
    source=(
        "torch.library: the result of an operator is no view of its inputs; "
        "PEERS: an input or an earlier answer handed back"
    ),
    space=Space(values=LIVELY, mask="maybe", share=0.5, kinds=("core", "layer", "positions")),
    explained=False,
)
def answer_is_fresh(subject: Subject, problem: Problem) -> Finding:
    """Inputs overwritten after the call; then the answer overwritten, and the call made again."""
    inputs = subject.inputs(problem)
    forward = subject.forward(inputs)
    given = arguments(inputs)
    answer = subject.ask(forward, given, inputs)
    for tensor in (*given[0], *given[1].values()):
        if isinstance(tensor, Tensor):
            tensor.fill_(1)
    if not still_says(answer):
        message = "the answer shares memory with an input: changing one changes the other"
        return Finding(violation=Violation(kind="mutated", message=message))
    if answer.returned is None or answer.returned.is_inference() or _repeats(answer.returned):
        return Finding()  # it cannot be written to
    kept = answer.output if answer.kept is None else answer.kept
    returned = answer.returned.detach()
    returned.fill_(1)
    again = subject.call(forward, inputs).output
    returned.copy_(kept.reshape(returned.shape))
    wording = "changing an answer changes the answer to the next call"
    return same_unless_identical(subject, (inputs, answer.output), (inputs, again), wording)


def _repeats(tensor: Tensor) -> bool:
    """Whether one element in memory stands for several."""
    return any(
        step == 0 and size > 1 for step, size in zip(tensor.stride(), tensor.shape, strict=True)
    )
