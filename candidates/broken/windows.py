"""Mistakes in windows alone: their sides, their edges, and what they are measured from."""

from __future__ import annotations

import torch
from torch import Tensor

from ..eager import Answer, Call, EagerCore
from ._kit import core
from .options import EVERY

Window = tuple[int, int]


class Rewindows(EagerCore):
    """A core that reads another window than it is given."""

    def within_window(self, call: Call, window: Window) -> Tensor:
        """The window that is read instead."""
        return super().within_window(call, self.read(*window))

    def read(self, left: int, right: int) -> Window:
        """What becomes of a window."""
        raise NotImplementedError


@core("window.golden", "window.edge", "numerics.options", **EVERY)
class WindowIgnored(EagerCore):
    """The window is accepted and has no effect."""

    def attend(self, call: Call) -> Answer:
        return super().attend(call.replace(window=None))


@core("window.golden", "window.edge", "numerics.options", **EVERY)
class WindowSidesSwapped(Rewindows):
    """The number of keys after the query's own is taken for that before it, and the reverse."""

    def read(self, left: int, right: int) -> Window:
        return right, left


@core("window.edge", "window.golden", "numerics.options", **EVERY)
class WindowOneWideOnLeft(Rewindows):
    """A window shows one key more than it should before the query's own."""

    def read(self, left: int, right: int) -> Window:
        return (left + 1 if left >= 0 else left), right


@core("window.edge", "window.golden", "numerics.options", **EVERY)
class WindowOneWideOnRight(Rewindows):
    """A window shows one key more than it should after the query's own."""

    def read(self, left: int, right: int) -> Window:
        return left, (right + 1 if right >= 0 else right)


@core("window.edge", "window.golden", "numerics.options", **EVERY)
class WindowOneShortOnRight(Rewindows):
    """The last key of the window after the query's own is left out."""

    def read(self, left: int, right: int) -> Window:
        return left, (right - 1 if right > 0 else right)


@core("window.golden", "window.edge", "numerics.options", **EVERY)
class WindowNeedsCausal(EagerCore):
    """The window takes effect only where the causal flag is set too."""

    def attend(self, call: Call) -> Answer:
        return super().attend(call if call.causal else call.replace(window=None))


@core("window.causal", "window.golden", "numerics.options", **EVERY)
class CausalLostUnderWindow(EagerCore):
    """The table of the window replaces the triangle of the causal flag."""

    def attend(self, call: Call) -> Answer:
        return super().attend(call.replace(causal=call.causal and call.window is None))


@core("window.unlimited", "window.golden", "numerics.options", **EVERY)
class UnlimitedSideHidesAll(EagerCore):
    """A side without limit, -1, is compared like a number: no key on that side is near enough."""

    def within_window(self, call: Call, window: Window) -> Tensor:
        left, right = (max(side, 0) for side in window)
        return super().within_window(call, (left, right))


@core("window.alignment", "window.golden", "numerics.options", **EVERY)
class WindowFromKeyCount(EagerCore):
    """Places in the window are counted from the middle of the keys where lengths differ."""

    def within_window(self, call: Call, window: Window) -> Tensor:
        left, right = window
        shift = (call.key_length - call.query_length) // 2
        ahead = torch.arange(call.key_length) - torch.arange(call.query_length)[:, None] - shift
        near = (ahead >= -left) | (left < 0)
        return near & ((ahead <= right) | (right < 0))


@core("window.any-length", **EVERY)
class WindowEndsAtTile(Rewindows):
    """A window wider than a tile of 32 keys shows whole tiles of them."""

    def read(self, left: int, right: int) -> Window:
        left, right = (side if side <= 32 else (side // 32 + 1) * 32 for side in (left, right))  # noqa: PLR2004 (the tile)
        return left, right
