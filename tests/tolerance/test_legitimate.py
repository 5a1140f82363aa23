"""The bound is never smaller than the error of a legitimate float32 computation."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from tolerance_cores import CORES, NO_SOFTCAP, UNDIVIDED
from tolerance_inputs import FAMILIES, MASKS, SIZES, CoreInputs, make

from conformance.declare.promises import declare
from conformance.tolerance import contract_for, core_bound

DECLARATION = declare("core")


def margin(got: torch.Tensor, inputs: CoreInputs) -> float:
    """The largest error over its bound."""
    attention = inputs.golden()
    bound = core_bound(attention, contract_for(DECLARATION, "float32", inputs.scale))
    return float(((got.double() - attention.output).abs() / bound).max())


@pytest.mark.one_in(5)
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("name", CORES)
def test_error_of_a_legitimate_core_is_within_the_bound(name: str, family: str) -> None:
    """No size, mask or family makes a correct float32 core leave the bound."""
    for seed, size in enumerate(SIZES):
        for mask in MASKS:
            inputs = make(family, size, mask, seed)
            assert margin(CORES[name](inputs), inputs) <= 1.0, (size, mask)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("family", [name for name in FAMILIES if name != "logits to 1e8"])
@pytest.mark.parametrize("name", UNDIVIDED)
def test_error_of_undivided_weights_is_within_the_bound(name: str, family: str) -> None:
    """Rounding the log-sum-exp is paid for where weights are not divided by their sum."""
    for seed, size in enumerate(SIZES):
        for mask in MASKS:
            inputs = make(family, size, mask, seed)
            assert margin(UNDIVIDED[name](inputs), inputs) <= 1.0, (size, mask)


@pytest.mark.parametrize("name", [name for name in CORES if name not in NO_SOFTCAP])
def test_error_under_a_softcap_is_within_the_bound(name: str) -> None:
    """The cap's own error and its slope are covered, with offset keys and with saturated scores."""
    for family in ("normal", "logits to 30", "logits to 1e3", "offset keys"):
        for mask in MASKS:
            inputs = replace(make(family, (1, 2, 9, 17, 8), mask), softcap=20.0)
            assert margin(CORES[name](inputs), inputs) <= 1.0, (family, mask)


def test_the_bound_is_not_idle() -> None:
    """Weights from a rounded log-sum-exp come within a factor of five: it is no blanket."""
    inputs = [make("logits to 1e3", SIZES[3], "none", seed) for seed in range(20)]
    assert max(margin(UNDIVIDED["from log-sum-exp"](each), each) for each in inputs) > 0.2


@pytest.mark.parametrize("size", SIZES[2:])
def test_a_scale_off_by_one_percent_exceeds_the_bound(size: tuple[int, int, int, int, int]) -> None:
    """On ordinary float32 values a scale of 1.01 times the right one is caught."""
    inputs = make("normal", size, "none")
    wrong = replace(inputs, scale=inputs.scale * 1.01)
    assert margin(CORES["naive"](wrong), inputs) > 10.0
