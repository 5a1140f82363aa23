"""Named losses of precision: stages of the program with undeclared rounding."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from .._golden import golden
from ..operators.roundings import (
    Rounding,
    cut_to_tf32,
    format_rounding,
    integer_rounding,
    round_to_tf32,
    step_rounding,
)
from .mistakes.named_mistake import Edits

# From a rounding to the edits of the program.
Lossy = Callable[[Rounding], Edits]
# Numbers of the partial products that are held at the same time: 32 MiB.
_PRODUCTS_HELD: Final = 2**22


def _round_at(*stages: str) -> Lossy:
    return lambda rounding: tuple(golden.Edit(stage, change=rounding) for stage in stages)


def _rounded_mask(rounding: Rounding) -> Edits:
    def change(bias: Tensor) -> Tensor:
        return torch.where(bias.isinf(), bias, rounding(bias))

    return (golden.Edit("bias", change=change),)


def relative_exponentials(rounding: Rounding, *stages: str, tile: int = 0) -> Edits:
    """Round exponentials as a fused kernel does, only for the product with the values.

    They are relative to the largest logit of the row, or up to the end of each ``tile`` of keys.
    Further ``stages`` are rounded as well.
    """

    def change(weights: Tensor) -> Tensor:
        largest = _largest(weights, tile)
        return rounding(weights / largest) * largest

    return (*_round_at(*stages)(rounding), golden.Edit("weights", change=change))


def added_up(left: Tensor, right: Tensor, rounding: Rounding, at_once: int) -> Tensor:
    """Return a matrix product whose partial sums are rounded after ``at_once`` terms each."""
    total = torch.zeros(*left.shape[:-1], right.shape[-1], dtype=torch.float64)
    # Several products at once, for speed.
    several = at_once * max(1, _PRODUCTS_HELD // max(1, total.numel()))
    for first in range(0, left.shape[-1], several):
        lefts, rights = left[..., first : first + several], right[..., first : first + several, :]
        for part in _products(lefts, rights, at_once):
            total = rounding(total + part)
    return total


def _products(left: Tensor, right: Tensor, at_once: int) -> list[Tensor]:
    count, rest = divmod(left.shape[-1], at_once)
    whole = left.shape[-1] - rest
    lefts = left[..., :whole].unflatten(-1, (count, at_once)).transpose(-2, -3)
    rights = right[..., :whole, :].unflatten(-2, (count, at_once))
    parts = list((lefts @ rights).unbind(-3))
    if rest:
        parts.append(left[..., whole:] @ right[..., whole:, :])
    return parts


def _rounded_sum(rounding: Rounding, at_once: int) -> Edits:
    return (
        golden.Edit("output", lambda weights, value: added_up(weights, value, rounding, at_once)),
    )


def _rounded_unnormalised(rounding: Rounding, at_once: int) -> Edits:
    def output(weights: Tensor, value: Tensor) -> Tensor:
        largest = _largest(weights)
        return added_up(weights / largest, value, rounding, at_once) * largest

    return (golden.Edit("output", output),)


def _rounded_denominator(rounding: Rounding, at_once: int) -> Edits:
    """Round every partial sum of exponentials; the sink joins last."""

    def change(total: Tensor, exponentials: Tensor) -> Tensor:
        ones = torch.ones(exponentials.shape[-1], 1, dtype=torch.float64)
        besides = total - exponentials.sum(dim=-1, keepdim=True)
        return (added_up(exponentials, ones, rounding, at_once) + besides).clamp_min(1.0)

    return (golden.Edit("total", change=change),)


def _largest(weights: Tensor, tile: int = 0) -> Tensor:
    """Return the largest weight of each row, or up to each key's tile end; one for zero."""
    count = weights.shape[-1]
    if tile < count and tile:
        ends = ((torch.arange(count) // tile + 1) * tile - 1).clamp_max(count - 1)
        largest = weights.cummax(dim=-1).values[..., ends]
    else:
        largest = weights.amax(dim=-1, keepdim=True)
    return torch.where(largest > 0.0, largest, 1.0)


def _rounded_products(rounding: Rounding, at_once: int) -> Edits:
    return (golden.Edit("products", lambda query, key: added_up(query, key.mT, rounding, at_once)),)


def _plain_softmax(working: torch.dtype) -> Edits:
    return (
        golden.Edit(
            "weights", lambda logits, sinks: _torch_softmax(logits, sinks, working).double()
        ),
    )


def _plain_attention(working: torch.dtype) -> Edits:
    def output(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        scale: float,
        scores: Tensor,
        logits: Tensor,
        sinks: Tensor | None,
    ) -> Tensor:
        query, key, value = (heads.to(working) for heads in (query, key, value))
        rounded = (query @ key.mT) * scale + (logits - scores).to(working)
        return (_torch_softmax(rounded, sinks, working) @ value).double()

    return (golden.Edit("output", output),)


def _torch_softmax(logits: Tensor, sinks: Tensor | None, working: torch.dtype) -> Tensor:
    """Return torch's softmax, zero instead of NaN in rows without keys; a sink is one more key."""
    count = logits.shape[-1]
    if sinks is not None:
        column = sinks[:, None, None].expand(*logits.shape[:-1], 1)
        logits = torch.cat([logits, column], dim=-1)
    return torch.softmax(logits.to(working), dim=-1)[..., :count].nan_to_num(nan=0.0)


# Terms between roundings of an accumulator: one, those of an instruction, or a block.
AT_ONCE: Final = (1, 4, 8, 16, 32, 64)
KEPT: Final = "round nothing on the way to fewer digits than the inputs have"
SPOKEN: Final = {"tf32": "TensorFloat-32"}
TEN_BITS: Final = "ten bits (float16 or TensorFloat-32)"


@dataclass(frozen=True, kw_only=True)
class PrecisionLoss:
    """A rounding that is wrong unless declared.

    stage, number_format
        The rounded stage and the format, as parts of the name.
    what, fix
        The description with "{}" for the format, and the fix, in the user's terms.
    edits
        The edits that round.
    manner
        The manner of rounding, if not to the nearest number.
    """

    stage: str
    number_format: str
    what: str
    edits: Edits
    fix: str = KEPT
    manner: str = ""

    @property
    def name(self) -> str:
        """The stable slug."""
        return f"{self.stage}-{self.number_format}"

    def name_in(self, dtype: str) -> str:
        """Return the name for inputs of a dtype: rounding to the dtype itself has a common name."""
        return f"{self.stage}-input-dtype" if self.number_format == dtype else self.name

    @property
    def text(self) -> str:
        """The description; the fix is separate."""
        spoken = SPOKEN.get(self.number_format, self.number_format) + self.manner
        return self.what.format(spoken)

    def what_in_ten_bits(self) -> str:
        """Return the description if float16 and TensorFloat-32 explain the answers alike."""
        return self.what.format(TEN_BITS)


_OPERANDS: Final = ("query", "shared_key")
EXPONENTIALS: Final[tuple[tuple[str, str, tuple[str, ...]], ...]] = (
    ("weights-in", "the exponentials are rounded to {} before they meet the values", ()),
    (
        "weights-and-values-in",
        "exponentials and values are rounded to {} before they meet",
        ("shared_value",),
    ),
    (
        "products-in",
        "the operands of both products, exponentials too, are rounded to {}",
        (*_OPERANDS, "shared_value"),
    ),
)


def _relative(stages: tuple[str, ...]) -> Lossy:
    return lambda rounding: relative_exponentials(rounding, *stages)


_RELATIVE: Final = tuple((stage, what, _relative(stages)) for stage, what, stages in EXPONENTIALS)
# Rounded stages: the part of the name, the words, the edits; those that round least first.
_ROUNDED: Final[tuple[tuple[str, str, Lossy], ...]] = (
    (
        "weights-in",
        "the softmax weights are rounded to {} before they meet the values",
        _round_at("weights"),
    ),
    _RELATIVE[0],
    (
        "values-in",
        "the values are rounded to {} before they meet the weights",
        _round_at("shared_value"),
    ),
    (
        "weights-and-values-in",
        "weights and values are rounded to {} before their product",
        _round_at("weights", "shared_value"),
    ),
    _RELATIVE[1],
    ("scores-in", "the scores are rounded to {} before the softmax", _round_at("capped")),
    (
        "scores-in",
        "the logits, bias too, are rounded to {} before the softmax",
        _round_at("logits"),
    ),
    ("scores-in", "the dot products are rounded to {} before the scale", _round_at("products")),
    ("additive-mask-in", "the additive mask is rounded to {} before it is added", _rounded_mask),
    (
        "softmax-in",
        "the softmax is computed in {}: scores and weights are rounded to it",
        _round_at("logits", "weights"),
    ),
    ("denominator-in", "the sum of the exponentials is rounded to {}", _round_at("total")),
    (
        "exponents-in",
        "the exponents, logits less the largest, are rounded to {}",
        _round_at("exponents"),
    ),
    ("query-in", "the query is rounded to {} before it meets the key", _round_at("query")),
    ("key-in", "the key is rounded to {} before it meets the query", _round_at("shared_key")),
    ("scores-from", "query and key are rounded to {} before their product", _round_at(*_OPERANDS)),
    (
        "scores-in",
        "query, key and their dot products are rounded to {}",
        _round_at(*_OPERANDS, "products"),
    ),
    (
        "products-in",
        "the operands of both products are rounded to {}",
        _round_at(*_OPERANDS, "weights", "shared_value"),
    ),
    _RELATIVE[2],
)
# Stages that are often rounded on purpose: the fix names the declaration.
_WITH_REMEDY: Final = ("scores-from", "products-in")


# Tensors that are kept as integers of eight bits.
_INTEGERS: Final[tuple[tuple[str, str, Lossy], ...]] = (
    *(one for one in _ROUNDED if one[0] in ("values-in", "key-in", *_WITH_REMEDY)),
    (
        "key-and-values-in",
        "keys and values are rounded to {} before they are read",
        _round_at("shared_key", "shared_value"),
    ),
)


def losses_of_format(
    name: str,
    rounding: Rounding,
    remedy: str,
    *,
    manner: str = "",
    stages: Sequence[tuple[str, str, Lossy]] = _ROUNDED,
) -> tuple[PrecisionLoss, ...]:
    """Return the losses that round every stage to a format."""
    return tuple(
        PrecisionLoss(
            stage=stage,
            number_format=name,
            what=what,
            edits=rounded(rounding),
            fix=remedy if stage in _WITH_REMEDY else KEPT,
            manner=manner,
        )
        for stage, what, rounded in stages
    )


def _sums_of_format(name: str, rounding: Rounding) -> tuple[PrecisionLoss, ...]:
    kinds: tuple[tuple[str, str, Callable[[Rounding, int], Edits]], ...] = (
        ("sum-in", "the weighted values are added up in {}", _rounded_sum),
        ("sum-in", "the weighted values are added up in {}", _rounded_unnormalised),
        ("denominator-in", "the exponentials are added up in {}", _rounded_denominator),
        (
            "products-added-up-in",
            "the dot products of query and key are added up in {}",
            _rounded_products,
        ),
    )
    return tuple(
        PrecisionLoss(
            stage=stage,
            number_format=name,
            what=what,
            edits=acted(rounding, at_once),
            fix="declare accumulate if that is meant, or add up in float32",
            manner=f" (rounded after every {at_once} terms)"
            if at_once > 1
            else " (one term after the other)",
        )
        for at_once in reversed(AT_ONCE)
        for stage, what, acted in kinds
    )


ALLOW_TF32: Final = "declare tf32=True if that is meant"
AS_INPUTS: Final = "compute in the dtype of the inputs"
_SINGLE: Final = (
    PrecisionLoss(
        stage="softmax-in",
        number_format="float32",
        what="the softmax is computed in {} by torch",
        edits=_plain_softmax(torch.float32),
        fix="compute it in the dtype of the inputs",
    ),
    PrecisionLoss(
        stage="computed-in",
        number_format="float32",
        what="attention is computed in {} inside",
        edits=_plain_attention(torch.float32),
        fix=AS_INPUTS,
    ),
)
LOSSES: Final[tuple[PrecisionLoss, ...]] = (
    *losses_of_format("float32", format_rounding("float32"), AS_INPUTS),
    *_SINGLE,
    *losses_of_format("float16", format_rounding("float16"), AS_INPUTS),
    *losses_of_format("tf32", round_to_tf32, ALLOW_TF32),
    *losses_of_format("tf32", cut_to_tf32, ALLOW_TF32, manner=" (cut off, not rounded)"),
    *losses_of_format("bfloat16", format_rounding("bfloat16"), AS_INPUTS),
)
# Tensors that share the step between two integers, with their axes of ``[B, H, L, D]``.
_SHARING: Final = (
    ("the whole tensor", (0, 1, 2, 3)),
    ("each batch item", (1, 2, 3)),
    ("each head", (2, 3)),
    ("each token", (3,)),
    ("each channel", (2,)),
)
# Formats that inputs never have: tried if no other loss explains the answers.
EIGHT_BITS: Final[tuple[PrecisionLoss, ...]] = (
    *(
        loss
        for name in ("float8_e4m3fn", "float8_e5m2")
        for loss in losses_of_format(name, format_rounding(name), AS_INPUTS)
    ),
    *(
        loss
        for steps in (127, 255)
        for loss in losses_of_format(
            "int8",
            step_rounding(1.0 / steps),
            AS_INPUTS,
            manner=f" (multiples of 1/{steps})",
            stages=[one for one in _ROUNDED if one[0] == "weights-in"],
        )
    ),
    *(
        loss
        for words, axes in _SHARING
        for loss in losses_of_format(
            "int8",
            integer_rounding(127, axes),
            AS_INPUTS,
            manner=f" (with a step for {words})",
            stages=_INTEGERS,
        )
    ),
)
# Repeated roundings: tried if no single rounding explains the answers.
SUMS: Final[tuple[PrecisionLoss, ...]] = tuple(
    loss
    for name in ("float32", "float16", "bfloat16")
    for loss in _sums_of_format(name, format_rounding(name))
)
