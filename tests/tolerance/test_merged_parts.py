"""The bound allows what merging answers of several ranks loses, and no sums in half precision."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import product

import pytest
import torch
from tolerance_cores import logits_of
from tolerance_inputs import FAMILIES, MASKS, SIZES, CoreInputs, contract, make
from torch import Tensor

from conformance.tolerance import core_bound

COUNTS = (1, 2, 3, 4)
DTYPES = (torch.float32, torch.bfloat16)


def rounded(inputs: CoreInputs, dtype: torch.dtype) -> CoreInputs:
    """The inputs as a dtype holds them."""

    def held(tensor: Tensor) -> Tensor:
        return tensor.to(dtype).float()

    bias = None if inputs.bias is None else held(inputs.bias)
    heads = (held(each) for each in (inputs.query, inputs.key, inputs.value))
    query, key, value = heads
    return replace(inputs, query=query, key=key, value=value, bias=bias)


def merged(
    inputs: CoreInputs, count: int, dtype: torch.dtype, *, sums: torch.dtype = torch.float32
) -> Tensor:
    """Each part of the keys by itself, then one part after another as its sum weighs.

    Partial answers travel in float32, the logarithms of their sums in ``sums``; the whole answer
    alone is rounded to the dtype.
    """
    output, lse = torch.zeros(()), torch.tensor(-math.inf)
    length = inputs.key.shape[2]
    for positions in torch.arange(length).chunk(count):
        part = slice(int(positions[0]), int(positions[-1]) + 1)
        logits = logits_of(inputs, part)
        own = logits.logsumexp(-1, keepdim=True).to(sums).float()
        weights = (logits - logits.amax(-1, keepdim=True).nan_to_num(neginf=0.0)).exp()
        total = weights.sum(-1, keepdim=True)
        answer = (weights @ inputs.value[:, :, part]) / total.masked_fill(total == 0, 1.0)
        whole = torch.logaddexp(lse, own)
        anchor = whole.masked_fill(whole.isneginf(), 0.0)
        output = output * (lse - anchor).exp() + answer * (own - anchor).exp()
        lse = whole
    return output.to(dtype)


def margin(inputs: CoreInputs, got: Tensor, dtype: torch.dtype) -> float:
    """The largest error over its bound."""
    attention = inputs.golden()
    name = str(dtype).removeprefix("torch.")
    bound = core_bound(attention, contract(name, inputs.scale))
    largest = float(((got.double() - attention.output).abs() / bound).max())
    assert math.isfinite(largest)  # max() would pass a NaN over
    return largest


def worst(families: list[str], dtype: torch.dtype, seeds: range) -> tuple[float, int]:
    """The largest margin of correct merges, and how many there were."""
    largest, tried = 0.0, 0
    for family, size, mask, seed in product(families, SIZES, MASKS, seeds):
        inputs = rounded(make(family, size, mask, seed), dtype)
        for count in COUNTS:
            largest = max(largest, margin(inputs, merged(inputs, count, dtype), dtype))
            tried += 1
    return largest, tried


@pytest.mark.parametrize("dtype", DTYPES)
def test_merges_of_ranks_are_within_the_bound(dtype: torch.dtype) -> None:
    """One to four parts whose sums are held in float32 stay within the bound of the dtype."""
    largest, _ = worst(["normal", "logits to 1e3", "offset values"], dtype, range(1))
    assert 0.0 < largest <= 1.0


@pytest.mark.nightly
@pytest.mark.parametrize("dtype", DTYPES)
def test_no_merge_of_ten_thousand_is_flagged(dtype: torch.dtype) -> None:
    """Every family in every size, with every mask: 10,752 merges in each dtype."""
    largest, tried = worst(list(FAMILIES), dtype, range(6))
    assert tried == 10752
    assert largest <= 1.0


@pytest.mark.parametrize("count", COUNTS[1:])
def test_sums_in_half_precision_are_flagged(count: int) -> None:
    """With the logarithms of the sums in float16 a float32 answer is far out of its bound."""
    inputs = make("normal", SIZES[3], "none")
    wrong = merged(inputs, count, torch.float32, sums=torch.float16)
    assert margin(inputs, wrong, torch.float32) > 10.0
    assert margin(inputs, merged(inputs, count, torch.float32), torch.float32) <= 1.0
