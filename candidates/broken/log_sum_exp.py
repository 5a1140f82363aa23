"""Mistakes with returned log-sum-exps; the outputs are right unless the class says otherwise."""

from __future__ import annotations

import math
from typing import Any, Final

import torch
from torch import Tensor

from ..log_sum_exp import PROMISES, ByTwo, CoreWithLogSumExp
from ._kit import core

BY_TWO: Final[dict[str, Any]] = {
    **PROMISES,
    "lse_base": "2",
    "lse_shape": "BQH",
    "lse_empty": "inf",
}


@core("lse.golden", "lse.merge", **PROMISES)
class LogarithmToBaseTwo(CoreWithLogSumExp):
    """The logarithms are to the base 2, as FlashInfer's, where natural ones are declared."""

    def returned(self, lse: Tensor, query: Tensor) -> Tensor:
        del query
        return lse / math.log(2.0)


@core("lse.golden", "lse.merge", **BY_TWO)
class NaturalLogarithm(ByTwo):
    """The logarithms are natural where the base 2 is declared."""

    def returned(self, lse: Tensor, query: Tensor) -> Tensor:
        return super().returned(lse, query) * math.log(2.0)


@core("lse.merge", "lse.golden", **PROMISES)
class LargestLogitNotAdded(CoreWithLogSumExp):
    """The logarithm of the sum of shifted exponentials, without the largest logit."""

    def log_sum_exp(self, logits: Tensor) -> Tensor:
        most = logits.amax(dim=-1) if logits.shape[-1] else 0.0
        return logits.logsumexp(dim=-1) - torch.nan_to_num(torch.as_tensor(most), neginf=0.0)


@core("lse.golden", "lse.merge", **PROMISES)
class LargestLogitAlone(CoreWithLogSumExp):
    """The largest logit without the logarithm of the sum."""

    def log_sum_exp(self, logits: Tensor) -> Tensor:
        return logits.amax(dim=-1) if logits.shape[-1] else logits.logsumexp(dim=-1)


@core("lse.golden", "lse.merge", **PROMISES)
class SumWithoutLogarithm(CoreWithLogSumExp):
    """The sum of the exponentials, without their logarithm."""

    def returned(self, lse: Tensor, query: Tensor) -> Tensor:
        del query
        return torch.where(torch.isneginf(lse), lse, lse.exp())


class _OtherLogits(CoreWithLogSumExp):
    """The log-sum-exp is that of other logits than those of the weights."""

    def other(self, query: Tensor, keep: Tensor | None, options: dict[str, Any]) -> dict[str, Any]:
        del query, keep
        return options

    def __call__(
        self, query: Tensor, key: Tensor, value: Tensor, **options: Any
    ) -> Tensor | tuple[Tensor, Tensor]:
        answer = super().__call__(query, key, value, **options)
        if not options.get("return_lse"):
            return answer
        _, lse = super().__call__(
            query, key, value, **self.other(query, options.get("keep"), options)
        )
        return answer[0], torch.where(torch.isneginf(answer[1]), answer[1], lse)


@core("lse.golden", **PROMISES)
class SumOfHiddenKeys(_OtherLogits):
    """The sum counts the keys that the mask hides."""

    def other(self, query: Tensor, keep: Tensor | None, options: dict[str, Any]) -> dict[str, Any]:
        del query, keep
        return {name: value for name, value in options.items() if name != "keep"}


@core("lse.golden", **PROMISES)
class SumOfLaterKeys(_OtherLogits):
    """The sum counts the later keys, which causality hides."""

    def other(self, query: Tensor, keep: Tensor | None, options: dict[str, Any]) -> dict[str, Any]:
        del query, keep
        return {name: value for name, value in options.items() if name != "causal"}


@core("lse.golden", "lse.merge", **PROMISES)
class SumOfUnscaledScores(_OtherLogits):
    """The sum is that of the products before their scale."""

    def other(self, query: Tensor, keep: Tensor | None, options: dict[str, Any]) -> dict[str, Any]:
        del query, keep
        return {**options, "scale": 1.0}


@core("lse.golden", "lse.merge", **PROMISES)
class HeadsBehindQueries(CoreWithLogSumExp):
    """The memory of ``[B, Lq, H]`` is taken for ``[B, H, Lq]``."""

    def returned(self, lse: Tensor, query: Tensor) -> Tensor:
        del query
        return lse.mT.reshape(lse.shape)


@core("lse.golden", "lse.merge", **PROMISES)
class SumOfTheFirstHead(CoreWithLogSumExp):
    """Every head of an item gets the log-sum-exp of its first one."""

    def returned(self, lse: Tensor, query: Tensor) -> Tensor:
        del query
        return lse[:, :1].expand_as(lse)


@core("lse.golden", "lse.merge", **PROMISES)
class RoundedToHalf(CoreWithLogSumExp):
    """The log-sum-exp is rounded to bfloat16 on its way."""

    def returned(self, lse: Tensor, query: Tensor) -> Tensor:
        del query
        return lse.to(torch.bfloat16).to(lse.dtype)


@core("lse.golden", **PROMISES)
class KeptInHalf(CoreWithLogSumExp):
    """The log-sum-exp has the dtype of the inputs in half precision, too."""

    def returned(self, lse: Tensor, query: Tensor) -> Tensor:
        return lse.to(query.dtype)


@core("lse.empty-row", **PROMISES)
class ZeroForNoKey(CoreWithLogSumExp):
    """A query without keys has a log-sum-exp of zero: merged, its empty answer counts."""

    def returned(self, lse: Tensor, query: Tensor) -> Tensor:
        del query
        return torch.where(torch.isneginf(lse), 0.0, lse)


@core("lse.empty-row", **PROMISES)
class InfinityForNoKey(CoreWithLogSumExp):
    """A query without keys has plus infinity where minus infinity is declared."""

    def returned(self, lse: Tensor, query: Tensor) -> Tensor:
        del query
        return torch.where(torch.isneginf(lse), math.inf, lse)


@core("lse.aside", **PROMISES)
class MaskLostWhenAsked(CoreWithLogSumExp):
    """A call that asks for the log-sum-exp takes another path, which forgets the mask."""

    def __call__(
        self, query: Tensor, key: Tensor, value: Tensor, **options: Any
    ) -> Tensor | tuple[Tensor, Tensor]:
        if not options.get("return_lse"):
            return super().__call__(query, key, value, **options)
        _, lse = super().__call__(query, key, value, **options)
        unmasked = {name: given for name, given in options.items() if name != "keep"}
        return super().__call__(query, key, value, **unmasked)[0], lse


class _Factor(torch.autograd.Function):
    """Numbers as they are, whose gradient is multiplied by a factor."""

    @staticmethod
    def forward(ctx: Any, numbers: Tensor, factor: float) -> Tensor:
        ctx.factor = factor
        return numbers.clone()

    @staticmethod
    def backward(ctx: Any, *gradient: Tensor) -> Any:
        return gradient[0] * ctx.factor, None


class _FactorBackward(CoreWithLogSumExp):
    """The gradient of the log-sum-exp is multiplied by a factor."""

    factor = 0.0

    def log_sum_exp(self, logits: Tensor) -> Tensor:
        made: Tensor = _Factor.apply(super().log_sum_exp(logits), self.factor)  # type: ignore[no-untyped-call]  # torch's own
        return made


@core("gradients.lse", **PROMISES)
class LogSumExpIgnoredBackward(_FactorBackward):
    """The gradient of the log-sum-exp is ignored, though it seems to carry one."""


@core("gradients.lse", **PROMISES)
class LogSumExpAddedToTheRowTerm(_FactorBackward):
    """The gradient of the log-sum-exp is added to the row term, and not taken off it."""

    factor = -1.0
