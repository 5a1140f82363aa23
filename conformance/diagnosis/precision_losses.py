"""Named losses of precision, acted out: the golden with one stage rounded as it should not be."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import torch

from .roundings import (
    Acted,
    Rounding,
    plain_attention,
    plain_softmax,
    rounded_denominator,
    rounded_exponentials,
    rounded_exponents,
    rounded_logits,
    rounded_operands,
    rounded_products,
    rounded_scores,
    rounded_softmax,
    rounded_sum,
    rounded_total,
    rounded_unnormalised,
    rounded_values,
    rounded_weights,
    to_cut_tf32,
    to_format,
    to_tf32,
)

# After how many terms an accumulator is rounded: one by one, as vectors or matrix instructions add
# them up, or a block of keys at a time.
AT_ONCE: Final = (1, 4, 8, 16, 32, 64)
SPOKEN: Final = {"tf32": "TensorFloat-32"}
# Numbers of both are the same as long as none leaves float16's range.
SHORT_FORMATS: Final = ("float16", "tf32")
TEN_BITS: Final = "ten bits (float16 or TensorFloat-32)"


@dataclass(frozen=True, kw_only=True)
class PrecisionLoss:
    """A rounding that no declaration allows unless it says so.

    stage, number_format
        What is rounded and to what, as parts of the name.
    what, remedy
        What the candidate does, in the user's terms, with "{}" for the format; what to do instead.
    output
        The answer ``[B, H, Lq, Dv]`` of attention that loses this, from the golden evaluation.
    manner
        How it is rounded, where that is not to the nearest number.
    """

    stage: str
    number_format: str
    what: str
    output: Acted
    remedy: str = ""
    manner: str = ""

    @property
    def name(self) -> str:
        """A stable slug."""
        return f"{self.stage}-{self.number_format}"

    @property
    def text(self) -> str:
        """What happens, and the remedy if there is one."""
        spoken = SPOKEN.get(self.number_format, self.number_format) + self.manner
        told = self.what.format(spoken)
        return f"{told}: {self.remedy}" if self.remedy else told

    def in_ten_bits(self) -> str:
        """The text where float16 and TensorFloat-32 explain the answers alike: no safe remedy."""
        return self.what.format(TEN_BITS)


def _of_format(
    name: str, rounding: Rounding, remedy: str, *, manner: str = ""
) -> tuple[PrecisionLoss, ...]:
    """Every stage rounded to a format, those that round the least first."""

    def loss(stage: str, what: str, output: Acted, remedy: str = "") -> PrecisionLoss:
        return PrecisionLoss(
            stage=stage,
            number_format=name,
            what=what,
            output=output,
            remedy=remedy,
            manner=manner,
        )

    return (
        loss(
            "weights-in",
            "the softmax weights are rounded to {} before they meet the values",
            rounded_weights(rounding),
        ),
        loss(
            "weights-in",
            "the exponentials are rounded to {} before they meet the values",
            rounded_exponentials(rounding),
        ),
        loss(
            "values-in",
            "the values are rounded to {} before they meet the weights",
            rounded_values(rounding),
        ),
        loss(
            "weights-and-values-in",
            "weights and values are rounded to {} before their product",
            rounded_operands(rounding, values=True),
        ),
        loss(
            "scores-in",
            "the scores are rounded to {} before the softmax",
            rounded_scores(rounding),
        ),
        loss(
            "scores-in",
            "the logits, bias included, are rounded to {} before the softmax",
            rounded_logits(rounding),
        ),
        loss(
            "softmax-in",
            "the softmax is computed in {}: scores and weights are rounded to it",
            rounded_softmax(rounding),
        ),
        loss(
            "denominator-in",
            "the sum of the exponentials is rounded to {}",
            rounded_total(rounding),
        ),
        loss(
            "exponents-in",
            "the exponents, logits less the largest, are rounded to {}",
            rounded_exponents(rounding),
        ),
        loss(
            "query-in",
            "the query is rounded to {} before it meets the key",
            rounded_operands(rounding, query=True),
        ),
        loss(
            "key-in",
            "the key is rounded to {} before it meets the query",
            rounded_operands(rounding, key=True),
        ),
        loss(
            "scores-from",
            "query and key are rounded to {} before their product",
            rounded_operands(rounding, query=True, key=True),
            remedy,
        ),
        loss(
            "products-in",
            "the operands of both products are rounded to {}",
            rounded_operands(rounding, query=True, key=True, values=True),
            remedy,
        ),
    )


def _sums_of_format(name: str, rounding: Rounding) -> tuple[PrecisionLoss, ...]:
    """Sums in a format, those first that are rounded least often."""
    kinds: tuple[tuple[str, str, Callable[[Rounding, int], Acted]], ...] = (
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
            remedy="declare accumulate if that is meant, or add up in float32",
            manner=f" ({_spoken_terms(at_once)})",
        )
        for at_once in reversed(AT_ONCE)
        for stage, what, acted in kinds
    )


def _spoken_terms(at_once: int) -> str:
    return "one term after the other" if at_once == 1 else f"rounded after every {at_once} terms"


_ALLOW_TF32: Final = "declare tf32=True if that is meant"
_AS_INPUTS: Final = "compute in the dtype of the inputs"
_SINGLE: Final = (
    PrecisionLoss(
        stage="softmax-in",
        number_format="float32",
        what="the softmax is computed in {} by torch",
        output=plain_softmax(torch.float32),
        remedy="compute it in the dtype of the inputs",
    ),
    PrecisionLoss(
        stage="computed-in",
        number_format="float32",
        what="attention is computed in {} inside",
        output=plain_attention(torch.float32),
        remedy=_AS_INPUTS,
    ),
)
LOSSES: Final[tuple[PrecisionLoss, ...]] = (
    *_of_format("float32", to_format("float32"), _AS_INPUTS),
    *_SINGLE,
    *_of_format("float16", to_format("float16"), _AS_INPUTS),
    *_of_format("tf32", to_tf32, _ALLOW_TF32),
    *_of_format("tf32", to_cut_tf32, _ALLOW_TF32, manner=" (cut off, not rounded)"),
    *_of_format("bfloat16", to_format("bfloat16"), _AS_INPUTS),
)
# Formats that no tensor comes in: tried on answers that the others do not explain.
EIGHT_BITS: Final[tuple[PrecisionLoss, ...]] = tuple(
    loss
    for name in ("float8_e4m3fn", "float8_e5m2")
    for loss in _of_format(name, to_format(name), _AS_INPUTS)
)
# What is rounded over and over; tried on answers that single roundings do not explain.
SUMS: Final[tuple[PrecisionLoss, ...]] = tuple(
    loss
    for name in ("float32", "float16", "bfloat16")
    for loss in _sums_of_format(name, to_format(name))
)
ROUNDINGS: Final[dict[str, Rounding]] = {
    **{
        name: to_format(name)
        for name in ("float8_e5m2", "float8_e4m3fn", "bfloat16", "float16", "float32")
    },
    "tf32": to_tf32,
}
# From the coarsest on: it holds the fewest numbers.
COARSER: Final = {
    "float64": ("bfloat16", "float16", "tf32", "float32"),
    "float32": ("bfloat16", "float16", "tf32"),
    "float16": ("float8_e5m2", "float8_e4m3fn", "bfloat16"),
    "bfloat16": ("float8_e5m2", "float8_e4m3fn"),
}
