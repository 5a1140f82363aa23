"""The gradients beside sinks: what autograd finds in the golden, within telling bounds."""

from __future__ import annotations

import pytest
import torch
from gradient_problems import contract, output_gradient
from torch import Tensor

from conformance._golden import golden
from conformance.tolerance import core_gradients
from conformance.tolerance.gradient import Gradient

Options = dict[str, object]
OPTIONS: list[Options] = [
    {},
    {"causal": True},
    {"softcap": 2.0, "scale": 0.7},
    {"keep": (torch.arange(7) != 3).reshape(1, 1, 1, 7)},
    {"bias": torch.linspace(-1.0, 1.0, 7).reshape(1, 1, 1, 7).double()},
]


def leaves(seed: int) -> dict[str, Tensor]:
    """Query, key, value and sinks for four heads that share two key/value heads, float64."""
    shapes = {"query": (2, 4, 5, 3), "key": (2, 2, 7, 3), "value": (2, 2, 7, 2), "sinks": (4,)}
    return {
        name: output_gradient(torch.Size(shape), seed + turn).double().requires_grad_()
        for turn, (name, shape) in enumerate(shapes.items())
    }


def judged(given: dict[str, Tensor], upstream: Tensor, dtype: str, **options: object) -> Options:
    """Golden gradients by name."""
    tensors = {name: tensor.detach() for name, tensor in given.items()}
    with torch.no_grad():
        attention = golden.attend(**tensors, **options)
    return dict(core_gradients(attention, upstream, contract(dtype), num_kv_heads=2))


@pytest.mark.parametrize("options", OPTIONS, ids=lambda options: "-".join(options) or "plain")
@pytest.mark.parametrize("seed", range(3))
def test_the_values_are_what_autograd_finds(seed: int, options: Options) -> None:
    """Query, key, value and sinks, each within its float64 bound."""
    operands = leaves(seed)
    output = golden.attend(**operands, **options).output
    upstream = output_gradient(output.shape, seed + 9)
    theirs = torch.autograd.grad(output, list(operands.values()), upstream.double())
    bounded = judged(operands, upstream, "float64", **options)
    for name, exact in zip(operands, theirs, strict=True):
        gradient = bounded[name]
        assert isinstance(gradient, Gradient)
        assert gradient.value.shape == exact.shape
        assert bool(((gradient.value - exact).abs() <= gradient.worst).all()), name


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_bounds_tell_a_lost_sink(dtype: str) -> None:
    """Without the sink in the sum every gradient moves by more than its bound; the sink's is not 0.

    So it is with sinks above the logits. In bfloat16 the worst case of a few rows is the gradient.
    """
    operands = leaves(0)
    operands["sinks"] = operands["sinks"].detach().abs() + 2.0
    upstream = output_gradient(torch.Size((2, 4, 5, 2)), 9)
    bounded = judged(operands, upstream, dtype)
    without = judged({n: t for n, t in operands.items() if n != "sinks"}, upstream, dtype)
    for name, other in without.items():
        gradient = bounded[name]
        assert isinstance(gradient, Gradient)
        assert isinstance(other, Gradient)
        assert bool(
            ((gradient.value - other.value).abs() > gradient.allowed(generic=True)).any()
        ), name
    sinks = bounded["sinks"]
    assert isinstance(sinks, Gradient)
    assert bool((sinks.value.abs() > sinks.worst).any())


@pytest.mark.parametrize("sink", [-50.0, 50.0])
def test_bounds_stay_finite_beside_extreme_sinks(sink: float) -> None:
    """Where nothing is left for the sink, or for the keys, no bound is infinite or NaN."""
    operands = leaves(1)
    operands["sinks"] = torch.full((4,), sink, dtype=torch.float64)
    upstream = output_gradient(torch.Size((2, 4, 5, 2)), 9)
    for name, bounded in judged(operands, upstream, "float32").items():
        assert isinstance(bounded, Gradient)
        assert bool(bounded.worst.isfinite().all()), name
        assert bool(bounded.bound.isfinite().all()), name


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_a_sink_without_weight_leaves_the_bound_of_the_bias(dtype: str) -> None:
    """Beside a softcap after the mask: a bias is capped with the scores, and rounds like them."""
    operands = leaves(2)
    bias = torch.linspace(-1.0, 1.0, 7).reshape(1, 1, 1, 7).double().expand(2, 4, 5, 7)
    options: Options = {
        "softcap": 2.0,
        "bias": bias,
        "semantics": golden.STANDARD.replace(softcap_order="after-mask"),
    }
    upstream = output_gradient(torch.Size((2, 4, 5, 2)), 9)
    without = judged(
        {n: t for n, t in operands.items() if n != "sinks"}, upstream, dtype, **options
    )
    operands["sinks"] = torch.full((4,), -60.0, dtype=torch.float64)
    beside, alone = judged(operands, upstream, dtype, **options)["bias"], without["bias"]
    assert isinstance(beside, Gradient)
    assert isinstance(alone, Gradient)
    assert bool((beside.bound >= 0.99 * alone.bound).all())
