"""Mistakes of the numerics kind: one legitimate computation with one step changed."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

import torch
from torch import Tensor

from .arithmetic import stored, transposed, wide
from .implementations import Core
from .in_wide import tensor_float
from .inputs import Heads
from .online import Online
from .problems import DTYPES

Step = Callable[[Tensor], Tensor]


def _same(numbers: Tensor) -> Tensor:
    return numbers


def storing(dtype: torch.dtype) -> Step:
    """A step that rounds to a dtype."""
    return lambda numbers: stored(numbers, dtype)


@dataclass(frozen=True, kw_only=True)
class Steps:
    """Fused attention, wide inside and rounded once, whose steps can be changed.

    scale_factor
        On the scale.
    operand, score, weight
        What happens to query and key, to the scaled scores and to the weights.
    exponential
        Of logits minus their maximum.
    softmax
        From logits to weights, instead of exponentials and their sum.
    epsilon
        Added to the sum of the exponentials.
    fill
        The logit of a hidden key.
    lose
        The index of a key whose weight does not reach the values.
    """

    scale_factor: float = 1.0
    operand: Step = _same
    score: Step = _same
    weight: Step = _same
    exponential: Step = torch.exp
    softmax: Step | None = None
    epsilon: float = 0.0
    fill: float = -math.inf
    lose: int | None = None

    def __call__(self, heads: Heads) -> Tensor:
        """The answer ``[B, H, Lq, Dv]`` in the working dtype."""
        heads = heads.repeated()
        weights = self._weights(self._logits(heads))
        if self.lose is not None:
            weights[..., self.lose] = 0.0
        weights = stored(self.weight(weights), heads.dtype)
        return (weights @ wide(heads.value)).to(heads.dtype)

    def _logits(self, heads: Heads) -> Tensor:
        query, key = (self.operand(wide(tokens)) for tokens in (heads.query, heads.key))
        scores = self.score(query @ transposed(key) * (heads.scale * self.scale_factor))
        if heads.softcap is not None:
            scores = heads.softcap * torch.tanh(scores / heads.softcap)
        scores = scores if heads.bias is None else scores + wide(heads.bias)
        return scores if heads.keep is None else scores.masked_fill(~heads.keep, self.fill)

    def _weights(self, scores: Tensor) -> Tensor:
        if self.softmax is not None:
            return self.softmax(scores)
        weights = self.exponential(scores - scores.amax(dim=-1, keepdim=True))
        return weights / (weights.sum(dim=-1, keepdim=True) + self.epsilon)


def _softmax_in(dtype: torch.dtype) -> Step:
    return lambda scores: torch.softmax(scores.to(dtype), dim=-1).to(scores.dtype)


def quadratic_exponential(exponents: Tensor) -> Tensor:
    """Powers of two by a parabola between whole ones: the relative error is at most 1.7e-3."""
    powers = (exponents * math.log2(math.e)).clamp_min(-1000.0)
    whole = powers.floor()
    part = powers - whole
    return torch.ldexp(1.0 + part * (0.6565 + 0.3435 * part), whole.int())


def wavy_exponential(exponents: Tensor) -> Tensor:
    """Exponentials with a relative error of up to 1e-3 that looks like noise."""
    noise = torch.sin(1e3 * exponents.clamp_min(-1e3))  # no sine of the infinite
    return torch.exp(exponents) * (1.0 + 1e-3 * noise)


def inside_float32(heads: Heads) -> Tensor:
    """Everything in float32, whatever the tensors' dtype."""
    narrow = replace(
        heads,
        query=heads.query.float(),
        key=heads.key.float(),
        value=heads.value.float(),
        bias=None if heads.bias is None else heads.bias.float(),
    )
    return Steps()(narrow).to(heads.dtype)


@dataclass(frozen=True, kw_only=True)
class Mistake:
    """A wrong core, the dtypes in which it is wrong, and the problems that can show it."""

    compute: Core
    dtypes: tuple[str, ...] = tuple(DTYPES)
    shows: Callable[[Heads], bool] = lambda _: True


def _is_masked(heads: Heads) -> bool:
    return heads.keep is not None and not bool(heads.keep.all())


def _has_keys(count: int) -> Callable[[Heads], bool]:
    return lambda heads: heads.key.shape[2] >= count


WIDE: Final = ("float32", "float64")
NOT_BFLOAT16: Final = ("float32", "float16", "float64")
SEVERAL_BLOCKS: Final = _has_keys(17)
SEVERAL_KEYS: Final = _has_keys(2)

MISTAKES: Final[dict[str, Mistake]] = {
    "scale x 1.01": Mistake(compute=Steps(scale_factor=1.01), shows=SEVERAL_KEYS),
    "scale x 1.001": Mistake(compute=Steps(scale_factor=1.001), shows=SEVERAL_KEYS),
    "scale x 1.0001": Mistake(compute=Steps(scale_factor=1.0001), shows=SEVERAL_KEYS),
    "scale x (1 + 1e-12)": Mistake(
        compute=Steps(scale_factor=1.0 + 1e-12), dtypes=("float64",), shows=SEVERAL_KEYS
    ),
    "weights in bfloat16": Mistake(
        compute=Steps(weight=storing(torch.bfloat16)), dtypes=NOT_BFLOAT16
    ),
    "weights in float16": Mistake(compute=Steps(weight=storing(torch.float16)), dtypes=WIDE),
    "scores from tf32": Mistake(compute=Steps(operand=tensor_float), dtypes=("float32",)),
    "scores in bfloat16": Mistake(compute=Steps(score=storing(torch.bfloat16))),
    "scores in float16": Mistake(compute=Steps(score=storing(torch.float16))),
    "softmax in bfloat16": Mistake(compute=Steps(softmax=_softmax_in(torch.bfloat16))),
    "softmax in float16": Mistake(compute=Steps(softmax=_softmax_in(torch.float16))),
    "float32 inside": Mistake(compute=inside_float32, dtypes=("float64",)),
    "exp by a parabola (1.7e-3)": Mistake(compute=Steps(exponential=quadratic_exponential)),
    "exp with noise of 1e-3": Mistake(compute=Steps(exponential=wavy_exponential)),
    "epsilon 1e-3 in the sum": Mistake(compute=Steps(epsilon=1e-3)),
    "epsilon 1e-5 in the sum": Mistake(compute=Steps(epsilon=1e-5)),
    "epsilon 1e-6 in the sum": Mistake(compute=Steps(epsilon=1e-6)),
    "hidden keys at -1e4": Mistake(compute=Steps(fill=-1e4), shows=_is_masked),
    "hidden keys at -1e9": Mistake(compute=Steps(fill=-1e9), shows=_is_masked),
    "sums in bfloat16": Mistake(compute=Online(block=16, accumulator=torch.bfloat16)),
    "sums in float16": Mistake(compute=Online(block=16, accumulator=torch.float16)),
    "log2(e) in bfloat16": Mistake(compute=Online(block=16, log2_e=1.4453125)),
    "sum never rescaled": Mistake(
        compute=Online(block=16, rescale_total=False), shows=SEVERAL_BLOCKS
    ),
    "values never rescaled": Mistake(
        compute=Online(block=16, rescale_sums=False), shows=SEVERAL_BLOCKS
    ),
    "first key's weight lost": Mistake(compute=Steps(lose=0)),
    "last key's weight lost": Mistake(compute=Steps(lose=-1)),
}
