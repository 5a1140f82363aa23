"""Gradients of turned, normalised and biased heads: autograd of the golden, within their bounds."""

from __future__ import annotations

import pytest
import torch
from gradient_problems import contract, output_gradient
from prepared_heads import POINTS, PRECISIONS, described, prepared, with_distances
from torch import Tensor

from conformance._golden import golden
from conformance.tolerance import core_gradients
from conformance.tolerance.gradient import Gradient


def leaves(seed: int) -> dict[str, Tensor]:
    """Query, key, value and sinks; four heads share two of keys and values."""
    shapes = {"query": (2, 4, 5, 4), "key": (2, 2, 7, 4), "value": (2, 2, 7, 2), "sinks": (4,)}
    return {
        name: output_gradient(torch.Size(shape), seed + turn).double().requires_grad_()
        for turn, (name, shape) in enumerate(shapes.items())
    }


def judged(
    given: dict[str, Tensor], upstream: Tensor, dtype: str, point: golden.Semantics
) -> dict[str, Gradient]:
    """The golden gradients by name."""
    tensors = {name: tensor.detach() for name, tensor in given.items()}
    with torch.no_grad():
        attention = golden.attend(**tensors, semantics=point)
    return core_gradients(attention, upstream, contract(dtype), num_kv_heads=2)


def test_answers_of_inference_mode_have_gradients() -> None:
    """Searches for a name keep answers that were made without recording: they are no leaves."""
    operands = leaves(3)
    tensors = {name: tensor.detach() for name, tensor in operands.items()}
    with torch.inference_mode():
        attention = golden.attend(**tensors, semantics=POINTS[0])
    upstream = output_gradient(attention.output.shape, 7)
    gradients = core_gradients(attention, upstream, contract("float64"), num_kv_heads=2)
    expected = judged(operands, upstream, "float64", POINTS[0])
    assert all(torch.equal(gradients[name].value, expected[name].value) for name in expected)


@pytest.mark.parametrize("point", POINTS, ids=described)
def test_bounds_tell_half_of_a_gradient(point: golden.Semantics) -> None:
    """In float32 no bound comes near half of the largest gradient."""
    operands = leaves(4)
    upstream = output_gradient(torch.Size((2, 4, 5, 2)), 9)
    for name, bounded in judged(operands, upstream, "float32", point).items():
        largest = float(bounded.value.abs().max())
        assert float(bounded.worst.max()) < 0.01 * largest, name


@pytest.mark.parametrize("point", POINTS, ids=described)
@pytest.mark.parametrize("dtype", list(PRECISIONS))
def test_torch_line_by_line_keeps_the_bounds(point: golden.Semantics, dtype: str) -> None:
    """The golden's own formula in a working dtype, rotation and norm in that dtype, too."""
    operands, working = leaves(5), PRECISIONS[dtype]
    del operands["sinks"]
    rounded = {n: t.detach().to(working).requires_grad_() for n, t in operands.items()}
    upstream = output_gradient(torch.Size((2, 4, 5, 2)), 9).to(working)
    exact = {name: tensor.detach().double() for name, tensor in rounded.items()}
    actual = torch.autograd.grad(_written_out(rounded, point), list(rounded.values()), upstream)
    bounded = judged(exact, upstream.double(), dtype, point)
    for name, theirs in zip(rounded, actual, strict=True):
        assert bool(((bounded[name].value - theirs.double()).abs() <= bounded[name].worst).all()), (
            name
        )


def _written_out(operands: dict[str, Tensor], point: golden.Semantics) -> Tensor:
    query, key = prepared(operands["query"], 2, point), prepared(operands["key"], 0, point)
    key, value = (tensor.repeat_interleave(2, dim=1) for tensor in (key, operands["value"]))
    return with_distances(query @ key.mT * 0.5, point).softmax(-1) @ value
