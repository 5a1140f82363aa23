from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from examples import bare, core, layer, plan, problem, try_on
from torch import Tensor

from conformance.clauses.judging import identical

PROMISES: dict[str, Any] = {"masks": [], "causal": None, "features": [], "empty_rows": "any"}


def test_answer_remembered_by_shape_is_detected() -> None:
    """Returning the last answer for the same shapes fails, although repeating a call is fine."""
    remembered: dict[object, Tensor] = {}

    def kernel(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        shapes = (query.shape, key.shape, value.shape)
        if shapes not in remembered:
            remembered[shapes] = bare(query, key, value)
        return remembered[shapes]

    assert try_on(core(kernel, **PROMISES), "state.repeatable", problem()).violation is None
    remembered.clear()
    assert try_on(core(kernel, **PROMISES), "state.no-memory", problem()).violation is not None


def test_answer_remembered_by_storage_is_detected() -> None:
    """Returning the last answer for the same memory addresses fails."""
    remembered: dict[object, Tensor] = {}

    def kernel(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        where = (query.data_ptr(), key.data_ptr(), value.data_ptr())
        if where not in remembered:
            remembered.clear()
            remembered[where] = bare(query, key, value)
        return remembered[where]

    assert try_on(core(kernel, **PROMISES), "state.no-memory", problem()).violation is not None


def test_who_forgets_but_counts_tokens_is_not_accused_of_a_memory() -> None:
    """A stateless core whose answer depends on the order of its tokens does not fail for memory."""

    def kernel(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        places = torch.arange(query.shape[2], dtype=query.dtype)[:, None]
        return bare(query + 0.1 * places, key, value)

    counted = core(kernel, **PROMISES)
    assert try_on(counted, "equivariance.queries", problem(batch=1)).violation is not None
    assert try_on(counted, "state.no-memory", problem(batch=1)).violation is None


@pytest.mark.parametrize("candidate", [core, layer])
def test_honest_candidates_have_no_memory(candidate: Any) -> None:
    """An honest core and an honest layer pass, and their examples bind."""
    finding = try_on(candidate(), "state.no-memory", problem(mask=plan()))
    assert finding.violation is None
    assert finding.binding


@pytest.mark.parametrize("name", ["query", "key", "value"])
def test_changed_input_is_named(name: str) -> None:
    """An input that is scaled in place is named."""

    def kernel(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        output = bare(query, key, value)
        {"query": query, "key": key, "value": value}[name].mul_(0.5)
        return output

    finding = try_on(core(kernel, **PROMISES), "state.inputs-unchanged", problem())
    assert finding.violation is not None
    assert finding.violation.kind == "mutated"
    assert finding.violation.message == f"the call changed its {name} in place"


def test_changed_mask_is_named() -> None:
    """A mask that is inverted in place is named."""

    def kernel(query: Tensor, key: Tensor, value: Tensor, keep: Tensor | None = None) -> Tensor:
        if keep is not None:
            keep.logical_not_()
        return bare(query, key, value)

    candidate = core(kernel, **{**PROMISES, "masks": ["keep"]})
    finding = try_on(candidate, "state.inputs-unchanged", problem(mask=plan()))
    assert finding.violation is not None
    assert finding.violation.message == "the call changed its keep in place"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ([math.nan, 1.0], [math.nan, 2.0]),
        ([-math.inf], [torch.finfo(torch.float64).min]),
        ([math.inf], [torch.finfo(torch.float64).max]),
        ([math.nan], [12345.0]),
        ([0.0], [-0.0]),
    ],
)
def test_every_change_of_a_bit_is_detected(before: list[float], after: list[float]) -> None:
    """NaN equals NaN; anything else must be the same bits, infinities and signs of zero too."""
    first, second = (torch.tensor(values, dtype=torch.float64) for values in (before, after))
    assert identical(first, first.clone())
    assert not identical(first, second)


def test_noise_is_not_repeatable() -> None:
    """Noise far above the bound fails twice; in the last bit only the SHOULD clause fails."""

    def noisy(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return bare(query, key, value) * (1.0 + 0.01 * torch.rand(()))

    calls: list[int] = []

    def last_bit(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        calls.append(1)
        return bare(query, key, value) * (1.0 + 2**-23 * (len(calls) % 2))

    assert try_on(core(noisy, **PROMISES), "state.repeatable", problem()).violation is not None
    assert try_on(core(last_bit, **PROMISES), "state.repeatable", problem()).violation is None
    assert try_on(core(last_bit, **PROMISES), "state.bitwise-repeatable", problem()).violation
