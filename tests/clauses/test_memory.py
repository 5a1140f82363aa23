"""Clauses about where tensors lie: shared objects, canaries, strided masks, fresh answers."""

from __future__ import annotations

from typing import Any

import pytest
from examples import bare, core, layer, plan, problem, try_on
from torch import Tensor

PROMISES: dict[str, Any] = {"masks": [], "causal": None, "features": [], "empty_rows": "any"}
ONE_SHAPE = {"value_head_size": 3, "query_size": 11, "key_size": 11, "value_size": 11}


@pytest.mark.parametrize("candidate", [core, layer])
@pytest.mark.parametrize(
    "slug", ["shape.shared", "shape.bounds", "mask.strided", "state.answer-is-fresh"]
)
def test_honest_candidates_pass(candidate: Any, slug: str) -> None:
    """Correct ones pass in every layout, and their examples count."""
    for seed in range(7):
        drawn = problem(mask=plan(), seed=seed, **ONE_SHAPE)
        finding = try_on(candidate(), slug, drawn)
        assert finding.violation is None
        assert finding.binding


def test_shared_object_is_detected() -> None:
    """A core that takes another path where key and value are one object fails."""

    def kernel(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return bare(query, key, value * 2 if key is value else value)

    drawn = problem(seed=3, **ONE_SHAPE)
    assert try_on(core(kernel, **PROMISES), "shape.shared", drawn).violation is not None


def test_reading_past_the_end_is_detected() -> None:
    """One element behind the values, multiplied by zero, turns NaN."""

    def kernel(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        end = value.storage_offset() + value.numel()
        room = value.untyped_storage().nbytes() // value.element_size() > end
        behind = value.as_strided((1,), (1,), end) if room else value.new_zeros(1)
        return bare(query, key, value) + 0.0 * behind

    finding = try_on(core(kernel, **PROMISES), "shape.bounds", problem(seed=0))
    assert finding.violation is not None
    assert finding.violation.kind == "finite"


def test_mask_read_as_contiguous_is_detected() -> None:
    """A mask that is read without its strides fails in some layout, contiguous ones do not."""

    def kernel(query: Tensor, key: Tensor, value: Tensor, keep: Tensor | None = None) -> Tensor:
        if keep is None:
            return bare(query, key, value)
        packed = keep.as_strided(keep.shape, keep.contiguous().stride())
        logits = query @ key.transpose(-1, -2) / query.shape[-1] ** 0.5
        return logits.masked_fill(~packed, -1e30).softmax(-1) @ value

    candidate = core(kernel, **{**PROMISES, "masks": ["keep"]})
    drawn = [problem(seed=seed, mask=plan()) for seed in range(7)]
    assert any(try_on(candidate, "mask.strided", example).violation for example in drawn)
    assert not any(try_on(candidate, "mask.golden", example).violation for example in drawn)


def test_view_of_an_input_is_not_fresh() -> None:
    """The values themselves, returned for a single key, change when the caller changes them."""

    def kernel(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return value if key.shape[2] == query.shape[2] == 1 else bare(query, key, value)

    drawn = problem(query_length=1, key_length=1)
    finding = try_on(core(kernel, **PROMISES), "state.answer-is-fresh", drawn)
    assert finding.violation is not None
    assert finding.violation.kind == "mutated"


def test_answer_that_is_kept_is_not_fresh() -> None:
    """An answer that the candidate keeps and returns again is spoilt by who writes into it."""
    remembered: dict[float, Tensor] = {}

    def kernel(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return remembered.setdefault(float(query.sum()), bare(query, key, value))

    finding = try_on(core(kernel, **PROMISES), "state.answer-is-fresh", problem())
    assert finding.violation is not None
    assert "next call" in finding.violation.message
