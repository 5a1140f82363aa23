from __future__ import annotations

from typing import Any

import pytest
import torch
from layer_problems import assert_agrees, layer_problem
from torch import Generator, Tensor

import conformance
import reference
from candidates.eager import eager_core, eager_core_top_left, eager_layer, eager_module
from candidates.online_softmax import online_softmax

UNIT = 2.0**-53


def tensors(num_kv_heads: int = 4, key_length: int = 37) -> tuple[Tensor, Tensor, Tensor]:
    """Float64 query, key and value of sizes that are all different."""
    generator = Generator().manual_seed(3)
    shapes = ((2, 4, 5, 3), (2, num_kv_heads, key_length, 3), (2, num_kv_heads, key_length, 6))
    query, key, value = (
        torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes
    )
    return query, key, value


def slack(query: Tensor, key: Tensor, value: Tensor) -> float:
    """Roundings on the way to one number, times the largest number on the way, times 2**-53."""
    logit = float((query.abs() @ key.abs().mT).max())
    roundings = 4 * (query.shape[-1] + key.shape[2])
    return UNIT * roundings * (1.0 + logit) * float(value.abs().max())


def keep_table() -> Tensor:
    """A random mask with an empty row."""
    keep = torch.rand(2, 4, 5, 37, generator=Generator().manual_seed(5)) < 0.6
    keep[1, 2, 3] = False
    return keep


def bias_table() -> Tensor:
    """A random bias with minus infinities."""
    bias = torch.randn(2, 4, 5, 37, generator=Generator().manual_seed(6), dtype=torch.float64)
    return bias.masked_fill(~keep_table(), -torch.inf)


CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "plain": ({}, {}),
    "keep": ({"keep": keep_table()}, {"keep": keep_table()}),
    "bias": ({"bias": bias_table()}, {"bias": bias_table()}),
    "lengths": ({"lengths": torch.tensor([0, 17])}, {"lengths": torch.tensor([0, 17])}),
    "causal": ({"causal": True}, {"causal": True}),
    "scale": ({"scale": -0.3}, {"scale": -0.3}),
    "causal and keep": (
        {"causal": True, "keep": keep_table()},
        {"causal": True, "keep": keep_table()},
    ),
}
MORE_CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "drop": ({"drop": ~keep_table()}, {"keep": keep_table()}),
    "integers": ({"keep_int": keep_table().long()}, {"keep": keep_table()}),
    "lengths of queries": (
        {"lengths": keep_table()[:, 0].sum(dim=-1)},
        {"lengths": keep_table()[:, 0].sum(dim=-1)},
    ),
    "softcap": ({"softcap": 2.0}, {"softcap": 2.0}),
    "window": ({"window": (2, -1)}, {"window": (2, -1)}),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("candidate", [eager_core, online_softmax], ids=lambda core: core.name)
def test_core_agrees_with_the_golden(candidate: Any, case: str) -> None:
    """In float64 a core and the golden differ by the rounding errors of two float64 evaluations."""
    asked, meant = CASES[case]
    inputs = tensors()
    expected = reference.scaled_dot_product_attention(*inputs, **meant)
    assert (candidate(*inputs, **asked) - expected).abs().max() <= slack(*inputs)


@pytest.mark.parametrize("case", MORE_CASES)
def test_eager_core_agrees_in_its_further_forms(case: str) -> None:
    """Further mask forms, softcap and window mean what the golden makes of them."""
    asked, meant = MORE_CASES[case]
    inputs = tensors()
    expected = reference.scaled_dot_product_attention(*inputs, **meant)
    assert (eager_core(*inputs, **asked) - expected).abs().max() <= slack(*inputs)


def test_top_left_core_agrees_at_its_point() -> None:
    """The causal diagonal of the top-left core starts at the first key."""
    inputs = tensors()
    point = reference.STANDARD.replace(causal_alignment="top-left")
    expected = reference.scaled_dot_product_attention(*inputs, causal=True, semantics=point)
    got = eager_core_top_left(*inputs, causal=True)
    assert (got - expected).abs().max() <= slack(*inputs)


def test_shared_heads_agree() -> None:
    """Two query heads share each key/value head, neighbours together."""
    inputs = tensors(num_kv_heads=2)
    expected = reference.scaled_dot_product_attention(*inputs)
    query, key, value = inputs
    allowance = slack(query, key.repeat_interleave(2, dim=1), value)
    assert (eager_core(*inputs) - expected).abs().max() <= allowance


def test_returned_weights_are_those_of_the_golden() -> None:
    """The weights come from before dropout, and are zero in an empty row."""
    inputs = tensors()
    expected = reference.attend(*inputs, keep=keep_table()).weights
    output, weights = eager_core(*inputs, keep=keep_table(), return_weights=True, dropout=0.5)
    assert (weights - expected).abs().max() <= slack(*inputs[:2], torch.ones(1))
    assert not weights[1, 2, 3].any()
    assert not torch.equal(output, weights @ inputs[2])


@pytest.mark.parametrize("candidate", [eager_core, online_softmax], ids=lambda core: core.name)
def test_core_refuses_what_does_not_fit(candidate: Any) -> None:
    """Fewer values than keys, other head sizes, a mask for other keys: both numbers are named."""
    query, key, value = tensors()
    with pytest.raises(ValueError, match="37 tokens but value has 30"):
        candidate(query, key, value[:, :, :30])
    with pytest.raises(ValueError, match="head size 3 but key has 2"):
        candidate(query, key[..., :2], value)
    with pytest.raises(ValueError, match="keep is for 30 keys but there are 37"):
        candidate(query, key, value, keep=keep_table()[..., :30])


@pytest.mark.parametrize("empty", ["batch", "queries"])
@pytest.mark.parametrize("candidate", [eager_core, online_softmax], ids=lambda core: core.name)
def test_core_answers_nothing_with_nothing(candidate: Any, empty: str) -> None:
    """No items or no queries give an empty answer of the right shape."""
    query, key, value = tensors()
    if empty == "batch":
        assert candidate(query[:0], key[:0], value[:0], causal=True).shape == (0, 4, 5, 6)
    else:
        assert candidate(query[:, :, :0], key, value, causal=True).shape == (2, 4, 0, 6)


def test_nan_stays_with_those_who_attend_it() -> None:
    """A NaN in a key and its value reaches the rows that may attend it and no others."""
    query, key, value = tensors()
    keep = keep_table()
    clean = eager_core(query, key, value, keep=keep)
    key[:, :, 4], value[:, :, 4] = torch.nan, torch.nan
    dirty = eager_core(query, key, value, keep=keep)
    attends = keep[..., 4]
    assert dirty[attends].isnan().all()
    assert (dirty[~attends] - clean[~attends]).abs().max() <= slack(*tensors())


@pytest.mark.parametrize("candidate", [eager_layer, eager_module], ids=lambda layer: layer.name)
@pytest.mark.parametrize("case", ["plain", "keep", "causal"])
def test_layer_agrees_with_the_golden(candidate: Any, case: str) -> None:
    """The layer's projections, heads and masks are those of the golden."""
    problem = layer_problem(candidate)
    keep = torch.rand(2, 1, 5, 7, generator=Generator().manual_seed(1)) < 0.6
    keep[..., 0] = True
    asked: dict[str, Any] = {"plain": {}, "keep": {"keep": keep}, "causal": {"causal": True}}[case]
    assert_agrees(candidate, problem, asked, asked)


def test_module_drops_weights_in_training_only() -> None:
    """In training mode two calls differ, in eval mode they are equal."""
    weights = conformance.ProjectionWeights(
        **{role: torch.randn(6, 6, generator=Generator().manual_seed(2)) for role in "qkvo"}
    )
    sizes = dict.fromkeys(conformance.Geometry.__dataclass_fields__, 6) | {
        "num_heads": 2,
        "num_kv_heads": 2,
    }
    module = eager_module(conformance.Geometry(**sizes), weights)
    tokens = torch.randn(6, 6, 6, generator=Generator().manual_seed(4))
    torch.manual_seed(0)
    assert not torch.equal(module(tokens, tokens, tokens), module(tokens, tokens, tokens))
    module.eval()
    assert torch.equal(module(tokens, tokens, tokens), module(tokens, tokens, tokens))
