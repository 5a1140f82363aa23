from __future__ import annotations

from typing import Any

import pytest
import torch
from examples import core, problem, run_clause, try_on

from candidates.eager import Call, EagerCore

SQUARE = problem(query_length=7, causal=True)


@pytest.mark.parametrize("alignment", ["bottom-right", "top-left"])
def test_alignment_is_the_declared_one(alignment: str) -> None:
    """Each alignment passes where it is declared and fails where the other is."""
    other = {"bottom-right": "top-left", "top-left": "bottom-right"}[alignment]
    candidate = core(EagerCore(causal=alignment), causal=alignment)
    swapped = core(EagerCore(causal=other), causal=alignment)
    assert run_clause(candidate, "mask.causal-alignment").status == "passed"
    assert run_clause(swapped, "mask.causal-alignment").status == "failed"
    assert run_clause(swapped, "mask.causal").status == "passed"


class Strict(EagerCore):
    """A query does not see its own key."""

    def ahead(self, call: Call) -> torch.Tensor:
        """One further."""
        return super().ahead(call) + 1


def test_own_position_is_detected() -> None:
    """A diagonal that is one too low leaks nothing, but is not aligned."""
    candidate = core(Strict(), features=[])
    assert run_clause(candidate, "mask.causal").status == "passed"
    assert run_clause(candidate, "mask.causal-alignment").status == "failed"


def test_later_keys_leak() -> None:
    """A flag that is ignored leaks later keys."""

    class Ignored(EagerCore):
        def tables(self, call: Call) -> Any:
            return super().tables(call.replace(causal=False))

    finding = try_on(core(Ignored()), "mask.causal", SQUARE)
    assert finding.violation is not None
    assert finding.binding


@pytest.mark.parametrize("lost", ["mask", "causal"])
def test_mask_and_causality_are_both_obeyed(lost: str) -> None:
    """A core that loses one of the two when both are given fails."""

    class Loses(EagerCore):
        def tables(self, call: Call) -> Any:
            both = call.causal and call.keep is not None
            changes: dict[str, Any] = {"causal": False} if lost == "causal" else {"keep": None}
            return super().tables(call.replace(**changes) if both else call)

    candidate = core(Loses(), masks=["keep"])
    assert run_clause(candidate, "mask.causal-and-mask", examples=12).status == "failed"
    assert run_clause(candidate, "mask.golden").status == "passed"
