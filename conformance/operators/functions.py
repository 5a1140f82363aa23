"""Functions of single numbers of a result, or of rows of numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Final

import torch
from torch import Tensor
from torch.nn import functional

from .operator import AlongAxis, Operator, axes_of, insert_place

Function = Callable[[Tensor], Tensor]
# Larger exponents overflow.
_MOST_EXPONENT: Final = 700.0
# What layer norms add to the variance.
EPSILON: Final = 1e-5
# What RMS norms add to the mean square.
SMALL_EPSILON: Final = 1e-6
OF_EACH: Final[tuple[tuple[str, Function], ...]] = (
    ("left at zero", torch.zeros_like),
    ("their mean over all", lambda t: t.mean().expand_as(t)),
    ("one each", torch.ones_like),
    ("without their sign", torch.abs),
    ("squared", torch.square),
    ("cubed", lambda t: t**3),
    ("replaced by the root of their sizes, with their sign", lambda t: t.sign() * t.abs().sqrt()),
    ("replaced by their reciprocals", lambda t: torch.where(t == 0.0, 0.0, 1.0 / t)),
    ("with zeros for what is negative", torch.relu),
    ("with zeros for what is positive", lambda t: t.clamp_max(0.0)),
    ("clamped to one", lambda t: t.clamp_max(1.0)),
    ("clamped to -1 and 1", lambda t: t.clamp(-1.0, 1.0)),
    ("put through tanh", torch.tanh),
    ("put through the sigmoid", torch.sigmoid),
    ("put through softplus", functional.softplus),
    ("put through GELU", functional.gelu),
    ("put through SiLU", functional.silu),
    ("put through ELU and plus one", lambda t: functional.elu(t) + 1.0),
    ("put through the exponential", lambda t: t.clamp_max(_MOST_EXPONENT).exp()),
    ("put through the logarithm of one and their size", lambda t: t.abs().log1p()),
    ("put through the sine", torch.sin),
    ("put through the cosine", torch.cos),
    ("rounded to whole numbers", torch.round),
    ("rounded down", torch.floor),
    ("cut to whole numbers", torch.trunc),
    ("taken as truth values", lambda t: (t != 0).double()),
    ("with one added", lambda t: t + 1.0),
    ("with one taken off", lambda t: t - 1.0),
    ("taken off one", lambda t: 1.0 - t),
    ("cast to float16, whose largest number is 65504", lambda t: t.half().double()),
)


def functions(axes: str) -> Iterator[Operator]:
    """Yield the functions of a result with given axes."""
    for words, function in OF_EACH:
        yield Operator(words, function)
    for noun, along in axes_of(axes):
        for words, along_axis in _OF_ROWS:
            yield Operator(insert_place(words, noun), along(along_axis))


def _softmax(result: Tensor, axis: int) -> Tensor:
    return torch.softmax(result, axis).nan_to_num(nan=0.0)


def _over_sum(result: Tensor, axis: int) -> Tensor:
    total = result.sum(axis, keepdim=True)
    return result / torch.where(total == 0.0, 1.0, total)


def _over_largest(result: Tensor, axis: int) -> Tensor:
    largest = result.abs().amax(axis, keepdim=True)
    return result / torch.where(largest == 0.0, 1.0, largest)


def standardised(result: Tensor, axis: int) -> Tensor:
    """Return mean zero and variance one along an axis, as layer norms have it."""
    centred = result - result.mean(axis, keepdim=True)
    return centred / (centred.square().mean(axis, keepdim=True) + EPSILON).sqrt()


def over_root_mean_square(result: Tensor, axis: int) -> Tensor:
    """Divide by the root of the mean square along an axis, as RMS norms do."""
    return result / (result.square().mean(axis, keepdim=True) + SMALL_EPSILON).sqrt()


def _over_deviation(result: Tensor, axis: int, *, added: float, fewer: int = 0) -> Tensor:
    """Divide by the deviation; unchanged if too few numbers have a deviation."""
    if result.shape[axis] <= fewer:
        return result
    deviation = result.std(axis, keepdim=True, correction=fewer) + added
    return result / torch.where(deviation == 0.0, 1.0, deviation)


_OF_ROWS: Final[tuple[tuple[str, AlongAxis], ...]] = (
    ("put through a softmax over the {}s", _softmax),
    ("divided by their sum over the {}s", _over_sum),
    ("divided by the largest size over the {}s", _over_largest),
    ("standardised over the {}s", standardised),
    ("divided by the root of their mean square over the {}s", over_root_mean_square),
    *(
        (f"divided by their deviation over the {{}}s{more}", partial(_over_deviation, added=added))
        for more, added in (("", 0.0), (" and 1e-6", 1e-6), (" and 1e-5", 1e-5))
    ),
    (
        "divided by their deviation, over one {} less",
        partial(_over_deviation, added=0.0, fewer=1),
    ),
)
