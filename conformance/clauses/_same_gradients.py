"""Two calls whose gradients must agree, and the bounds of what may lie between them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..calls.differentiating import Gradients
from ..oracle.comparison import compare
from ..oracle.gradient_oracle import why_unknown
from ..problems.inputs import Inputs
from ..tolerance import model

# Streams of a problem's generator: that of the output gradient.
from ._gradients import axes_of, spoken
from .registry import Finding
from .subject import SPREAD_CALLS, Subject


@dataclass(frozen=True, kw_only=True, eq=False)
class Asked:
    """Gradients with what they were asked for, to be compared with others of the candidate."""

    inputs: Inputs
    upstream: Tensor
    found: Gradients


def same_gradients(
    subject: Subject, first: Asked, second: Gradients, wording: str, *, factor: float = 1.0
) -> Finding:
    """Other gradients for the same question are ``factor`` times the first, within both bounds.

    ``wording`` holds ``{}`` for what the gradient belongs to.
    """
    bounds = gradient_bounds(subject, first)
    finding = Finding(binding=bool(bounds), margin=0.0)
    for name, tensor in second.found.items():
        if name not in first.found.found or name not in bounds:
            continue
        expected = factor * first.found.found[name].double()
        allowed = largest_everywhere((1.0 + factor) * bounds[name])
        agreement = compare(
            tensor,
            expected,
            allowed,
            wording=wording.format(spoken(name)),
            both_answers=True,
            axes=axes_of(name, first.inputs),
        )
        margin = max(finding.margin or 0.0, agreement.margin)
        finding = Finding(
            binding=finding.binding,
            margin=margin,
            violation=finding.violation or agreement.violation,
        )
    return finding


def largest_everywhere(bound: Tensor) -> Tensor:
    """The largest bound of a tensor for all its elements.

    A law is checked on gradients that may be wrong elsewhere, and round like other elements.
    """
    if bound.numel() == 0:
        return bound
    return bound.amax().expand(bound.shape)


def gradient_bounds(subject: Subject, asked: Asked) -> dict[str, Tensor]:
    """How far each gradient may be from the exact one, by name.

    Measured where none is derived: how far the candidate's own gradients move when its inputs
    change by one unit each. Empty where nobody can represent them.
    """
    kind = subject.candidate.kind
    if subject.candidate.golden_known and not why_unknown(subject.declaration.semantics, kind):
        known = subject.gradients.oracle.answer(asked.inputs, asked.upstream)
        if not known.representable:
            return {}
        return {name: each.worst for name, each in known.gradients.items()}
    with subject.recorded(None):
        return _measured(subject, asked)


def _measured(subject: Subject, asked: Asked) -> dict[str, Tensor]:
    inputs, unit = asked.inputs, torch.finfo(asked.inputs.query.dtype).eps
    generator = torch.Generator().manual_seed(len(str(inputs.geometry)))
    widest = dict.fromkeys(asked.found.found, 0.0)
    for _ in range(SPREAD_CALLS):
        nudged = subject.gradients.of(nudged_inputs(inputs, generator), asked.upstream)
        for name, tensor in asked.found.found.items():
            if name in nudged.found and tensor.numel():
                apart = (nudged.found[name].double() - tensor.double()).abs().nan_to_num()
                widest[name] = max(widest[name], float(apart.max()))
    return {
        name: torch.full(
            tensor.shape,
            model.SPREAD_FACTOR * (widest[name] + unit * _size(tensor)),
            dtype=torch.float64,
        )
        for name, tensor in asked.found.found.items()
    }


def _size(tensor: Tensor) -> float:
    return float(tensor.double().abs().nan_to_num().max()) if tensor.numel() else 0.0


def nudged_inputs(inputs: Inputs, generator: torch.Generator) -> Inputs:
    """The same inputs, each number moved by about one unit."""

    def moved(tensor: Tensor) -> Tensor:
        signs = torch.randint(0, 2, tensor.shape, generator=generator).double() * 2.0 - 1.0
        unit = torch.finfo(tensor.dtype).eps
        return (tensor.double() * (1.0 + unit * signs)).to(tensor.dtype)

    return inputs.with_tokens(
        query=moved(inputs.query), key=moved(inputs.key), value=moved(inputs.value)
    )
