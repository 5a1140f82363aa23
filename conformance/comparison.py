"""Compares an answer with what is expected, within an elementwise bound."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from .results import Violation


@dataclass(frozen=True, kw_only=True)
class Agreement:
    """The outcome of one comparison: the largest error over its bound, and what is wrong if any."""

    margin: float
    violation: Violation | None = None


def compare(
    got: Tensor,
    expected: Tensor,
    bound: Tensor,
    *,
    judged: Tensor | None = None,
    wording: str = "the answer differs from the expected one",
    both_answers: bool = False,
) -> Agreement:
    """Require ``|got - expected| <= bound`` wherever ``judged`` (bool, broadcastable) is True.

    Finiteness comes first: NaN or infinity where a finite value is expected is a violation of kind
    ``finite`` whatever the bound. With ``both_answers`` the expected values are an answer of the
    candidate as well: two NaN do not agree. All tensors have the same shape.
    """
    got, expected = got.double(), expected.double()
    judged = torch.ones_like(got, dtype=torch.bool) if judged is None else judged.expand(got.shape)
    broken = judged & ~torch.isfinite(got) & torch.isfinite(expected)
    if bool(broken.any()):
        return Agreement(
            margin=math.inf,
            violation=_violation("finite", f"{wording}: not finite", got, expected, bound, broken),
        )
    if both_answers and not bool((torch.isfinite(expected) | ~judged).all()):
        return _not_finite(wording, expected, judged & ~torch.isfinite(expected))
    error = (got - expected).abs()
    # A bound that is not a number allows nothing.
    ratio = torch.where(error == 0, 0.0, error / bound).nan_to_num(nan=math.inf, posinf=math.inf)
    ratio = torch.where(judged & torch.isfinite(expected), ratio, 0.0)
    margin = float(ratio.max()) if ratio.numel() else 0.0
    if margin <= 1.0:
        return Agreement(margin=margin)
    worst = ratio == margin
    return Agreement(
        margin=margin, violation=_violation("value", wording, got, expected, bound, worst)
    )


def moves(expected: Tensor, other: Tensor, bound: Tensor, judged: Tensor | None = None) -> bool:
    """Whether another answer lies outside the bound somewhere that is judged."""
    if other.shape != expected.shape:
        return True
    far = ~((other - expected).abs() <= bound)
    return bool((far if judged is None else far & judged).any())


def _not_finite(wording: str, answer: Tensor, where: Tensor) -> Agreement:
    """The agreement of two answers of which the one that is compared with is not finite."""
    index = [int(i) for i in where.nonzero()[0]]
    got = float(answer[tuple(index)])
    message = f"{wording}: one of the two answers is not finite at {index}: {got}"
    return Agreement(
        margin=math.inf, violation=Violation(kind="finite", message=message, got=got, where=index)
    )


def _violation(
    kind: str, wording: str, got: Tensor, expected: Tensor, bound: Tensor, where: Tensor
) -> Violation:
    index = tuple(int(i) for i in where.nonzero()[0])
    expects, came, limit = (float(t[index]) for t in (expected, got, bound.expand(got.shape)))
    message = (
        f"{wording} at {list(index)}: expected {expects:.9g}, got {came:.9g} "
        f"(error {abs(came - expects):.3g}, allowed {limit:.3g}; {int(where.sum())} of "
        f"{got.numel()} elements {'are' if kind == 'finite' else 'share the worst ratio'})"
    )
    if kind == "value":
        message = message.rsplit(";", 1)[0] + ")"
    return Violation(kind=kind, message=message, expected=expects, got=came, where=list(index))
