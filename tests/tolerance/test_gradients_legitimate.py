"""The bounds of gradients are never smaller than the error of a legitimate float32 computation."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from tolerance_cores import CORES, NO_SOFTCAP, UNDIVIDED, Core, naive
from tolerance_inputs import FAMILIES, MASKS, SIZES, CoreInputs, make
from torch import Generator, Tensor

from conformance.declare.promises import declare
from conformance.tolerance import contract_for, core_gradients

DECLARATION = declare("core")
# Tokens that are independent of each other, with logits that float32 still tells apart.
GENERIC = ("normal", "logits to 30", "offset keys", "offset values", "wide scales")
EVERY = {**CORES, **UNDIVIDED}
# One answers out of torch's graph, one is slow; what a merge by shares loses where one share is
# nearly all (docs/tolerance.md, step 7) is in the bound of the answer, not in that of gradients.
OMITTED = ("float64 inside", "row by row", "merged in 2 by shares")
DIFFERENTIABLE = [name for name in EVERY if name not in OMITTED]
# A part without a key has the gradient NaN.
SPLIT = ("split in 4", "split in 7, undivided")


def backward(core: Core, inputs: CoreInputs, gradient: Tensor) -> dict[str, Tensor]:
    """Torch's own gradients through a core."""
    heads = [tensor.clone().requires_grad_() for tensor in (inputs.query, inputs.key, inputs.value)]
    query, key, value = heads
    output = core(replace(inputs, query=query, key=key, value=value))
    gradients = torch.autograd.grad(output, heads, gradient)
    return dict(zip(("query", "key", "value"), gradients, strict=True))


def margins(
    core: Core, inputs: CoreInputs, *, generic: bool = False, wrong: CoreInputs | None = None
) -> dict[str, float]:
    """The largest error of each gradient over what is allowed."""
    attention = inputs.golden()
    generator = Generator().manual_seed(attention.output.numel())
    gradient = torch.randn(attention.output.shape, generator=generator)
    allowed = contract_for(DECLARATION, "float32", inputs.scale)
    exact = core_gradients(attention, gradient, allowed)
    actual = backward(core, inputs if wrong is None else wrong, gradient)
    return {
        name: float(
            ((each.double() - exact[name].value).abs() / exact[name].allowed(generic=generic)).max()
        )
        for name, each in actual.items()
    }


def _masks(name: str, seed: int | None = None) -> tuple[str, ...]:
    """All masks that a core can be differentiated under; one of them, in turn, for a seed."""
    masks = ("none", "bias") if name in SPLIT else MASKS
    return masks if seed is None else (masks[seed % len(masks)],)


@pytest.mark.one_in(5)
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_error_of_a_legitimate_core_is_within_the_bound(name: str, family: str) -> None:
    """No size, mask or family makes a correct float32 backward pass leave the bound."""
    for seed, size in enumerate(SIZES):
        for mask in _masks(name, seed):
            inputs = make(family, size, mask, seed)
            shares = margins(EVERY[name], inputs, generic=family in GENERIC)
            assert max(shares.values()) <= 1.0, (size, mask, shares)


@pytest.mark.parametrize("name", [name for name in DIFFERENTIABLE if name not in NO_SOFTCAP])
def test_error_under_a_softcap_is_within_the_bound(name: str) -> None:
    """The slope of the cap errs too: with offset keys and with saturated scores."""
    for family in ("normal", "logits to 30", "logits to 1e3", "offset keys"):
        for mask in _masks(name):
            inputs = replace(make(family, (1, 2, 9, 17, 8), mask), softcap=20.0)
            shares = margins(EVERY[name], inputs, generic=family in GENERIC)
            assert max(shares.values()) <= 1.0, (family, mask, shares)


def _half_margin(core: Core, inputs: CoreInputs, dtype: torch.dtype, *, eager: bool) -> float:
    """The largest error of a gradient in a half-precision dtype over what is allowed."""
    query, key, value = (each.to(dtype) for each in (inputs.query, inputs.key, inputs.value))
    half = replace(inputs, query=query, key=key, value=value)
    attention = half.golden()
    generator = Generator().manual_seed(attention.output.numel())
    gradient = torch.randn(attention.output.shape, generator=generator).to(dtype)
    declaration = declare("core", scores="eager") if eager else DECLARATION
    allowed = contract_for(declaration, str(dtype).removeprefix("torch."), inputs.scale)
    exact = core_gradients(attention, gradient, allowed)
    actual = backward(core, half, gradient)
    errors = {name: (each.double() - exact[name].value).abs() for name, each in actual.items()}
    return max(float((errors[name] / exact[name].allowed(generic=True)).max()) for name in actual)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", ["naive", "sdpa math", "sdpa flash"])
def test_error_in_half_precision_is_within_the_bound(name: str, dtype: torch.dtype) -> None:
    """Stored scores, and gradients that a kernel adds up block by block in the dtype."""
    for family in ("normal", "logits to 30"):
        for seed, size in enumerate([(1, 2, 64, 64, 16), (1, 2, 100, 70, 8), (1, 1, 300, 33, 4)]):
            inputs = make(family, size, "none", seed)
            margin = _half_margin(CORES[name], inputs, dtype, eager=name != "sdpa flash")
            assert margin <= 1.0, (family, size)


@pytest.mark.parametrize("size", SIZES[2:])
def test_a_scale_off_by_one_permille_exceeds_the_bound(
    size: tuple[int, int, int, int, int],
) -> None:
    """On ordinary float32 values a scale of 1.001 times the right one shows in dQ and dK."""
    inputs = make("normal", size, "none")
    shares = margins(naive, inputs, generic=True, wrong=replace(inputs, scale=inputs.scale * 1.001))
    assert shares["query"] > 3.0
    assert shares["key"] > 3.0
