"""mask.strided: a mask may lie in memory in any way."""

from __future__ import annotations

from torch import Tensor

from ..problems.layouts import STRIDED
from ..problems.problem import Problem
from ..problems.recipes import LIVELY
from ..problems.space import Space
from ._vocabulary import same_answer
from .registry import Finding, clause
from .subject import Subject

MASK_LAYOUTS = (*STRIDED, "expanded")


@clause(
    "mask.strided",
    level="MUST",
    sentence="Transposed, sliced, expanded and offset masks act like contiguous ones.",
    source="xformers#813: a bias of another stride; PEERS: contiguity assumptions",
    space=Space(
        mask="always",
        finite_bias="maybe",
        values=LIVELY,
        patterns=("random", "mixed", "padding"),
        least=(("key_length", 2),),
    ),
    counterfactual="no mask at all",
    explained=False,
)
def mask_strided(subject: Subject, problem: Problem) -> Finding:
    """The same mask in another memory layout; the one that is expanded repeats itself."""
    inputs = subject.inputs(problem)
    layout = MASK_LAYOUTS[problem.seed % len(MASK_LAYOUTS)]
    if layout == "expanded":
        inputs = inputs.replace(keep=_repeated(inputs.keep), bias=_repeated(inputs.bias))
    return same_answer(
        subject,
        inputs,
        inputs.replace(mask_layout=layout),
        f"a {layout} mask acts like another",
        counterfactual=lambda: subject.oracle.output(inputs.without_mask()),
    )


def _repeated(mask: Tensor | None) -> Tensor | None:
    """A mask that is the same along its first axis longer than one, of items, heads and queries."""
    if mask is None:
        return None
    axis = next((axis for axis in range(3) if mask.shape[axis] > 1), 0)
    return mask.narrow(axis, 0, 1).expand(mask.shape).contiguous()
