"""Mistakes that show only where three things meet: no single option and no pair of them does it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import torch
from torch import Tensor

from ..eager import Answer, Call, EagerCore
from ._kit import core
from .options import Forgets

EVERY: Final[dict[str, Any]] = {
    "features": ["scale", "gqa", "softcap", "window", "weights", "dropout", "kv_cache"]
}


def _in_groups(call: Call) -> bool:
    return call.key.shape[1] != call.query.shape[1]


def _masked(call: Call) -> bool:
    return any(getattr(call, name) is not None for name in ("keep", "drop", "keep_int", "bias"))


@core("numerics.options", **EVERY)
class WindowLostForOneCachedQuery(Forgets):
    """A single query behind a cache takes the decoding kernel, which is not given the window."""

    def lose(self, call: Call) -> Call:
        decoding = call.past_key is not None and call.query_length == 1
        return call.replace(window=None) if decoding else call


@core("numerics.options", **EVERY)
class SoftcapLostInDecodeStep(Forgets):
    """A single query behind a cache takes the decoding kernel, which does not cap."""

    def lose(self, call: Call) -> Call:
        decoding = call.past_key is not None and call.query_length == 1
        return call.replace(softcap=None) if decoding else call


@core("numerics.options", **EVERY)
class ScaleLostUnderMaskWithDropout(Forgets):
    """The path for a mask and dropout together multiplies by the default scale."""

    def lose(self, call: Call) -> Call:
        dropping = call.dropout > 0 and _masked(call)
        return call.replace(scale=None) if dropping else call


@core("numerics.options", **EVERY)
class CausalLostUnderMaskWithDropout(Forgets):
    """With a mask and dropout the mask alone is handed on: the causal flag is lost."""

    def lose(self, call: Call) -> Call:
        return call.replace(causal=call.causal and not (call.dropout > 0 and _masked(call)))


@core("numerics.options", **EVERY)
class SoftcapLostWithWeightsInGroups(Forgets):
    """Weights of shared key/value heads are computed on a path of their own, without the cap."""

    def lose(self, call: Call) -> Call:
        aside = call.return_weights and _in_groups(call)
        return call.replace(softcap=None) if aside else call


@core("numerics.options", **EVERY)
class WindowLostWithWeightsUnderFlag(Forgets):
    """Where the weights are asked for, the causal flag overwrites the window's table."""

    def lose(self, call: Call) -> Call:
        return call.replace(window=None) if call.return_weights and call.causal else call


@core("numerics.options", **EVERY)
class ScaleLostInGroupsBehindCache(Forgets):
    """Shared heads behind a cache are expanded by a kernel that knows the default scale alone."""

    def lose(self, call: Call) -> Call:
        return call.replace(scale=None) if _in_groups(call) and call.past_key is not None else call


@core("numerics.options", **EVERY)
class CapLostForStridedInGroups(Forgets):
    """Queries that are not contiguous, in groups, take the general kernel, which does not cap."""

    def lose(self, call: Call) -> Call:
        general = not call.query.is_contiguous() and _in_groups(call)
        return call.replace(softcap=None) if general else call


@core("numerics.options", **EVERY)
class BiasLostForStridedUnderFlag(Forgets):
    """Keys that are not contiguous under the causal flag: the additive values are not loaded."""

    def lose(self, call: Call) -> Call:
        general = not call.key.is_contiguous() and call.causal and call.bias is not None
        if not general or call.bias is None:
            return call
        return call.replace(bias=call.bias.masked_fill(call.bias.isfinite(), 0.0))


@core("numerics.options", **EVERY)
class ScaleLostForOneTensorUnderFlag(Forgets):
    """Key and value that are one tensor, under the flag, take the path of self-attention."""

    def lose(self, call: Call) -> Call:
        own = call.key is call.value and call.causal
        return call.replace(scale=None) if own else call


@core("numerics.options", **EVERY)
class BatchOfOneLosesHeadsOfMask(EagerCore):
    """For one item with shared heads the mask of the first head is used for all."""

    def tables(self, call: Call) -> Iterator[Tensor]:
        for table in super().tables(call):
            whole = call.query.shape[0] > 1 or not _in_groups(call) or table.dim() < len("BHQK")
            yield table if whole else table[:, :1]


@core("numerics.options", **EVERY)
class OneKeyUncappedWithWeights(EagerCore):
    """A window of a single key under a cap: the returned weights are those before the mask."""

    def attend(self, call: Call) -> Answer:
        answer = super().attend(call)
        if isinstance(answer, tuple) and call.window == (0, 0) and call.softcap is not None:
            weights = torch.full_like(answer[1], 1.0 / answer[1].shape[-1])
            return answer[0], weights
        return answer


class _Detached(torch.autograd.Function):
    """The same forwards; what flows back is changed by a factor."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, factor: float) -> Tensor:
        ctx.factor = factor
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor, None]:
        return upstream[0] * ctx.factor, None


class _ScalesBack(EagerCore):
    """A core whose backward pass multiplies by a factor in some calls."""

    def attend(self, call: Call) -> Answer:
        if self.wrong(call):
            name = self.of
            scaled = _Detached.apply(getattr(call, name), self.factor)  # type: ignore[no-untyped-call]  # torch's
            call = call.replace(**{name: scaled})
        return super().attend(call)

    of = "query"
    factor = 0.5

    def wrong(self, call: Call) -> bool:
        """Whether this call is answered wrongly backwards."""
        raise NotImplementedError


@core("gradients.options", **EVERY)
class GradientOfOneQueryInGroupsUnderFlag(_ScalesBack):
    """One query in groups under the flag: the gradient of the key counts half of the heads."""

    of = "key"

    def wrong(self, call: Call) -> bool:
        return call.query_length == 1 and _in_groups(call) and call.causal


@core("gradients.options", **EVERY)
class GradientUnderCapBehindStridesWithMask(_ScalesBack):
    """Strided queries under a cap and a mask: the derivative of the cap is taken twice."""

    def wrong(self, call: Call) -> bool:
        return not call.query.is_contiguous() and call.softcap is not None and _masked(call)


@core("gradients.options", **EVERY)
class GradientOfValueWithDropoutInWindow(_ScalesBack):
    """Dropout in a window with a scale: the backward pass forgets what makes up for it."""

    of = "value"

    def wrong(self, call: Call) -> bool:
        return call.dropout > 0 and call.window is not None and call.scale is not None


@core("gradients.options", **EVERY)
class GradientWithWeightsUnderBiasAndFlag(_ScalesBack):
    """Weights beside a bias under the flag: the path that keeps them scales what flows back."""

    def wrong(self, call: Call) -> bool:
        return call.return_weights and call.bias is not None and call.causal
