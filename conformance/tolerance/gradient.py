"""A gradient with its bounds, and the sum of several."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from .contract import Contract


@dataclass(frozen=True, kw_only=True, eq=False)
class Scaling:
    """What a relative error of the logit scale does to a gradient, and how large one is allowed.

    direct
        The derivative of the gradient by the logarithm of the scale that the backward pass applies:
        the gradient itself for query and key, zero for the value.
    indirect
        Its derivative by the logarithm of the scale of the scores, through the weights.
    scale_rounding
        The relative error of the scale that the contract allows.
    common_rounding
        The relative error that all elements of the gradient may have in common besides.
    noise
        One deviation of the sum of the gradient's errors, each times a weight, by those roundings
        of intermediate values that move many elements together; weights of the gradient's shape.
    """

    direct: Tensor
    indirect: Tensor
    scale_rounding: float
    common_rounding: float
    noise: Callable[[Tensor], float]


@dataclass(frozen=True, kw_only=True, eq=False)
class Gradient:
    """A golden gradient and how far a conforming one may be from it; float64, all of one shape.

    ``worst`` bounds any order and sign of roundings, ``bound`` those of independent ones, and
    ``scale`` is the typical size of the error. ``scaling`` is None for the gradient of a bias, and
    where there is no statistical bound.
    """

    value: Tensor
    worst: Tensor
    bound: Tensor
    scale: Tensor
    scaling: Scaling | None = None

    def allowed(self, *, generic: bool) -> Tensor:
        """The bound that judges: for generic (independent) inputs the smaller of the two."""
        return torch.minimum(self.worst, self.bound) if generic else self.worst

    def of_tokens(self, kept: slice) -> Gradient:
        """Of some of the tokens ``[..., L, D]``; what all elements share is known of all alone."""
        return self.seen(lambda part: part[..., kept, :])

    def of_channels(self, kept: slice) -> Gradient:
        """The same of some of the channels."""
        return self.seen(lambda part: part[..., kept])

    def seen(self, view: Callable[[Tensor], Tensor]) -> Gradient:
        """Some elements, or all in another order; nothing is known of what they share."""
        value, worst, bound, scale = map(view, (self.value, self.worst, self.bound, self.scale))
        return Gradient(value=value, worst=worst, bound=bound, scale=scale)

    def with_scaling(self, scaling: Scaling) -> Gradient:
        """The gradient with the rounding of the scale itself, which all elements have in common.

        It is linear in the statistical bound; the worst case has counted it already.
        """
        moved = (scaling.direct.abs() + scaling.indirect.abs()).mul_(scaling.scale_rounding)
        return replace(
            self,
            bound=self.bound + moved,
            scale=torch.hypot(self.scale, moved),
            scaling=scaling,
        )


def add_gradients(gradients: list[Gradient], contract: Contract) -> Gradient:
    """The gradient of a tensor that was used several times: its gradients are added and rounded.

    Each partial sum may be stored in the working dtype, in any order. The errors may be correlated,
    so the bounds add up. Raises ValueError for an empty list.
    """
    if not gradients:
        msg = "gradients is empty: there is nothing to add"
        raise ValueError(msg)
    sizes = sum((each.value.abs() for each in gradients[1:]), gradients[0].value.abs())
    additions = contract.sides * (len(gradients) - 1)
    rounding = additions * contract.unit_roundoff

    def total(parts: list[Tensor]) -> Tensor:
        grown = torch.stack(parts).sum(dim=0).mul_(1.0 + rounding)
        return grown.add_(sizes, alpha=rounding).add_(additions * contract.underflow)

    return Gradient(
        value=torch.stack([each.value for each in gradients]).sum(dim=0),
        worst=total([each.worst for each in gradients]),
        bound=total([each.bound for each in gradients]),
        scale=total([each.scale for each in gradients]),
        scaling=_added([each.scaling for each in gradients]),
    )


def stack_gradients(gradients: list[Gradient], dim: int) -> Gradient:
    """Gradients of the parts of a tensor, side by side along a new axis."""
    value, worst, bound, scale = (
        torch.stack([getattr(each, name) for each in gradients], dim=dim)
        for name in ("value", "worst", "bound", "scale")
    )
    return Gradient(value=value, worst=worst, bound=bound, scale=scale)


def _added(scalings: list[Scaling | None]) -> Scaling | None:
    known = [each for each in scalings if each is not None]
    if len(known) < len(scalings):
        return None
    return Scaling(
        direct=torch.stack([each.direct for each in known]).sum(dim=0),
        indirect=torch.stack([each.indirect for each in known]).sum(dim=0),
        scale_rounding=max(each.scale_rounding for each in known),
        common_rounding=max(each.common_rounding for each in known),
        noise=lambda weights: sum(each.noise(weights) for each in known),
    )
