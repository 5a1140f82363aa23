"""Named losses of precision, acted out: the golden with one stage rounded as it should not be."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from ._golden import golden
from .materialise import TORCH_DTYPES

Rounding = Callable[[Tensor], Tensor]
# TensorFloat-32 keeps 10 of float32's 23 explicit bits: these are cut off.
SHORT_BITS: Final = 13


@dataclass(frozen=True, kw_only=True)
class PrecisionLoss:
    """A rounding that no declaration allows unless it says so.

    name, text
        A stable slug, and what the candidate does with the remedy, in the user's terms.
    output
        The answer ``[B, H, Lq, Dv]`` of attention that loses this, from the golden evaluation.
    """

    name: str
    text: str
    output: Callable[[golden.Attention], Tensor]


def to_format(name: str) -> Rounding:
    """Round to a number format and back; what is too large becomes the largest finite number."""
    working = TORCH_DTYPES[name]
    limits = torch.finfo(working)

    def rounded(tensor: Tensor) -> Tensor:
        finite = torch.isfinite(tensor)
        return (
            torch.where(finite, tensor.clamp(limits.min, limits.max), tensor).to(working).double()
        )

    return rounded


def to_tf32(tensor: Tensor) -> Tensor:
    """Round to nearest, ties away from zero, as a tensor core's operands are."""
    bits = tensor.float().contiguous().view(torch.int32) + (1 << (SHORT_BITS - 1))
    return _cut(bits)


def to_cut_tf32(tensor: Tensor) -> Tensor:
    """Cut the last bits off."""
    return _cut(tensor.float().contiguous().view(torch.int32))


def _cut(bits: Tensor) -> Tensor:
    return (bits & ~((1 << SHORT_BITS) - 1)).view(torch.float32).double()


def _weights_of(logits: Tensor) -> Tensor:
    return golden.softmax(logits)


def _rounded_scores(rounding: Rounding) -> Callable[[golden.Attention], Tensor]:
    """Rounded before bias and mask are added."""

    def output(core: golden.Attention) -> Tensor:
        added = core.logits - core.capped
        return _weights_of(rounding(core.capped) + added) @ core.value

    return output


def _rounded_logits(rounding: Rounding) -> Callable[[golden.Attention], Tensor]:
    return lambda core: _weights_of(rounding(core.logits)) @ core.value


def _rounded_weights(rounding: Rounding) -> Callable[[golden.Attention], Tensor]:
    return lambda core: rounding(core.weights) @ core.value


def _rounded_exponentials(rounding: Rounding) -> Callable[[golden.Attention], Tensor]:
    """As a fused kernel does it: rounded for the product only, not for the sum."""

    def output(core: golden.Attention) -> Tensor:
        largest = core.weights.amax(dim=-1, keepdim=True)
        safe = torch.where(largest > 0.0, largest, 1.0)
        return (rounding(core.weights / safe) * safe) @ core.value

    return output


def _rounded_softmax(rounding: Rounding) -> Callable[[golden.Attention], Tensor]:
    return lambda core: rounding(_weights_of(rounding(core.logits))) @ core.value


def _rounded_operands(rounding: Rounding, *, values: bool) -> Callable[[golden.Attention], Tensor]:
    """Query and key rounded before their product; with ``values`` weights and values, too."""

    def output(core: golden.Attention) -> Tensor:
        products = rounding(core.query) @ rounding(core.key).transpose(-1, -2)
        exact = core.query @ core.key.transpose(-1, -2)
        weights = _weights_of(core.logits + core.scale * (products - exact))
        if not values:
            return weights @ core.value
        return rounding(weights) @ rounding(core.value)

    return output


def _plain_softmax(working: torch.dtype) -> Callable[[golden.Attention], Tensor]:
    """As most would write it: with torch's own softmax."""
    return lambda core: _torch_softmax(core.logits, working).double() @ core.value


def _plain_attention(working: torch.dtype) -> Callable[[golden.Attention], Tensor]:
    """The textbook's three lines with every tensor converted first; softcap and bias exactly."""

    def output(core: golden.Attention) -> Tensor:
        query, key, value = (heads.to(working) for heads in (core.query, core.key, core.value))
        scores = (query @ key.transpose(-1, -2)) * core.scale
        logits = scores + (core.logits - core.scores).to(working)
        return (_torch_softmax(logits, working) @ value).double()

    return output


def _torch_softmax(logits: Tensor, working: torch.dtype) -> Tensor:
    """Zero in rows without keys, where torch makes NaN."""
    return torch.softmax(logits.to(working), dim=-1).nan_to_num(nan=0.0)


def _of_format(name: str) -> tuple[PrecisionLoss, ...]:
    rounding = to_format(name)
    return (
        PrecisionLoss(
            name=f"weights-in-{name}",
            text=f"the softmax weights are rounded to {name} before they meet the values",
            output=_rounded_weights(rounding),
        ),
        PrecisionLoss(
            name=f"weights-in-{name}",
            text=f"the exponentials are rounded to {name} before they meet the values",
            output=_rounded_exponentials(rounding),
        ),
        PrecisionLoss(
            name=f"scores-in-{name}",
            text=f"the scores are rounded to {name} before the softmax",
            output=_rounded_scores(rounding),
        ),
        PrecisionLoss(
            name=f"scores-in-{name}",
            text=f"the logits, bias included, are rounded to {name} before the softmax",
            output=_rounded_logits(rounding),
        ),
        PrecisionLoss(
            name=f"softmax-in-{name}",
            text=f"the softmax is computed in {name}: scores and weights are rounded to it",
            output=_rounded_softmax(rounding),
        ),
        *_of_operands(name, name, rounding, f"compute in the dtype of the inputs, not in {name}"),
    )


def _of_operands(
    name: str, spoken: str, rounding: Rounding, remedy: str
) -> tuple[PrecisionLoss, ...]:
    return (
        PrecisionLoss(
            name=f"scores-from-{name}",
            text=f"query and key are rounded to {spoken} before their product: {remedy}",
            output=_rounded_operands(rounding, values=False),
        ),
        PrecisionLoss(
            name=f"products-in-{name}",
            text=f"the operands of both products are rounded to {spoken}: {remedy}",
            output=_rounded_operands(rounding, values=True),
        ),
    )


_ALLOW_TF32: Final = "declare tf32=True if that is meant"
_SINGLE: Final = (
    PrecisionLoss(
        name="softmax-in-float32",
        text="the softmax is computed in float32: compute it in the dtype of the inputs",
        output=_plain_softmax(torch.float32),
    ),
    PrecisionLoss(
        name="computed-in-float32",
        text="attention is computed in float32 inside: compute in the dtype of the inputs",
        output=_plain_attention(torch.float32),
    ),
)
LOSSES: Final[tuple[PrecisionLoss, ...]] = (
    *_of_format("float32"),
    *_SINGLE,
    *_of_operands("tf32", "TensorFloat-32", to_tf32, _ALLOW_TF32),
    *_of_operands("tf32", "ten bits behind the leading one", to_cut_tf32, _ALLOW_TF32),
    *_of_format("float16"),
    *_of_format("bfloat16"),
)
# From the finest on: a coarser format holds fewer numbers.
COARSER: Final = {
    "float64": ("bfloat16", "float16", "float32"),
    "float32": ("bfloat16", "float16"),
    "float16": (),
    "bfloat16": (),
}
