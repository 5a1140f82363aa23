"""Mistakes in which keys a query may see."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from conformance import Semantics

from ..eager import Answer, Call, EagerCore
from ._kit import core


@core("mask.causal", "mask.causal-alignment", "mask.causal-and-mask")
class CausalIgnored(EagerCore):
    """The causal flag is accepted and not used."""

    def attend(self, call: Call) -> Answer:
        return super().attend(call.replace(causal=False))


@core("mask.causal-alignment")
class CausalHidesOwnKey(EagerCore):
    """A query does not see its own key: ``<`` where ``<=`` is meant."""

    def ahead(self, call: Call) -> Tensor:
        return super().ahead(call) + 1


@core("mask.causal", "mask.causal-alignment", "mask.causal-and-mask")
class CausalSeesNextKey(EagerCore):
    """A query sees one key of the future: the diagonal is off by one."""

    def ahead(self, call: Call) -> Tensor:
        return super().ahead(call) - 1


@core("mask.causal", "mask.causal-alignment", "mask.causal-and-mask")
class CausalSeesOnlyTheFuture(EagerCore):
    """The triangle is the upper one: a query sees the future and not the past."""

    def ahead(self, call: Call) -> Tensor:
        return -super().ahead(call)


@core("mask.causal")
class CausalAfterSoftmax(EagerCore):
    """The triangle is cut out of the weights after the softmax, which are not normalised again."""

    def attend(self, call: Call) -> Answer:
        self.causal = call.causal
        return super().attend(call.replace(causal=False))

    def mix(self, weights: Tensor, value: Tensor) -> Tensor:
        if self.causal:
            weights = weights.tril(weights.shape[-1] - weights.shape[-2])
        return super().mix(weights, value)


@core("mask.causal", "mask.causal-alignment")
class CausalNeedsMask(EagerCore):
    """The causal flag takes effect only when a mask is given too."""

    def tables(self, call: Call) -> Iterator[Tensor]:
        others = list(super().tables(call.replace(causal=False)))
        return super().tables(call.replace(causal=call.causal and bool(others)))


class TopLeft(EagerCore):
    """A core whose causal diagonal starts at the first key."""

    def __init__(self) -> None:
        super().__init__(causal="top-left")


@core("mask.causal-alignment")
class TopLeftForBottomRight(TopLeft):
    """The causal diagonal starts at the first key, though it is declared to end at the last."""


@core("mask.causal-alignment", causal="top-left")
class BottomRightForTopLeft(EagerCore):
    """The causal diagonal ends at the last key, though it is declared to start at the first."""


@core("mask.causal-alignment")
class CausalOnlyWhenSquare(EagerCore):
    """The causal flag is dropped when there are more or fewer keys than queries."""

    def attend(self, call: Call) -> Answer:
        square = call.query_length == call.key_length
        return super().attend(call.replace(causal=call.causal and square))


@core("mask.causal-and-mask")
class CausalLostUnderMask(EagerCore):
    """The causal flag is dropped when a mask is given too."""

    def attend(self, call: Call) -> Answer:
        others = list(self.tables(call.replace(causal=False)))
        return super().attend(call.replace(causal=call.causal and not others))


@core("mask.causal-and-mask")
class MaskLostUnderCausal(EagerCore):
    """The mask is dropped when the causal flag is given too."""

    def tables(self, call: Call) -> Iterator[Tensor]:
        if call.causal:
            call = call.replace(keep=None, drop=None, keep_int=None, bias=None, lengths=None)
        return super().tables(call)


@core("mask.causal-and-mask")
class MaskOrCausal(EagerCore):
    """A key is seen when the mask or causality admits it, where both should."""

    def allowed(self, call: Call) -> Tensor | None:
        allowed = super().allowed(call.replace(causal=False))
        if not call.causal or allowed is None:
            return super().allowed(call)
        return allowed | (self.ahead(call) <= 0)


@core("mask.causal-and-mask", semantics=Semantics(causal_combination="refused"))
class RefusalForgotten(EagerCore):
    """A flag and a mask together are declared to be refused, and both are applied."""


@core("mask.causal-and-mask", semantics=Semantics(causal_combination="mask-only"))
class FlagReplacesMask(EagerCore):
    """The mask is dropped for the causal flag, where the mask is declared to replace the flag."""

    def attend(self, call: Call) -> Answer:
        if call.causal:
            call = call.replace(keep=None, drop=None, keep_int=None, bias=None, lengths=None)
        return super().attend(call)


@core("mask.causal", "mask.causal-and-mask")
class CausalByBlocks(EagerCore):
    """Causality is kept between blocks of four tokens and forgotten inside a block."""

    def ahead(self, call: Call) -> Tensor:
        keys = torch.arange(call.key_length)
        positions = keys - super().ahead(call)
        return keys // 4 - positions.div(4, rounding_mode="floor")


@core("mask.causal-first-key", empty_rows="any")
class CausalFillMinusTenThousand(EagerCore):
    """Future logits are replaced by -10,000, which live logits may lie below; the mask is exact."""

    def scores(self, call: Call, key: Tensor) -> Tensor:
        scores = super().scores(call, key)
        return scores.masked_fill(self.ahead(call) > 0, -1e4) if call.causal else scores

    def tables(self, call: Call) -> Iterator[Tensor]:
        yield from super().tables(call.replace(causal=False))
        if call.causal:
            yield (self.ahead(call) <= 0).any(dim=-1, keepdim=True)


@core("mask.causal-combined")
class BiasLostUnderCausal(EagerCore):
    """The path with the causal flag keeps minus infinities of a bias and loses its other values."""

    def attend(self, call: Call) -> Answer:
        if call.causal and call.bias is not None:
            call = call.replace(bias=call.bias.masked_fill(~call.bias.isneginf(), 0.0))
        return super().attend(call)


@core("mask.causal-combined", features=["window"])
class WindowLostUnderCausal(EagerCore):
    """The window is dropped when the causal flag is given too."""

    def attend(self, call: Call) -> Answer:
        return super().attend(call.replace(window=None) if call.causal else call)
