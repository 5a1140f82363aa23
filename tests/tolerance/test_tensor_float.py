"""TensorFloat-32 rounds the operands of both products, also weights and values."""

from __future__ import annotations

import pytest
import torch
from torch import Generator, Tensor

from conformance.declare.promises import declare
from conformance.tolerance import contract_for, core_bound, core_statistics
from reference import Attention, attend


def tensor_float(numbers: Tensor) -> Tensor:
    """Float32 numbers with 10 bits behind the leading one, rounded to nearest."""
    bits = numbers.contiguous().view(torch.int32) + 0x1000
    return (bits & ~0x1FFF).view(torch.float32)


def heads(offset: float) -> tuple[Tensor, Tensor, Tensor]:
    """Independent normal heads whose values lie around an offset."""
    generator = Generator().manual_seed(0)
    query, key, value = torch.randn(3, 2, 2, 20, 16, generator=generator)
    return query, key, value + offset


def on_tensor_cores(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Attention in float32 with such operands."""
    scores = tensor_float(query) @ tensor_float(key).mT / 4.0
    return tensor_float(torch.softmax(scores, dim=-1)) @ tensor_float(value)


def evaluated(offset: float) -> tuple[Attention, Tensor]:
    """The golden attention, and how far tensor cores are from it."""
    query, key, value = heads(offset)
    attention = attend(query, key, value)
    error = on_tensor_cores(query, key, value).double() - attention.output
    return attention, error.abs()


@pytest.mark.parametrize("offset", [0.0, 300.0])
def test_rounded_operands_are_within_both_bounds_where_declared(offset: float) -> None:
    """Values far from zero lose the most, and no difference between weights cancels that."""
    attention, error = evaluated(offset)
    contract = contract_for(declare("core", tf32=True), "float32", attention.scale)
    assert bool((error <= core_bound(attention, contract)).all())
    assert bool((error <= core_statistics(attention, contract).bound).all())


@pytest.mark.parametrize("offset", [0.0, 300.0])
def test_rounded_operands_are_seen_where_not_declared(offset: float) -> None:
    """Without the declaration the same answers leave both bounds."""
    attention, error = evaluated(offset)
    contract = contract_for(declare("core"), "float32", attention.scale)
    assert not bool((error <= core_bound(attention, contract)).all())
    assert not bool((error <= core_statistics(attention, contract).bound).all())
