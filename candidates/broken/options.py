"""Mistakes in softcaps and windows, and in options that are given together."""

from __future__ import annotations

from typing import Any, Final

import torch
from torch import Tensor

from ..eager import Answer, Call, EagerCore
from ._kit import core

EVERY: Final[dict[str, Any]] = {"features": ["scale", "gqa", "softcap", "window", "weights"]}


class Forgets(EagerCore):
    """A core that loses one option on the path that another one takes."""

    def attend(self, call: Call) -> Answer:
        """Attend without what is lost."""
        return super().attend(self.lose(call))

    def lose(self, call: Call) -> Call:
        """The call that is answered instead."""
        raise NotImplementedError


@core("numerics.options", **EVERY)
class SoftcapLostUnderMask(Forgets):
    """The path that is taken with a boolean mask forgets the softcap."""

    def lose(self, call: Call) -> Call:
        return call if call.keep is None else call.replace(softcap=None)


@core("numerics.options", **EVERY)
class SoftcapLostInGroups(Forgets):
    """The path for shared key/value heads forgets the softcap."""

    def lose(self, call: Call) -> Call:
        shared = call.key.shape[1] != call.query.shape[1]
        return call.replace(softcap=None) if shared else call


@core("numerics.options", **EVERY)
class WindowLostUnderBias(Forgets):
    """The window is dropped when a bias is given too."""

    def lose(self, call: Call) -> Call:
        return call if call.bias is None else call.replace(window=None)


@core("numerics.options", **EVERY)
class WindowLostUnderLengths(Forgets):
    """The window is dropped when lengths are given too."""

    def lose(self, call: Call) -> Call:
        return call if call.lengths is None else call.replace(window=None)


@core("numerics.options", **EVERY)
class ScaleLostUnderBias(Forgets):
    """The path that adds a bias uses the default scale, whichever is asked for."""

    def lose(self, call: Call) -> Call:
        return call if call.bias is None else call.replace(scale=None)


@core("numerics.options", **EVERY)
class ScaleLostUnderSoftcap(Forgets):
    """The path that caps the logits uses the default scale, whichever is asked for."""

    def lose(self, call: Call) -> Call:
        return call if call.softcap is None else call.replace(scale=None)


@core("numerics.options", **EVERY)
class CausalLostUnderSoftcap(Forgets):
    """The path that caps the logits does not look at the causal flag."""

    def lose(self, call: Call) -> Call:
        return call.replace(causal=call.causal and call.softcap is None)


@core("numerics.options", **EVERY)
class CausalLostUnderLengths(Forgets):
    """Lengths replace the causal flag: only the padding is hidden."""

    def lose(self, call: Call) -> Call:
        return call.replace(causal=call.causal and call.lengths is None)


@core("softcap.before-mask", "numerics.options", **EVERY)
class SoftcapAfterMask(EagerCore):
    """The cap is applied after the mask: ignored logits come back as minus the cap."""

    def logits(self, call: Call, key: Tensor) -> Tensor:
        self.cap = call.softcap
        return super().logits(call.replace(softcap=None), key)

    def mask(self, logits: Tensor, allowed: Tensor) -> Tensor:
        masked = super().mask(logits, allowed)
        return masked if self.cap is None else self.cap * torch.tanh(masked / self.cap)

    def weights(self, logits: Tensor, allowed: Tensor | None) -> Tensor:
        if allowed is None:
            allowed = torch.ones_like(logits, dtype=torch.bool)
        empty = ~allowed.any(dim=-1, keepdim=True)
        return self.softmax(self.mask(logits, allowed)).masked_fill(empty, 0.0)


@core("numerics.options", **EVERY)
class SoftcapAfterBias(EagerCore):
    """The bias is added before the cap, which squeezes it together with the scores."""

    def logits(self, call: Call, key: Tensor) -> Tensor:
        logits = super().logits(call.replace(softcap=None), key)
        if call.softcap is None:
            return logits
        return call.softcap * torch.tanh(logits / call.softcap)


@core("softcap.golden", "numerics.options", **EVERY)
class SoftcapNotMultipliedBack(EagerCore):
    """The hyperbolic tangent is not multiplied by the cap: all logits end between -1 and 1."""

    def logits(self, call: Call, key: Tensor) -> Tensor:
        logits = self.scores(call, key)
        if call.softcap is not None:
            logits = torch.tanh(logits / call.softcap)
        return logits if call.bias is None else self.add_bias(logits, call.bias)


@core("softcap.golden", "numerics.options", **EVERY)
class SoftcapClamps(EagerCore):
    """The logits are cut off at the cap where they should approach it smoothly."""

    def logits(self, call: Call, key: Tensor) -> Tensor:
        logits = self.scores(call, key)
        if call.softcap is not None:
            logits = logits.clamp(-call.softcap, call.softcap)
        return logits if call.bias is None else self.add_bias(logits, call.bias)


@core("window.edge", "numerics.options", **EVERY)
class WindowOneShort(EagerCore):
    """A window of n keys before the query's own shows n - 1: its own is counted too."""

    def within_window(self, call: Call, window: tuple[int, int]) -> Tensor:
        left, right = window
        return super().within_window(call, (left - 1 if left > 0 else left, right))


@core("window.unlimited", "numerics.options", **EVERY)
class UnlimitedWindowTakenForOne(EagerCore):
    """A side without limit, -1, is taken for a limit of one key."""

    def within_window(self, call: Call, window: tuple[int, int]) -> Tensor:
        left, right = (abs(side) for side in window)
        return super().within_window(call, (left, right))


@core("window.alignment", "numerics.options", **EVERY)
class WindowOfFirstKeys(EagerCore):
    """Windows start at the first key for the first query, though causality ends at the last key."""

    def within_window(self, call: Call, window: tuple[int, int]) -> Tensor:
        return EagerCore(causal="top-left").within_window(call, window)
