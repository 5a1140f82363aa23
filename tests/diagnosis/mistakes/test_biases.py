"""What is made of an additive mask is one mistake, with what becomes of its minus infinities."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from torch import Tensor

import conformance
from conformance.clauses.subject import Subject
from conformance.diagnosis.diagnostician import Diagnostician


@pytest.mark.parametrize(
    ("change", "name"),
    [(lambda bias: -bias, "bias-subtracted"), (lambda bias: bias.abs(), "bias-without-sign")],
)
def test_plus_infinities_of_a_changed_sign_are_no_second_mistake(
    change: Callable[[Tensor], Tensor], name: str
) -> None:
    """Minus infinity that is subtracted is plus infinity: the row is NaN, and nothing filled it."""

    @conformance.core(masks=["bias"], empty_rows="any")
    def changed(query: Tensor, key: Tensor, value: Tensor, *, bias: Tensor | None = None) -> Tensor:
        scores = query @ key.mT / query.shape[-1] ** 0.5
        if bias is not None:
            scores = scores + change(bias)
        return scores.softmax(-1) @ value

    entries = Diagnostician(Subject(changed, "float32")).explain()
    assert [entry["name"] for entry in entries] == [name]
