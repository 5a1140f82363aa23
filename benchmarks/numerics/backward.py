"""Gradients of a core: legitimate ways to compute them, and mistakes in the backward pass."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

import torch
from torch import Tensor

from .arithmetic import blocks, logits, stored, transposed, wide
from .implementations import EAGER, FUSED, IMPLEMENTATIONS, Core, Promise
from .in_wide import reciprocal
from .inputs import Heads

Gradients = dict[str, Tensor]
Backward = Callable[[Heads, Tensor], Gradients]
ROLES: Final = ("query", "key", "value")
Step = Callable[[Tensor], Tensor]


def _same(numbers: Tensor) -> Tensor:
    return numbers


def storing(dtype: torch.dtype) -> Step:
    """A step that rounds to a dtype."""
    return partial(stored, dtype=dtype)


def automatic(core: Core) -> Backward:
    """What autograd makes of a forward pass."""

    def backward(heads: Heads, output_gradient: Tensor) -> Gradients:
        leaves = {role: getattr(heads, role).detach().clone().requires_grad_() for role in ROLES}
        with torch.enable_grad():
            output = core(replace(heads, **leaves))
        found = torch.autograd.grad(output, list(leaves.values()), output_gradient)
        return dict(zip(ROLES, found, strict=True))

    return backward


@dataclass(frozen=True, kw_only=True)
class Blockwise:
    """The backward pass of FlashAttention-2 over blocks of keys, with steps that can be changed.

    row_sum, log_sum_exp, weight, score
        What happens to D = rowsum(dO * O), to the log-sum-exp, to P and to dS before products.
    query_scale, key_scale
        Factors on the gradients of query and key; 1 is right.
    mask
        Whether the recomputed logits are masked.
    lose_query
        Whether the last query is left out of dK.
    """

    block: int = 64
    row_sum: Step = _same
    log_sum_exp: Step = _same
    weight: Step = _same
    score: Step = _same
    query_scale: float | None = 1.0
    key_scale: float | None = 1.0
    mask: bool = True
    lose_query: bool = False

    def __call__(self, heads: Heads, output_gradient: Tensor) -> Gradients:
        """The gradients of query, key and value in the working dtype."""
        repeated = heads.repeated()
        gradient = wide(output_gradient)
        scores = logits(repeated)
        sums = self.log_sum_exp(torch.logsumexp(scores, dim=-1, keepdim=True))
        output = wide(reciprocal(repeated))
        row_sum = self.row_sum((gradient * output).sum(dim=-1, keepdim=True))
        query, key, value = map(wide, (repeated.query, repeated.key, repeated.value))
        query_gradient, keys, values = torch.zeros_like(query), [], []
        unmasked = repeated if self.mask else replace(repeated, keep=None, bias=None)
        for block in blocks(key.shape[2], self.block):
            weights = torch.exp(logits(unmasked, block) - sums)
            weight_gradient = gradient @ transposed(value[..., block, :])
            raw = weights * (weight_gradient - row_sum)
            score_gradient = stored(self.score(raw), heads.dtype)
            query_gradient += score_gradient @ key[..., block, :]
            if self.lose_query:
                score_gradient[..., -1, :] = 0.0
            keys.append(transposed(score_gradient) @ query)
            values.append(transposed(stored(self.weight(weights), heads.dtype)) @ gradient)
        return {
            "query": self._scaled(query_gradient, self.query_scale, heads),
            "key": self._scaled(_grouped(torch.cat(keys, 2), heads), self.key_scale, heads),
            "value": _grouped(torch.cat(values, 2), heads).to(heads.dtype),
        }

    @staticmethod
    def _scaled(gradient: Tensor, factor: float | None, heads: Heads) -> Tensor:
        """Times the scale and a factor on it; None forgets the scale."""
        scale = 1.0 if factor is None else heads.scale * factor
        return (gradient * scale).to(heads.dtype)


def _grouped(gradient: Tensor, heads: Heads) -> Tensor:
    """Add up what the query heads of a key/value head give."""
    groups = (heads.key.shape[1], heads.query.shape[1] // heads.key.shape[1])
    return gradient.reshape(gradient.shape[0], *groups, *gradient.shape[2:]).sum(dim=2)


@dataclass(frozen=True, kw_only=True)
class BackwardImplementation:
    """A backward pass, what it promises, and which problems it can be given."""

    compute: Backward
    promise: Promise = FUSED
    takes: Callable[[Heads], bool] = lambda _: True


def _automatic(name: str, promise: Promise | None = None) -> BackwardImplementation:
    core = IMPLEMENTATIONS[name]
    return BackwardImplementation(
        compute=automatic(core.compute), promise=promise or core.promise, takes=core.takes
    )


def _in_dtype(heads: Heads, output_gradient: Tensor) -> Gradients:
    """With the scale itself stored in the working dtype."""
    scale = float(torch.tensor(heads.scale, dtype=heads.dtype))
    return Blockwise()(replace(heads, scale=scale), output_gradient)


# Autograd rounds a stored step's gradient as well, which only the eager contract allows.
BACKWARDS: Final[dict[str, BackwardImplementation]] = {
    **{
        f"autograd: {name}": _automatic(name)
        for name in (
            "sdpa math",
            "sdpa flash",
            "eager",
            "eager, product divided",
            "einsum",
            "baddbmm",
            "upcast",
            "query scaled",
            "both scaled by the root",
        )
    },
    "autograd: upcast, weights stored": _automatic("upcast, weights stored", EAGER),
    **{
        f"blockwise, {block} keys": BackwardImplementation(compute=Blockwise(block=block))
        for block in (16, 64, 512)
    },
    "blockwise, scale stored": BackwardImplementation(compute=_in_dtype),
}


@dataclass(frozen=True, kw_only=True)
class BackwardMistake:
    """A wrong backward pass and the problems that can show it."""

    compute: Backward
    dtypes: tuple[str, ...] = ("float32", "bfloat16", "float16")
    shows: Callable[[Heads], bool] = lambda _: True


def _scaled(factor: float) -> Backward:
    """A scale that is off by a factor wherever it is used."""

    def backward(heads: Heads, output_gradient: Tensor) -> Gradients:
        return Blockwise()(replace(heads, scale=heads.scale * factor), output_gradient)

    return backward


def _is_masked(heads: Heads) -> bool:
    return heads.keep is not None or heads.bias is not None


BACKWARD_MISTAKES: Final[dict[str, BackwardMistake]] = {
    "D left out": BackwardMistake(compute=Blockwise(row_sum=torch.zeros_like)),
    "D in bfloat16": BackwardMistake(compute=Blockwise(row_sum=storing(torch.bfloat16))),
    "D in float16": BackwardMistake(compute=Blockwise(row_sum=storing(torch.float16))),
    "log-sum-exp in bfloat16": BackwardMistake(
        compute=Blockwise(log_sum_exp=storing(torch.bfloat16))
    ),
    "dS in bfloat16": BackwardMistake(
        compute=Blockwise(score=storing(torch.bfloat16)), dtypes=("float32", "float16")
    ),
    "P in bfloat16": BackwardMistake(
        compute=Blockwise(weight=storing(torch.bfloat16)), dtypes=("float32", "float16")
    ),
    "dQ without the scale": BackwardMistake(compute=Blockwise(query_scale=None)),
    "dK without the scale": BackwardMistake(compute=Blockwise(key_scale=None)),
    "dQ with scale x 1.01": BackwardMistake(compute=Blockwise(query_scale=1.01)),
    "dQ with scale x 1.001": BackwardMistake(compute=Blockwise(query_scale=1.001)),
    "dK with scale x 1.01": BackwardMistake(compute=Blockwise(key_scale=1.01)),
    "both passes with scale x 1.01": BackwardMistake(compute=_scaled(1.01)),
    "both passes with scale x 1.001": BackwardMistake(compute=_scaled(1.001)),
    "mask left out": BackwardMistake(compute=Blockwise(mask=False), shows=_is_masked),
    "last query left out of dK": BackwardMistake(compute=Blockwise(lose_query=True)),
}
