"""The statistical bound is never smaller than the error of a legitimate computation."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from tolerance_cores import CORES, NO_SOFTCAP, UNDIVIDED
from tolerance_inputs import MASKS, CoreInputs, make
from torch import Tensor

from conformance.declare.promises import declare
from conformance.tolerance import Statistics, contract_for, core_statistics, fit

# Tokens that are drawn independently; on others errors share a sign and the worst case judges.
GENERIC = ("normal", "logits to 30", "offset values", "cancelling values", "wide scales")
SIZES = (
    (1, 1, 1, 1, 1),
    (2, 1, 3, 2, 1),
    (2, 2, 9, 17, 16),
    (1, 2, 33, 31, 20),
    (1, 1, 70, 129, 64),
    (1, 1, 2, 257, 128),
)
HALVES = {"bfloat16": torch.bfloat16, "float16": torch.float16}


def statistics(inputs: CoreInputs, dtype: str, scores: str = "fused") -> Statistics:
    contract = contract_for(declare("core", scores=scores), dtype, inputs.scale)
    return core_statistics(inputs.golden(), contract)


def check(got: Tensor, inputs: CoreInputs, expected: Statistics) -> None:
    """Every element is within the bound; where errors are many, their size and scale fit, too."""
    error = got.double() - inputs.golden().output
    assert bool((error[:, :, expected.rows].abs() <= expected.bound).all())
    fitted = fit(error, expected)
    if fitted is not None:
        assert fitted.rms <= 1.0
        assert abs(fitted.scale_error) <= fitted.scale_allowed


@pytest.mark.one_in(5)
@pytest.mark.parametrize("family", GENERIC)
@pytest.mark.parametrize("name", [*CORES, *UNDIVIDED])
def test_float32_is_within_the_bound(name: str, family: str) -> None:
    """No size or mask makes a correct float32 core leave the bound on independent tokens."""
    core = {**CORES, **UNDIVIDED}[name]
    for seed, size in enumerate(SIZES):
        for mask in MASKS:
            inputs = make(family, size, mask, seed)
            check(core(inputs), inputs, statistics(inputs, "float32"))


@pytest.mark.parametrize("name", [name for name in CORES if name not in NO_SOFTCAP])
def test_a_softcap_is_within_the_bound(name: str) -> None:
    """The cap's slope and its own error are in the bound."""
    for family in GENERIC:
        for mask in MASKS:
            inputs = replace(make(family, (1, 2, 33, 17, 20), mask), softcap=20.0)
            check(CORES[name](inputs), inputs, statistics(inputs, "float32"))


def half(inputs: CoreInputs, dtype: torch.dtype, form: str) -> Tensor:
    """Attention on tensors of half precision that stores its scale in that precision."""
    query, key, value = (t.to(dtype) for t in (inputs.query, inputs.key, inputs.value))
    scale = torch.tensor(inputs.scale, dtype=torch.float64)
    if form == "root":
        query, key = query * scale.sqrt().to(dtype), key * scale.sqrt().to(dtype)
    elif form == "divided":
        query = query / (1.0 / scale).to(dtype)
    else:
        query = query * scale.to(dtype)
    if form == "eager":
        logits = query @ key.transpose(-1, -2)
        logits = logits if inputs.bias is None else logits + inputs.bias.to(dtype)
        return torch.softmax(logits, dim=-1) @ value
    logits = query.float() @ key.float().transpose(-1, -2)
    logits = logits if inputs.bias is None else logits + inputs.bias.to(dtype).float()
    weights = torch.softmax(logits, dim=-1).to(dtype)
    return (weights.float() @ value.float()).to(dtype)


@pytest.mark.one_in(5)
@pytest.mark.parametrize("form", ["number", "root", "divided", "eager"])
@pytest.mark.parametrize("family", GENERIC)
@pytest.mark.parametrize("dtype", HALVES)
def test_half_precision_with_a_stored_scale_is_within_the_bound(
    dtype: str, family: str, form: str
) -> None:
    """A scale may be stored in the working dtype: all scores then err alike, as is allowed."""
    kind = HALVES[dtype]
    for seed, size in enumerate(SIZES):
        for mask in MASKS:
            inputs = make(family, size, mask, seed)
            tokens = {n: getattr(inputs, n).to(kind).float() for n in ("query", "key", "value")}
            bias = None if inputs.bias is None else inputs.bias.to(kind).float()
            inputs = replace(inputs, **tokens, bias=bias)
            expected = statistics(inputs, dtype, "eager" if form == "eager" else "fused")
            check(half(inputs, kind, form), inputs, expected)


def test_the_bound_is_not_idle() -> None:
    """Legitimate half-precision errors come within a factor of four: it is no blanket."""
    largest = 0.0
    for seed in range(10):
        inputs = make("offset values", SIZES[3], "none", seed)
        tokens = {n: getattr(inputs, n).bfloat16().float() for n in ("query", "key", "value")}
        inputs = replace(inputs, **tokens)
        expected = statistics(inputs, "bfloat16")
        error = half(inputs, torch.bfloat16, "number").double() - inputs.golden().output
        largest = max(largest, float((error.abs() / expected.bound).max()))
    assert 0.25 < largest <= 1.0
