from __future__ import annotations

from typing import Any

from examples import core, plan, problem, try_on
from torch import Tensor

from candidates.eager import Call, EagerCore
from conformance.edges import edge_problems
from conformance.option_pairs import option_problems
from conformance.registry import all_clauses

SPACE = next(clause.space for clause in all_clauses() if clause.id == "numerics.options")


class WindowDroppedWithLengths(EagerCore):
    """The window is forgotten where lengths are given."""

    def within_window(self, call: Call, window: tuple[int, int]) -> Tensor:
        """Every key where there are lengths."""
        return super().within_window(call, (-1, -1) if call.lengths is not None else window)


def test_every_two_options_meet() -> None:
    """Each pair of options is given in some problem, each form of mask with each of them."""
    found = option_problems(core(), SPACE, dtype="float32")
    forms = {one.mask.form for one in found if one.mask}
    assert forms == {"keep", "drop", "keep_int", "bias", "lengths"}
    given = ("scale", "softcap", "window")
    for form in forms:
        for name in given:
            assert any(p.mask and p.mask.form == form and getattr(p, name) for p in found)
    assert any(p.window and p.scale and p.mask is None for p in found)
    assert any(p.causal and p.softcap for p in found)
    assert any(p.mask and p.mask.finite_bias and p.causal for p in found)


def test_pairs_are_the_edges_of_the_space() -> None:
    """A space that asks for options gets the pairs as its edges, all of them once."""
    edges = edge_problems(core(), SPACE, dtype="float32")
    assert edges == list(dict.fromkeys(option_problems(core(), SPACE, dtype="float32")))


def test_option_lost_under_another_is_seen() -> None:
    """A window that is forgotten only where lengths are given fails, and only there."""
    candidate = core(WindowDroppedWithLengths())
    both: dict[str, Any] = {"window": (1, 1), "mask": plan("padding", "lengths", "B")}
    assert try_on(candidate, "numerics.options", problem(**both)).violation is not None
    assert try_on(candidate, "numerics.options", problem(window=(1, 1))).violation is None
    assert try_on(core(), "numerics.options", problem(**both)).violation is None
