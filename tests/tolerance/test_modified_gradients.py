"""Gradients behind a user's function: autograd of the golden, within bounds that tell mistakes."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final

import pytest
import torch
from gradient_problems import contract, output_gradient
from torch import Tensor

from conformance._golden import golden
from conformance.tolerance import core_gradients
from conformance.tolerance.gradient import Gradient
from conformance.tolerance.modified_gradients import function_slope
from conformance.tolerance.visible_keys import with_sink

Function = Callable[..., Any]


def capped(score: Tensor, *_: Any) -> Tensor:
    """A softcap."""
    return 2.0 * torch.tanh(score / 2.0)


def distant(score: Tensor, _batch: Any, head: Any, query: Any, key: Any) -> Tensor:
    """Linear biases, another for each head."""
    return score - 0.25 * (head + 1) * (query - key).abs()


def tabled(score: Tensor, _batch: Any, _head: Any, query: Any, key: Any) -> Tensor:
    """A relative bias out of a table that knows no key but those there are."""
    moved: Tensor = score + torch.linspace(-1.0, 1.0, 11, dtype=torch.float64)[query - key + 6]
    return moved


def bent(score: Tensor, *_: Any) -> Tensor:
    """A kink at zero, and none of the two slopes is one."""
    return torch.where(score > 0.0, 2.0 * score, -0.5 * score)


def hiding(score: Tensor, _batch: Any, _head: Any, query: Any, key: Any) -> Tensor:
    """Some keys are hidden."""
    return torch.where(key <= query + 2, score, -math.inf)


def in_place(score: Tensor, *_: Any) -> Tensor:
    """Changes what it is given."""
    return score.mul_(2.0).add_(1.0)


SMOOTH: Final[dict[str, Function]] = {
    "capped": capped,
    "distant": distant,
    "tabled": tabled,
    "squares": lambda score, *_: score * score.abs(),
    "steep": lambda score, *_: 3.0 * score**3 - score,
}
FUNCTIONS: Final[dict[str, Function]] = {
    **SMOOTH,
    "relu": lambda score, *_: torch.relu(score),
    "clamped": lambda score, *_: score.clamp(-0.5, 0.5),
    "bent": bent,
    "hiding": hiding,
    "adding minus infinity": lambda s, _b, _h, q, k: s + torch.log((k <= q + 2).double()),
    "in place": in_place,
}
# No finite slope of each score alone.
WILD: Final[dict[str, Function]] = {
    "not a number": lambda score, *_: torch.where(score > 0.0, score.sqrt(), 0.0),
    "infinite": lambda score, *_: (score - score.detach()).square().pow(0.25) + score.detach(),
    "out of torch": lambda score, *_: torch.from_numpy(score.numpy()),
    "of many scores": lambda score, *_: score.softmax(-1),
}
PRECISIONS: Final = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
UPSTREAM: Final = output_gradient(torch.Size((2, 4, 5, 2)), 9).bfloat16().double()


def rounded(tensor: Tensor) -> Tensor:
    """Numbers that every dtype has."""
    return tensor.bfloat16().double()


def leaves(seed: int, names: tuple[str, ...] = ()) -> dict[str, Tensor]:
    """Query, key, value and what else is named; four heads share two of keys and values."""
    shapes = {"query": (2, 4, 5, 4), "key": (2, 2, 7, 4), "value": (2, 2, 7, 2)}
    others = {"bias": (1, 4, 5, 7), "sinks": (4,)}
    shapes |= {name: others[name] for name in names}
    return {
        name: rounded(output_gradient(torch.Size(shape), seed + turn)).requires_grad_()
        for turn, (name, shape) in enumerate(shapes.items())
    }


def judged(
    given: dict[str, Tensor], point: golden.Semantics, dtype: str = "float32", **options: Any
) -> dict[str, Gradient]:
    """The golden gradients by name."""
    eager = options.pop("eager", False)
    tensors = {name: tensor.detach().double() for name, tensor in given.items()}
    with torch.no_grad():
        attention = golden.attend(**tensors, **options, semantics=point)
    allowed = contract(dtype, attention.scale, eager=eager)
    return core_gradients(attention, UPSTREAM, allowed, num_kv_heads=2)


def at(function: Function, **fields: Any) -> golden.Semantics:
    """The point of a function."""
    return golden.STANDARD.replace(score_mod=function, **fields)


def apart(actual: Tensor | None, gradient: Gradient) -> float:
    """The largest error over its bound."""
    theirs = torch.zeros_like(gradient.value) if actual is None else actual.double()
    error = (theirs - gradient.value).abs()
    return float(torch.where(error == 0.0, 0.0, error / gradient.worst).max())


@pytest.mark.parametrize("name", WILD)
def test_a_function_without_finite_slopes_gives_none(name: str) -> None:
    """Nothing is raised, and the gradients of query and key are known not to be known."""
    bounded = judged(leaves(4), at(WILD[name]))
    assert not bool(bounded["query"].value.isfinite().all())
    assert bool(bounded["value"].value.isfinite().all())


def test_hidden_pairs_and_sinks_have_no_slope() -> None:
    """Zero where the function hides a key, though it is as steep there as elsewhere."""
    operands = {name: tensor.detach() for name, tensor in leaves(5, ("sinks",)).items()}
    point = at(FUNCTIONS["adding minus infinity"])
    attention = golden.attend(**operands, semantics=point)
    slope = function_slope(with_sink(attention))
    assert torch.equal(slope[..., :-1], attention.allowed.double())
    assert not bool(slope[..., -1].any())


def written_out(operands: dict[str, Tensor], function: Function) -> Tensor:
    """Attention line by line in the dtype that is given."""
    key, value = (operands[name].repeat_interleave(2, dim=1) for name in ("key", "value"))
    scores = operands["query"] @ key.mT * 0.5
    places = [torch.arange(size) for size in scores.shape]
    views = [(-1, 1, 1, 1), (-1, 1, 1), (-1, 1), (-1,)]
    indices = [place.view(view) for place, view in zip(places, views, strict=True)]
    logits = function(scores.clone(), *indices).to(scores.dtype)
    answer: Tensor = logits.softmax(-1) @ value
    return answer


def backward(operands: dict[str, Tensor], function: Function) -> dict[str, Tensor]:
    """Torch's own gradients of that."""
    upstream = UPSTREAM.to(operands["query"].dtype)
    gradients = torch.autograd.grad(
        written_out(operands, function), list(operands.values()), upstream
    )
    return dict(zip(operands, gradients, strict=True))


@pytest.mark.parametrize("dtype", PRECISIONS)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_torch_line_by_line_keeps_the_bounds(name: str, dtype: str) -> None:
    """The function and its derivative in a working dtype."""
    operands = in_dtype(leaves(10), PRECISIONS[dtype])
    exact = judged(operands, at(FUNCTIONS[name]), dtype, eager=True)
    actual = backward(operands, FUNCTIONS[name])
    assert max(apart(actual[key], exact[key]) for key in actual) <= 1.0


def straight(function: Function) -> Function:
    """A function whose slope is forgotten on the way back."""
    return lambda score, *places: (function(score, *places) - score).detach() + score


def elsewhere(function: Function) -> Function:
    """A function whose slope is taken at twice the score."""

    def changed(score: Tensor, *places: Any) -> Tensor:
        slope = function_slope_at(function, 2.0 * score.detach(), *places)
        return function(score, *places).detach() + slope * (score - score.detach())

    return changed


def function_slope_at(function: Function, score: Tensor, *places: Any) -> Tensor:
    """The slope of a function at other scores."""
    leaf = score.clone().requires_grad_()
    (slope,) = torch.autograd.grad(function(leaf.clone(), *places).sum(), leaf)
    return slope


MISTAKES: Final[dict[str, Callable[[Function], Function]]] = {
    "slope forgotten": straight,
    "slope at another score": elsewhere,
    "sign": lambda function: lambda score, *places: function(2.0 * score.detach() - score, *places),
}


@pytest.mark.parametrize(
    ("mistake", "name"),
    [
        (mistake, name)
        for mistake in MISTAKES
        for name in ("capped", "squares", "steep", "bent")
        if (mistake, name) != ("slope at another score", "bent")  # which is the same
    ],
)
def test_a_wrong_slope_leaves_the_bound(mistake: str, name: str) -> None:
    """In float32, where the right one keeps it."""
    operands = in_dtype(leaves(11), torch.float32)
    exact = judged(operands, at(FUNCTIONS[name]))
    right = backward(operands, FUNCTIONS[name])
    assert max(apart(right[key], exact[key]) for key in right) <= 1.0
    wrong = backward(operands, MISTAKES[mistake](FUNCTIONS[name]))
    assert apart(wrong["query"], exact["query"]) > 10.0
    assert apart(wrong["key"], exact["key"]) > 10.0


def in_dtype(given: dict[str, Tensor], dtype: torch.dtype) -> dict[str, Tensor]:
    """The same leaves in a working dtype."""
    return {name: t.detach().to(dtype).requires_grad_() for name, t in given.items()}
