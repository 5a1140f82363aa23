from __future__ import annotations

from typing import Any

import pytest
from examples import core, failing, layer, plan, problem, run_clause, try_on
from torch import Tensor

from candidates.eager import Call, EagerCore
from conformance.clauses.registry import all_clauses
from conformance.clauses.windows import window_for

SLUGS = [clause.id for clause in all_clauses() if clause.family == "window"]
PROMISES: dict[str, Any] = {"features": ["window"], "masks": ["keep"]}


def test_six_clauses() -> None:
    """Golden answers, edges, no limits, causality, alignment, and any length."""
    assert [slug.partition(".")[2] for slug in SLUGS] == [
        "golden",
        "edge",
        "unlimited",
        "causal",
        "alignment",
        "any-length",
    ]


def test_without_a_window_none_applies() -> None:
    """The reason is that no window is declared."""
    for slug in SLUGS:
        assert run_clause(core(features=[]), slug).reason == "no window is declared"


def test_every_kind_of_window_is_drawn() -> None:
    """Both sides, the left alone, the right alone; widths from zero on."""
    windows = [window_for(problem(seed=seed)) for seed in range(80)]
    limited = {(left >= 0, right >= 0) for left, right in windows}
    assert limited == {(True, True), (True, False), (False, True)}
    assert {left for left, _ in windows} >= {-1, 0, 1, 2, 3}


class Wider(EagerCore):
    """One key more on a side."""

    def __init__(self, side: int, more: int) -> None:
        super().__init__()
        self.side, self.more = side, more

    def within_window(self, call: Call, window: tuple[int, int]) -> Tensor:
        """The window with one side of another width."""
        sides = list(window)
        if sides[self.side] > 0:
            sides[self.side] += self.more
        return super().within_window(call, (sides[0], sides[1]))


@pytest.mark.parametrize("side", [0, 1])
@pytest.mark.parametrize("more", [-1, 1])
def test_each_edge_is_detected(side: int, more: int) -> None:
    """One key more or fewer on either side fails the clause of edges."""
    assert failing(core(Wider(side, more), **PROMISES), "window.edge")


def test_self_attention_has_edges_too() -> None:
    """Where queries and keys must be as many, the call has all tokens of the window."""
    for slug in ("window.edge", "window.causal"):
        result = run_clause(layer(without=["cross"]), slug)
        assert (result.status, result.binding > 0) == ("passed", True)


def test_pinned_lengths_leave_no_query_alone() -> None:
    """The clauses that call with one query alone do not apply; the golden ones do."""
    pinned = core(**PROMISES, geometry={"query_length": 4, "key_length": 7})
    assert run_clause(pinned, "window.edge").reason == "its geometry pins the lengths"
    assert run_clause(pinned, "window.golden").status == "passed"


def test_masks_and_flags_join() -> None:
    """A window with a mask and the flag is that of the keys that all of them admit."""
    example = problem(query_length=7, causal=True, mask=plan("dense"))
    tried = [try_on(core(), "window.causal", example.replace(seed=seed)) for seed in range(4)]
    assert not [finding for finding in tried if finding.violation]
    assert any(finding.binding for finding in tried)
