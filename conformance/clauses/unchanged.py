"""state.inputs-unchanged: a call writes into none of the tensors it is given."""

from __future__ import annotations

from torch import Tensor

from ..base.results import Violation
from ..calls.calling import arguments
from ..problems.inputs import Inputs
from ..problems.problem import Problem
from ..problems.space import Space
from ._vocabulary import identical
from .registry import Finding, clause
from .subject import Subject

# Contiguous always: what edits in place may copy first when the layout is not that.
UNCHANGED_LAYOUTS = ("contiguous", "between-canaries")


@clause(
    "state.inputs-unchanged",
    level="MUST",
    sentence="A call changes none of the tensors it is given.",
    source="PEERS: editing the inputs so that the reference sees the same edit",
    space=Space(
        mask="maybe",
        causal="maybe",
        finite_bias="maybe",
        extras="maybe",
        patterns=("random", "empty-rows", "padding"),
        kinds=("core", "layer", "positions"),
        share=0.5,
    ),
    explained=False,
)
def inputs_unchanged(subject: Subject, problem: Problem) -> Finding:
    """Every tensor and what lies beside it compared with a copy, NaN equal to NaN, bit for bit.

    A call of any other clause that was seen to write into its arguments is made here once more.
    """
    asks = "weights" in subject.declaration.features and problem.seed % 2 == 1
    layout = UNCHANGED_LAYOUTS[problem.seed % len(UNCHANGED_LAYOUTS)]
    inputs = subject.inputs(problem)
    earlier = subject.edited.copy()
    asked = [inputs.replace(return_weights=asks, layout=layout, mask_layout=layout), *earlier]
    found = next((broken for one in asked if (broken := _change(subject, one))), None)
    subject.edited.clear()
    return Finding(violation=found)


def _change(subject: Subject, inputs: Inputs) -> Violation | None:
    """What a call with some inputs changes."""
    forward = subject.forward(inputs)
    positional, keywords = arguments(inputs)
    given = dict(zip(_names(subject, positional), positional, strict=True))
    given |= {name: value for name, value in keywords.items() if isinstance(value, Tensor)}
    before = {name: _whole_storage(tensor).clone() for name, tensor in given.items()}
    held = {name: tensor.clone() for name, tensor in given.items()}
    subject.ask(forward, (positional, keywords), inputs)
    changed = [name for name, tensor in given.items() if not identical(tensor, held[name])]
    beside = [
        name
        for name, tensor in given.items()
        if name not in changed and not identical(_whole_storage(tensor), before[name])
    ]
    if not changed and not beside:
        return None
    message = f"the call changed its {' and '.join(changed)} in place"
    if not changed:
        message = f"the call wrote into memory beside its {' and '.join(beside)}"
    return Violation(kind="mutated", message=message, got=changed or beside)


def _whole_storage(tensor: Tensor) -> Tensor:
    """Everything that lies in the memory a tensor is a view of."""
    return tensor.as_strided((tensor.untyped_storage().nbytes() // tensor.element_size(),), (1,), 0)


def _names(subject: Subject, positional: tuple[Tensor, ...]) -> list[str]:
    return list(subject.declaration.positional)[: len(positional)]
