"""Gradients of turned, normalised and biased heads: autograd of the golden, within their bounds."""

from __future__ import annotations

import pytest
import torch
from gradient_problems import contract, output_gradient
from torch import Tensor

from conformance._golden import golden
from conformance.tolerance import core_gradients
from conformance.tolerance.gradient import Gradient

POINTS = [
    golden.STANDARD.replace(rotary="halves"),
    golden.STANDARD.replace(rotary="interleaved", rotary_fraction=0.5),
    golden.STANDARD.replace(qk_norm="rms"),
    golden.STANDARD.replace(qk_norm="l2"),
    golden.STANDARD.replace(qk_norm="layer"),
    golden.STANDARD.replace(qk_norm="rms", rotary="interleaved"),
    golden.STANDARD.replace(alibi=True),
]
PRECISIONS = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def told(point: golden.Semantics) -> str:
    """What is unusual about a point."""
    return f"{point.rotary}-{point.qk_norm}-{point.alibi}"


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


@pytest.mark.parametrize("point", POINTS, ids=told)
@pytest.mark.parametrize("sinks", [False, True])
def test_the_values_are_what_autograd_finds(point: golden.Semantics, *, sinks: bool) -> None:
    """Through the preparation, with and without sinks, each within its float64 bound."""
    given = leaves(3)
    if not sinks:
        del given["sinks"]
    output = golden.attend(**given, semantics=point).output
    upstream = output_gradient(output.shape, 9)
    theirs = torch.autograd.grad(output, list(given.values()), upstream.double())
    ours = judged(given, upstream, "float64", point)
    assert ours.keys() == given.keys()
    for name, exact in zip(given, theirs, strict=True):
        assert bool(((ours[name].value - exact).abs() <= ours[name].worst).all()), name


@pytest.mark.parametrize("point", POINTS, ids=told)
def test_bounds_tell_half_of_a_gradient(point: golden.Semantics) -> None:
    """In float32 no bound comes near half of the largest gradient."""
    given = leaves(4)
    upstream = output_gradient(torch.Size((2, 4, 5, 2)), 9)
    for name, found in judged(given, upstream, "float32", point).items():
        largest = float(found.value.abs().max())
        assert float(found.worst.max()) < 0.01 * largest, name


@pytest.mark.parametrize("point", POINTS, ids=told)
@pytest.mark.parametrize("dtype", list(PRECISIONS))
def test_torch_line_by_line_keeps_the_bounds(point: golden.Semantics, dtype: str) -> None:
    """The golden's own formula in a working dtype, rotation and norm in that dtype, too."""
    given, working = leaves(5), PRECISIONS[dtype]
    del given["sinks"]
    rounded = {n: t.detach().to(working).requires_grad_() for n, t in given.items()}
    upstream = output_gradient(torch.Size((2, 4, 5, 2)), 9).to(working)
    exact = {name: tensor.detach().double() for name, tensor in rounded.items()}
    found = torch.autograd.grad(_written_out(rounded, point), list(rounded.values()), upstream)
    ours = judged(exact, upstream.double(), dtype, point)
    for name, theirs in zip(rounded, found, strict=True):
        assert bool(((ours[name].value - theirs.double()).abs() <= ours[name].worst).all()), name


def _written_out(given: dict[str, Tensor], point: golden.Semantics) -> Tensor:
    query, key = (
        _prepared(given[name], start, point) for name, start in (("query", 2), ("key", 0))
    )
    key, value = (tensor.repeat_interleave(2, dim=1) for tensor in (key, given["value"]))
    logits = query @ key.mT * 0.5
    if point.alibi:
        slopes = golden.alibi_slopes(4).to(logits.dtype)[:, None, None]
        apart = (torch.arange(2, 7)[:, None] - torch.arange(7)).abs()
        logits = logits - slopes * apart
    return logits.softmax(-1) @ value


def _prepared(heads: Tensor, start: int, point: golden.Semantics) -> Tensor:
    if point.qk_norm == "l2":
        heads = heads / torch.linalg.vector_norm(heads, dim=-1, keepdim=True)
    elif point.qk_norm != "none":
        centred = heads
        if point.qk_norm == "layer":
            centred = heads - heads.mean(-1, keepdim=True)
        square = centred.square().mean(-1, keepdim=True)
        heads = centred / (square + point.qk_norm_epsilon).sqrt()
    if point.rotary == "none":
        return heads
    places = torch.arange(start, start + heads.shape[2])
    first, second = golden.rotary_pairs(heads.shape[-1], point)
    angles = golden.rotary_angles(places, heads.shape[-1], point)
    cosine, sine = angles.cos().to(heads.dtype), angles.sin().to(heads.dtype)
    one, two = heads[..., first], heads[..., second]
    turned = heads.clone()
    turned[..., first] = one * cosine - two * sine
    turned[..., second] = one * sine + two * cosine
    return turned
