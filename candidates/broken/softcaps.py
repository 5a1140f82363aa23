"""Mistakes in softcaps alone: their place, their shape and their range."""

from __future__ import annotations

import torch
from torch import Tensor

from ..eager import Answer, Call, EagerCore
from ._kit import core
from .options import EVERY


class Recaps(EagerCore):
    """A core with another cap on its scores."""

    def logits(self, call: Call, key: Tensor) -> Tensor:
        """The scores under the other cap, plus the bias."""
        scores = self.scores(call, key)
        if call.softcap is not None:
            scores = self.cap(scores, call.softcap, self.scale(call))
        return scores if call.bias is None else self.add_bias(scores, call.bias)

    def cap(self, scores: Tensor, softcap: float, scale: float) -> Tensor:
        """The capped scores."""
        raise NotImplementedError


@core("softcap.golden", "softcap.after-scale", "numerics.options", **EVERY)
class SoftcapIgnored(EagerCore):
    """The softcap is accepted and has no effect."""

    def attend(self, call: Call) -> Answer:
        return super().attend(call.replace(softcap=None))


@core("softcap.golden", "softcap.large", "numerics.options", **EVERY)
class SoftcapNotDivided(Recaps):
    """The scores enter the hyperbolic tangent as they are, not divided by the cap."""

    def cap(self, scores: Tensor, softcap: float, scale: float) -> Tensor:
        del scale
        return softcap * torch.tanh(scores)


@core("softcap.after-scale", "softcap.golden", "numerics.options", **EVERY)
class SoftcapBeforeScale(Recaps):
    """The dot products are capped before they are scaled."""

    def cap(self, scores: Tensor, softcap: float, scale: float) -> Tensor:
        if scale == 0.0:
            return scores
        return scale * softcap * torch.tanh(scores / scale / softcap)


@core("softcap.large", "softcap.golden", "softcap.after-scale", **EVERY)
class SoftcapByExponentials(Recaps):
    """The hyperbolic tangent is a quotient of exponentials, which overflow for large scores."""

    def cap(self, scores: Tensor, softcap: float, scale: float) -> Tensor:
        del scale
        up, down = (scores / softcap).exp(), (-scores / softcap).exp()
        return softcap * (up - down) / (up + down)


@core("softcap.large", **EVERY)
class SoftcapAtMostFifty(Recaps):
    """A cap above 50 is taken for 50, the largest that the kernel was made for."""

    def cap(self, scores: Tensor, softcap: float, scale: float) -> Tensor:
        del scale
        softcap = min(softcap, 50.0)
        return softcap * torch.tanh(scores / softcap)
