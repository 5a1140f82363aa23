"""The weights of a layer as leaves: the weights themselves, or parameters copying them.

A builder may use its weights themselves, or copy them into the parameters of a module, packed or
transposed. The correspondence of parameter and weight elements is found by building the layer once
more from weights whose elements are consecutive numbers.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor, nn

from .._golden import golden
from ..declare.candidate import Candidate
from ..problems.inputs import Inputs
from .calling import CandidateFailure, Forward, build_forward
from .devices import weights_on

ROLES: Final = tuple(field.name for field in dataclasses.fields(golden.ProjectionWeights))
# Numbers of elements start here, where no constant of a module lies; float32 counts to 2**24.
_FIRST: Final = 2**20
_LAST: Final = 2**24


@dataclass(frozen=True, kw_only=True, eq=False)
class WeightLeaves:
    """The places where gradients of a layer's weights arrive.

    by_role: the builder's weights, by role; they require gradients.
    promised: the layer promises that gradients arrive there.
    parameters: the parameters of the built module, each with the numbers of the weights' elements
        (from 0, all roles in a row) in its elements, or -1.
    """

    by_role: dict[str, Tensor]
    promised: bool = False
    parameters: tuple[tuple[Tensor, Tensor], ...] = ()

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """All tensors that may get a gradient."""
        return (*self.by_role.values(), *(parameter for parameter, _ in self.parameters))

    def gather(self, gradients: tuple[Tensor | None, ...]) -> dict[str, Tensor | None]:
        """Return the gradient of each weight from the gradients of ``tensors``, in their order.

        A role is missing if no gradient can arrive, because the weight was copied to an unknown
        place. It is None where no gradient arrived, though possible or present for other weights.
        """
        direct = dict(zip(self.by_role, gradients, strict=False))
        copied = self._copied(gradients[len(direct) :])
        reached = any(gradient is not None for gradient in direct.values())
        by_role: dict[str, Tensor | None] = {}
        for role, gradient in direct.items():
            if gradient is not None or role not in copied:
                if gradient is not None or ((reached or self.promised) and not self.parameters):
                    by_role[role] = gradient
            else:
                by_role[role] = copied[role]
        return by_role

    def _copied(self, gradients: tuple[Tensor | None, ...]) -> dict[str, Tensor | None]:
        """Return gradients from the parameters, for roles with every element in a parameter."""
        count = sum(tensor.numel() for tensor in self.by_role.values())
        total = torch.zeros(count, dtype=torch.float64)
        places, reached = torch.zeros(count), torch.zeros(count)
        for (_, numbers), gradient in zip(self.parameters, gradients, strict=True):
            held = numbers >= 0
            places.index_add_(0, numbers[held], torch.ones(int(held.sum())))
            if gradient is not None:
                arrived = gradient.detach().cpu()[held].double()
                total.index_add_(0, numbers[held], arrived)
                reached.index_add_(0, numbers[held], torch.ones(int(held.sum())))
        sizes = [tensor.numel() for tensor in self.by_role.values()]
        parts = (part.split(sizes) for part in (total, places, reached))
        by_role: dict[str, Tensor | None] = {}
        for role, gradient, place, hits in zip(self.by_role, *parts, strict=True):
            if place.numel() and bool((place > 0).all()):
                like = self.by_role[role]
                shaped = gradient.reshape(like.shape).to(like.dtype)
                by_role[role] = shaped if bool(hits.any()) else None
        return by_role


def build_with_leaves(candidate: Candidate, inputs: Inputs) -> tuple[Forward, WeightLeaves | None]:
    """Build a layer whose weights can get gradients; None where it brings its own.

    A builder refusing weights that require gradients gets plain ones. Raises CandidateFailure for a
    layer that cannot be built at all.
    """
    if not candidate.draws_weights or inputs.weights is None:
        return build_forward(candidate, inputs), None
    weights = weights_on(inputs.weights, inputs.device)
    leaf: dict[str, Any] = {
        role: None if tensor is None else tensor.detach().clone().requires_grad_()
        for role, tensor in vars(weights).items()
    }
    required = golden.ProjectionWeights(**leaf)
    by_role = {
        role: getattr(required, role) for role in ROLES if getattr(required, role) is not None
    }
    try:
        forward = build_forward(candidate, inputs, leaves=required)
    except CandidateFailure:
        forward = build_forward(candidate, inputs)
    leaves = WeightLeaves(
        by_role=by_role,
        promised="grad_weights" in candidate.declaration.features,
        parameters=parameters_of(
            forward,
            inputs.weights,
            lambda other: build_forward(candidate, inputs.replace(weights=other, device="cpu")),
        ),
    )
    return forward, leaves


def parameters_of(
    forward: Forward,
    weights: golden.ProjectionWeights,
    build: Callable[[golden.ProjectionWeights], Forward],
) -> tuple[tuple[Tensor, Tensor], ...]:
    """Return the parameters holding the weights, with the numbers of their elements.

    ``build`` builds the layer from other weights; it may raise CandidateFailure.
    """
    if not isinstance(forward, nn.Module):
        return ()
    trained = [(name, p) for name, p in forward.named_parameters() if p.requires_grad]
    if not trained:
        return ()
    numbered, count = _numbered(weights)
    if _FIRST + count > _LAST:
        return ()
    try:
        twin = build(numbered)
    except CandidateFailure:
        return ()
    twin_parameters = dict(twin.named_parameters()) if isinstance(twin, nn.Module) else {}
    return tuple(
        (parameter, _numbers(twin_parameters[name].detach(), count))
        for name, parameter in trained
        if name in twin_parameters and twin_parameters[name].shape == parameter.shape
    )


def _numbered(weights: golden.ProjectionWeights) -> tuple[golden.ProjectionWeights, int]:
    """Return weights whose elements are consecutive numbers, and their count."""
    start = 0
    numbered: dict[str, Tensor | None] = {}
    for role in ROLES:
        tensor = getattr(weights, role)
        numbered[role] = None
        if tensor is not None:
            stop = start + tensor.numel()
            elements = torch.arange(_FIRST + start, _FIRST + stop, dtype=torch.float64)
            wide = torch.float64 if tensor.dtype == torch.float64 else torch.float32
            numbered[role] = elements.to(wide).reshape(tensor.shape)
            start = stop
    return golden.ProjectionWeights(**numbered), start  # type: ignore[arg-type]  # matrices are never None


def _numbers(held: Tensor, count: int) -> Tensor:
    """Return the number of each element, -1 for elements of no weight."""
    numbers = held.double() - _FIRST
    valid = (numbers >= 0) & (numbers < count) & (numbers == numbers.round())
    return numbers.where(valid, -1.0).nan_to_num(nan=-1.0).to(torch.int64)
