"""Attention that returns the log-sum-exp of each query's logits, by which parts are merged."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

import conformance

PROMISES: dict[str, Any] = {
    "masks": ["keep", "bias"],
    "causal": "bottom-right",
    "empty_rows": "zeros",
    "features": ["scale", "gqa", "lse"],
    "dtypes": ["float32", "float16", "bfloat16"],
}


class CoreWithLogSumExp:
    """Attention whose steps around the log-sum-exp can be replaced."""

    def logits(self, query: Tensor, key: Tensor, scale: float) -> Tensor:
        """The scaled products."""
        return query @ key.mT * scale

    def log_sum_exp(self, logits: Tensor) -> Tensor:
        """The logarithm of the sum of exponentials, ``[B, H, Lq]``."""
        return logits.logsumexp(dim=-1)

    def returned(self, lse: Tensor, query: Tensor) -> Tensor:
        """The log-sum-exps as they are returned; ``query`` is the call's."""
        del query
        return lse

    def __call__(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *,
        keep: Tensor | None = None,
        bias: Tensor | None = None,
        causal: bool = False,
        scale: float | None = None,
        return_lse: bool = False,
    ) -> Tensor | tuple[Tensor, Tensor]:
        """Attention in float32 at least: ``[B, H, Lq, Dv]``, and ``[B, H, Lq]`` where asked."""
        wide = torch.promote_types(query.dtype, torch.float32)
        group = query.shape[1] // key.shape[1]
        keys, values = (heads.to(wide).repeat_interleave(group, 1) for heads in (key, value))
        scale = scale if scale is not None else max(query.shape[-1], 1) ** -0.5
        logits = self.logits(query.to(wide), keys, scale)
        if bias is not None:
            logits = logits + bias
        if keep is not None:
            logits = logits.masked_fill(~keep, -math.inf)
        if causal:
            last = key.shape[-2] - query.shape[-2]
            later = torch.ones(logits.shape[-2:], dtype=torch.bool).triu(last + 1)
            logits = logits.masked_fill(later, -math.inf)
        lse = self.log_sum_exp(logits)
        hidden = torch.isneginf(logits)
        none = hidden.all(dim=-1, keepdim=True)
        weights = logits.masked_fill(none, 0.0).softmax(dim=-1).masked_fill(hidden, 0.0)
        output = (weights @ values).to(query.dtype)
        return (output, self.returned(lse, query)) if return_lse else output


class ByTwo(CoreWithLogSumExp):
    """Logarithms to the base 2, heads behind queries and infinity for no key, as some kernels."""

    def returned(self, lse: Tensor, query: Tensor) -> Tensor:
        """Infinity gives a part without keys no weight where the others are divided by it."""
        del query
        return torch.where(torch.isneginf(lse), math.inf, lse / math.log(2.0)).mT


class InTwoParts(CoreWithLogSumExp):
    """The sum over keys is that of two parts, merged."""

    def log_sum_exp(self, logits: Tensor) -> Tensor:
        """Each part by its own largest logit; a part without keys has no gradient."""
        parts = []
        for part in logits.tensor_split(2, dim=-1):
            none = torch.isneginf(part).all(dim=-1)
            finite = part.masked_fill(none.unsqueeze(-1), 0.0)
            parts.append(finite.logsumexp(dim=-1).masked_fill(none, -math.inf))
        return torch.logaddexp(*parts)


log_sum_exp = conformance.core(CoreWithLogSumExp(), **PROMISES, name="log_sum_exp")
in_two_parts = conformance.core(InTwoParts(), **PROMISES, name="in_two_parts")
by_two = conformance.core(
    ByTwo(), **PROMISES, lse_base="2", lse_shape="BQH", lse_empty="inf", name="by_two"
)
