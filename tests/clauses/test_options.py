from __future__ import annotations

from typing import Any

from examples import core, plan, problem, try_on
from torch import Tensor

from candidates.eager import Answer, Call, EagerCore


class WindowDroppedWithLengths(EagerCore):
    """The window is forgotten where lengths are given."""

    def within_window(self, call: Call, window: tuple[int, int]) -> Tensor:
        """Every key where there are lengths."""
        return super().within_window(call, (-1, -1) if call.lengths is not None else window)


def test_option_lost_under_another_is_detected() -> None:
    """A window that is forgotten only where lengths are given fails, and only there."""
    candidate = core(WindowDroppedWithLengths())
    both: dict[str, Any] = {"window": (1, 1), "mask": plan("padding", "lengths", "B")}
    assert try_on(candidate, "numerics.options", problem(**both)).violation is not None
    assert try_on(candidate, "numerics.options", problem(window=(1, 1))).violation is None
    assert try_on(core(), "numerics.options", problem(**both)).violation is None


class RefusesSlices(EagerCore):
    """Queries whose last axis is not dense are refused, as many kernels do."""

    def attend(self, call: Call) -> Answer:
        """Raise for them."""
        if call.query.stride(-1) != 1 and call.query.shape[-1] > 1:
            msg = "the last axis must be dense"
            raise RuntimeError(msg)
        return super().attend(call)


def test_place_that_is_refused_by_itself_is_no_matter_of_combinations() -> None:
    """What raises for strides alone does so for every option: the clauses of strides tell it."""
    candidate = core(RefusesSlices())
    strided = problem(layout="every-other", scale=0.9)
    assert try_on(candidate, "numerics.options", strided).violation is None
    refusing = core(RefusesSlicesUnderScale())
    assert try_on(refusing, "numerics.options", strided).violation is not None


class RefusesSlicesUnderScale(RefusesSlices):
    """They are refused only where a scale is given."""

    def attend(self, call: Call) -> Answer:
        """Ask for dense ones then."""
        return super().attend(call) if call.scale is not None else EagerCore.attend(self, call)
