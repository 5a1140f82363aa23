"""device.canaries, .fresh-memory: what a call writes outside, and what it takes for zero."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from ..base.results import Violation
from ..calls.allocations import Allocations, allocations
from ..calls.calling import Answer, Arguments, CandidateFailure, Forward, arguments
from ..calls.placing import whole_storage
from ..problems.inputs import Inputs
from ..problems.problem import Problem
from ..problems.space import Space
from ._devices import in_this_process
from ._vocabulary import identical, same_unless_identical
from .registry import Finding, clause
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
    level="MUST",
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
        violation = Violation(kind="memory", message=f"the call wrote {beside}", got=changed)
        return Finding(violation=violation)
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
    level="MUST",
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
