"""Named losses of precision, acted out: the golden with one stage rounded as it should not be."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

import torch
from torch import Tensor

from .._golden import golden
from ..problems.materialise import TORCH_DTYPES

Rounding = Callable[[Tensor], Tensor]
LossyOutput = Callable[[golden.Attention], Tensor]
# The dtypes that tensors come in, and those that only caches and products are kept in.
FORMATS: Final = {
    **TORCH_DTYPES,
    "float8_e4m3fn": torch.float8_e4m3fn,
    "float8_e5m2": torch.float8_e5m2,
}
# TensorFloat-32 keeps 10 of float32's 23 explicit bits: these are cut off.
SHORT_BITS: Final = 13
# Numbers of the partial products that are held at the same time: 32 MiB.
_PRODUCTS_HELD: Final = 2**22


def to_format(name: str) -> Rounding:
    """Round to a number format and back; what is too large becomes the largest finite number."""
    working = FORMATS[name]
    limits = torch.finfo(working)

    def rounded(tensor: Tensor) -> Tensor:
        clamped = tensor.clamp(limits.min, limits.max)
        if bool(torch.isinf(tensor).any()):  # they stay what they are, as NaN does
            clamped = torch.where(torch.isinf(tensor), tensor, clamped)
        return clamped.to(working).double()

    return rounded


def to_tf32(tensor: Tensor) -> Tensor:
    """Round to nearest, ties away from zero, as a tensor core's operands are."""
    return _cut(tensor.float().contiguous().view(torch.int32) + (1 << (SHORT_BITS - 1)))


def to_cut_tf32(tensor: Tensor) -> Tensor:
    """Cut the last bits off."""
    return _cut(tensor.float().contiguous().view(torch.int32))


def _cut(bits: Tensor) -> Tensor:
    return (bits & ~((1 << SHORT_BITS) - 1)).view(torch.float32).double()


def to_integers(steps: int, axes: tuple[int, ...]) -> Rounding:
    """Round to so many steps up to the largest size of all that lie along some axes."""

    def rounded(tensor: Tensor) -> Tensor:
        if not tensor.numel():
            return tensor
        step = tensor.abs().amax(dim=axes, keepdim=True) / steps
        return torch.where(step == 0.0, tensor, (tensor / step).round() * step)

    return rounded


def in_steps_of(step: float) -> Rounding:
    """Round to multiples of a number."""
    return lambda tensor: (tensor / step).round() * step


def rounded_scores(rounding: Rounding) -> LossyOutput:
    """Rounded before bias and mask are added."""
    return lambda a: _weights(a, rounding(a.capped) + (a.logits - a.capped)) @ a.value


def rounded_bias(rounding: Rounding) -> LossyOutput:
    """Rounded before it is added."""

    def output(core: golden.Attention) -> Tensor:
        if core.bias is None:
            return core.output
        lost = (rounding(core.bias) - core.bias).nan_to_num(nan=0.0)
        return _weights(core, core.logits + lost) @ core.value

    return output


def rounded_logits(rounding: Rounding) -> LossyOutput:
    """Rounded with bias and mask added."""
    return lambda core: _weights(core, rounding(core.logits)) @ core.value


def rounded_softmax(rounding: Rounding) -> LossyOutput:
    """Rounded before the softmax and after it."""
    return lambda core: rounding(_weights(core, rounding(core.logits))) @ core.value


def rounded_operands(roles: str, rounding: Rounding, tile: int = 0) -> LossyOutput:
    """Rounded before their products: what ``roles`` name of query, key, weights and values.

    "p" are the dot products of query and key themselves. "e" in place of "w" are the exponentials,
    as a fused kernel multiplies them: rounded for the product with the values only, not for their
    sum. They are relative to the largest logit of the row, or of those up to the end of each
    ``tile`` of keys.
    """

    def output(core: golden.Attention) -> Tensor:
        query, key, value = (
            rounding(heads) if role in roles else heads
            for role, heads in (("q", core.query), ("k", core.key), ("v", core.value))
        )
        weights = core.weights
        if set("qkp") & set(roles):
            products = query @ key.transpose(-1, -2)
            products = rounding(products) if "p" in roles else products
            apart = products - core.query @ core.key.transpose(-1, -2)
            weights = _weights(core, _moved_logits(core, core.scale * apart))
        if "w" in roles:
            weights = rounding(weights)
        elif "e" in roles:
            largest = _largest(weights, tile)
            weights = rounding(weights / largest) * largest
        return weights @ value

    return output


def _moved_logits(core: golden.Attention, moved: Tensor) -> Tensor:
    """The logits where the scores are off by something, of which a softcap lets a part pass.

    A cap behind biases passes on what its slope says: what precision loses is small beside the cap.
    """
    cap = core.softcap
    if cap is None:
        return core.logits + moved
    if not core.semantics.caps("bias"):
        return core.logits + (cap * torch.tanh((core.scores + moved) / cap) - core.capped)
    slope = 1.0 - (core.logits / cap).square()
    return core.logits + torch.where(torch.isfinite(core.logits), slope, 1.0) * moved


def rounded_exponents(rounding: Rounding) -> LossyOutput:
    """The distance of each logit to the largest, rounded on its way into the exponential."""

    def output(core: golden.Attention) -> Tensor:
        largest = core.logits.amax(dim=-1, keepdim=True).nan_to_num(neginf=0.0)
        return _weights(core, rounding(core.logits - largest) + largest) @ core.value

    return output


def added_up(left: Tensor, right: Tensor, rounding: Rounding, at_once: int) -> Tensor:
    """A product of matrices whose partial sums are rounded after so many terms each."""
    total = torch.zeros(*left.shape[:-1], right.shape[-1], dtype=torch.float64)
    # Several products at once: one after another they would take longer than all the rest.
    several = at_once * max(1, _PRODUCTS_HELD // max(1, total.numel()))
    for first in range(0, left.shape[-1], several):
        lefts, rights = left[..., first : first + several], right[..., first : first + several, :]
        for part in _products(lefts, rights, at_once):
            total = rounding(total + part)
    return total


def _products(left: Tensor, right: Tensor, at_once: int) -> list[Tensor]:
    """Products of so many terms each, the last of what is left."""
    count, rest = divmod(left.shape[-1], at_once)
    whole = left.shape[-1] - rest
    lefts = left[..., :whole].unflatten(-1, (count, at_once)).transpose(-2, -3)
    rights = right[..., :whole, :].unflatten(-2, (count, at_once))
    parts = list((lefts @ rights).unbind(-3))
    if rest:
        parts.append(left[..., whole:] @ right[..., whole:, :])
    return parts


def rounded_sum(rounding: Rounding, at_once: int) -> LossyOutput:
    """Every partial sum of weighted values rounded, after some terms each."""
    return lambda core: added_up(core.weights, core.value, rounding, at_once)


def rounded_unnormalised(rounding: Rounding, at_once: int) -> LossyOutput:
    """Every partial sum rounded, of weights that are divided by their sum afterwards."""

    def output(core: golden.Attention) -> Tensor:
        largest = _largest(core.weights)
        return added_up(core.weights / largest, core.value, rounding, at_once) * largest

    return output


def rounded_denominator(rounding: Rounding, at_once: int) -> LossyOutput:
    """Every partial sum of exponentials rounded."""

    def output(core: golden.Attention) -> Tensor:
        exponentials = core.weights / _largest(core.weights)
        ones = torch.ones(exponentials.shape[-1], 1, dtype=torch.float64)
        total = exponentials.sum(dim=-1, keepdim=True)
        return core.output * total / added_up(exponentials, ones, rounding, at_once).clamp_min(1.0)

    return output


def rounded_total(rounding: Rounding) -> LossyOutput:
    """The sum rounded once, when it is complete."""

    def output(core: golden.Attention) -> Tensor:
        total = (core.weights / _largest(core.weights)).sum(dim=-1, keepdim=True)
        return core.output * total / rounding(total).clamp_min(1.0)

    return output


def _largest(weights: Tensor, tile: int = 0) -> Tensor:
    """The largest weight of each row, or up to the end of the tile of each key; one for zero."""
    count = weights.shape[-1]
    if tile < count and tile:
        ends = ((torch.arange(count) // tile + 1) * tile - 1).clamp_max(count - 1)
        largest = weights.cummax(dim=-1).values[..., ends]
    else:
        largest = weights.amax(dim=-1, keepdim=True)
    return torch.where(largest > 0.0, largest, 1.0)


def rounded_products(rounding: Rounding, at_once: int) -> LossyOutput:
    """The dot products of query and key added up so."""

    def output(core: golden.Attention) -> Tensor:
        keys = core.key.transpose(-1, -2)
        apart = added_up(core.query, keys, rounding, at_once) - core.query @ keys
        return _weights(core, _moved_logits(core, core.scale * apart)) @ core.value

    return output


def plain_softmax(working: torch.dtype) -> LossyOutput:
    """As most would write it: with torch's own softmax."""
    return lambda core: _torch_softmax(core, core.logits, working).double() @ core.value


def plain_attention(working: torch.dtype) -> LossyOutput:
    """The textbook's three lines with every tensor converted first; softcap and bias exactly."""

    def output(core: golden.Attention) -> Tensor:
        query, key, value = (heads.to(working) for heads in (core.query, core.key, core.value))
        scores = (query @ key.transpose(-1, -2)) * core.scale
        logits = scores + (core.logits - core.scores).to(working)
        return (_torch_softmax(core, logits, working) @ value).double()

    return output


def _torch_softmax(core: golden.Attention, logits: Tensor, working: torch.dtype) -> Tensor:
    """Zero in rows without keys, where torch makes NaN; a sink counts as one more key."""
    count = logits.shape[-1]
    if core.sinks is not None:
        column = core.sinks[:, None, None].expand(*logits.shape[:-1], 1)
        logits = torch.cat([logits, column], dim=-1)
    return torch.softmax(logits.to(working), dim=-1)[..., :count].nan_to_num(nan=0.0)


def _weights(core: golden.Attention, logits: Tensor) -> Tensor:
    """The weights of other logits, beside the same sinks."""
    return golden.softmax(logits, sinks=core.sinks)


# After how many terms an accumulator is rounded: one, as many as an instruction adds, or a block.
AT_ONCE: Final = (1, 4, 8, 16, 32, 64)
KEPT: Final = "round nothing on the way to fewer digits than the inputs have"
SPOKEN: Final = {"tf32": "TensorFloat-32"}
TEN_BITS: Final = "ten bits (float16 or TensorFloat-32)"


@dataclass(frozen=True, kw_only=True)
class PrecisionLoss:
    """A rounding that no declaration allows unless it says so.

    stage, number_format
        What is rounded and to what, as parts of the name.
    what, fix
        What the candidate does, in the user's terms, with "{}" for the format; what to do instead.
    output
        The answer ``[B, H, Lq, Dv]`` of attention that loses this, from the golden evaluation.
    manner
        How it is rounded, where that is not to the nearest number.
    """

    stage: str
    number_format: str
    what: str
    output: LossyOutput
    fix: str = KEPT
    manner: str = ""

    @property
    def name(self) -> str:
        """A stable slug."""
        return f"{self.stage}-{self.number_format}"

    def name_in(self, dtype: str) -> str:
        """The name where the inputs have a dtype: a loss to that itself is one for all dtypes."""
        return f"{self.stage}-input-dtype" if self.number_format == dtype else self.name

    @property
    def text(self) -> str:
        """What happens; what to do instead is the fix."""
        spoken = SPOKEN.get(self.number_format, self.number_format) + self.manner
        return self.what.format(spoken)

    def in_ten_bits(self) -> str:
        """The text where float16 and TensorFloat-32 explain the answers alike."""
        return self.what.format(TEN_BITS)


# What is rounded, as part of the name and in words, and how; those that round the least first.
_operands = partial(partial, rounded_operands)
EXPONENTIALS: Final = (
    ("weights-in", "the exponentials are rounded to {} before they meet the values", "e"),
    ("weights-and-values-in", "exponentials and values are rounded to {} before they meet", "ev"),
    ("products-in", "the operands of both products, exponentials too, are rounded to {}", "qkev"),
)
_RELATIVE: Final = tuple((stage, what, _operands(roles)) for stage, what, roles in EXPONENTIALS)
_ROUNDED: Final[tuple[tuple[str, str, Callable[[Rounding], LossyOutput]], ...]] = (
    (
        "weights-in",
        "the softmax weights are rounded to {} before they meet the values",
        _operands("w"),
    ),
    _RELATIVE[0],
    ("values-in", "the values are rounded to {} before they meet the weights", _operands("v")),
    (
        "weights-and-values-in",
        "weights and values are rounded to {} before their product",
        _operands("wv"),
    ),
    _RELATIVE[1],
    ("scores-in", "the scores are rounded to {} before the softmax", rounded_scores),
    ("scores-in", "the logits, bias too, are rounded to {} before the softmax", rounded_logits),
    ("scores-in", "the dot products are rounded to {} before the scale", _operands("p")),
    ("additive-mask-in", "the additive mask is rounded to {} before it is added", rounded_bias),
    (
        "softmax-in",
        "the softmax is computed in {}: scores and weights are rounded to it",
        rounded_softmax,
    ),
    ("denominator-in", "the sum of the exponentials is rounded to {}", rounded_total),
    (
        "exponents-in",
        "the exponents, logits less the largest, are rounded to {}",
        rounded_exponents,
    ),
    ("query-in", "the query is rounded to {} before it meets the key", _operands("q")),
    ("key-in", "the key is rounded to {} before it meets the query", _operands("k")),
    ("scores-from", "query and key are rounded to {} before their product", _operands("qk")),
    ("scores-in", "query, key and their dot products are rounded to {}", _operands("qkp")),
    ("products-in", "the operands of both products are rounded to {}", _operands("qkwv")),
    _RELATIVE[2],
)
# Stages that are rounded on purpose: the fix says what to declare.
_WITH_REMEDY: Final = ("scores-from", "products-in")


# What is kept as integers of eight bits.
_INTEGERS: Final[tuple[tuple[str, str, Callable[[Rounding], LossyOutput]], ...]] = (
    *(one for one in _ROUNDED if one[0] in ("values-in", "key-in", *_WITH_REMEDY)),
    (
        "key-and-values-in",
        "keys and values are rounded to {} before they are read",
        _operands("kv"),
    ),
)


def of_format(
    name: str,
    rounding: Rounding,
    remedy: str,
    *,
    manner: str = "",
    stages: Sequence[tuple[str, str, Callable[[Rounding], LossyOutput]]] = _ROUNDED,
) -> tuple[PrecisionLoss, ...]:
    """Every stage rounded to a format."""
    return tuple(
        PrecisionLoss(
            stage=stage,
            number_format=name,
            what=what,
            output=rounded(rounding),
            fix=remedy if stage in _WITH_REMEDY else KEPT,
            manner=manner,
        )
        for stage, what, rounded in stages
    )


def _sums_of_format(name: str, rounding: Rounding) -> tuple[PrecisionLoss, ...]:
    """Sums in a format, those first that are rounded least often."""
    kinds: tuple[tuple[str, str, Callable[[Rounding, int], LossyOutput]], ...] = (
        ("sum-in", "the weighted values are added up in {}", rounded_sum),
        ("sum-in", "the weighted values are added up in {}", rounded_unnormalised),
        ("denominator-in", "the exponentials are added up in {}", rounded_denominator),
        (
            "products-added-up-in",
            "the dot products of query and key are added up in {}",
            rounded_products,
        ),
    )
    return tuple(
        PrecisionLoss(
            stage=stage,
            number_format=name,
            what=what,
            output=acted(rounding, at_once),
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
        output=plain_softmax(torch.float32),
        fix="compute it in the dtype of the inputs",
    ),
    PrecisionLoss(
        stage="computed-in",
        number_format="float32",
        what="attention is computed in {} inside",
        output=plain_attention(torch.float32),
        fix=AS_INPUTS,
    ),
)
LOSSES: Final[tuple[PrecisionLoss, ...]] = (
    *of_format("float32", to_format("float32"), AS_INPUTS),
    *_SINGLE,
    *of_format("float16", to_format("float16"), AS_INPUTS),
    *of_format("tf32", to_tf32, ALLOW_TF32),
    *of_format("tf32", to_cut_tf32, ALLOW_TF32, manner=" (cut off, not rounded)"),
    *of_format("bfloat16", to_format("bfloat16"), AS_INPUTS),
)
# What shares the step between two integers, and the axes of ``[B, H, L, D]`` that it lies along.
_SHARING: Final = (
    ("the whole tensor", (0, 1, 2, 3)),
    ("each batch item", (1, 2, 3)),
    ("each head", (2, 3)),
    ("each token", (3,)),
    ("each channel", (2,)),
)
# Formats that no tensor comes in: tried on answers that the others do not explain.
EIGHT_BITS: Final[tuple[PrecisionLoss, ...]] = (
    *(
        loss
        for name in ("float8_e4m3fn", "float8_e5m2")
        for loss in of_format(name, to_format(name), AS_INPUTS)
    ),
    *(
        loss
        for steps in (127, 255)
        for loss in of_format(
            "int8",
            in_steps_of(1.0 / steps),
            AS_INPUTS,
            manner=f" (multiples of 1/{steps})",
            stages=[one for one in _ROUNDED if one[0] == "weights-in"],
        )
    ),
    *(
        loss
        for words, axes in _SHARING
        for loss in of_format(
            "int8",
            to_integers(127, axes),
            AS_INPUTS,
            manner=f" (with a step for {words})",
            stages=_INTEGERS,
        )
    ),
)
# What is rounded over and over; tried on answers that single roundings do not explain.
SUMS: Final[tuple[PrecisionLoss, ...]] = tuple(
    loss
    for name in ("float32", "float16", "bfloat16")
    for loss in _sums_of_format(name, to_format(name))
)
ROUNDINGS: Final[dict[str, Rounding]] = {
    **{name: to_format(name) for name in FORMATS if name != "float64"},
    "tf32": to_tf32,
}
