"""Which points have golden gradients."""

from __future__ import annotations

from typing import Any

import pytest

from conformance._golden import golden
from conformance.oracle.gradient_oracle import why_unknown


@pytest.mark.parametrize("kind", ["core", "layer"])
@pytest.mark.parametrize(
    "changes", [{"rotary": "halves"}, {"qk_norm": "layer"}, {"alibi": True}], ids=str
)
def test_prepared_heads_are_known(kind: str, changes: dict[str, Any]) -> None:
    """With positions, norms and distances there are golden gradients, behind projections too."""
    assert why_unknown(golden.STANDARD.replace(**changes), kind) == ""


def test_a_softmax_over_queries_is_not() -> None:
    """Its weights do not sum to 1."""
    reason = why_unknown(golden.STANDARD.replace(softmax_axis="query"), "layer")
    assert reason == "no bound is derived for gradients at its semantics"
