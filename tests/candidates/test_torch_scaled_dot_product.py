from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Generator, Tensor

from candidates.torch_scaled_dot_product import (
    torch_scaled_dot_product,
    torch_scaled_dot_product_flash,
    torch_scaled_dot_product_math,
)
from conformance._golden import golden
from conformance.declare.candidate import Candidate

DEFAULT, MATH, FLASH = (
    torch_scaled_dot_product,
    torch_scaled_dot_product_math,
    torch_scaled_dot_product_flash,
)
EVERY = pytest.mark.parametrize(
    "candidate", [DEFAULT, MATH, FLASH], ids=lambda candidate: candidate.name
)


def _normal(*shape: int, seed: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*shape, generator=Generator().manual_seed(seed), dtype=torch.float64).to(
        dtype
    )


def _heads(
    lengths: tuple[int, int] = (5, 7),
    *,
    kv_heads: int = 4,
    value_size: int = 3,
    dtype: torch.dtype = torch.float64,
) -> tuple[Tensor, Tensor, Tensor]:
    return (
        _normal(2, 4, lengths[0], 3, seed=0, dtype=dtype),
        _normal(2, kv_heads, lengths[1], 3, seed=1, dtype=dtype),
        _normal(2, kv_heads, lengths[1], value_size, seed=2, dtype=dtype),
    )


def _assert_agrees(candidate: Candidate, heads: tuple[Tensor, ...], **use: Any) -> None:
    golden_use = {name: value for name, value in use.items() if name != "dropout"}
    wanted = golden.attend(*heads, semantics=candidate.declaration.semantics, **golden_use)
    got = candidate(*heads, **use)
    assert got.dtype == heads[0].dtype
    assert got.shape == wanted.output.shape
    terms = heads[0].shape[-1] + heads[1].shape[-2] + 16
    logits = wanted.query.norm(dim=-1).amax() * wanted.key.norm(dim=-1).amax() * abs(wanted.scale)
    # A weight is off by twice the error of its logit; all of it doubled for higher orders.
    unit = torch.finfo(heads[0].dtype).eps / 2
    slack = 2 * unit * terms * (2 + 2 * logits) * heads[2].abs().amax()
    assert float((got.double() - wanted.output).abs().amax()) <= float(slack)


def _keep(*shape: int) -> Tensor:
    keep = torch.rand(*shape, generator=Generator().manual_seed(3)) < 0.6
    keep[..., 0] = True
    return keep


@EVERY
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("scale", [None, 0.0, -0.7, 3.0])
def test_agrees_at_any_scale(candidate: Candidate, dtype: torch.dtype, scale: float | None) -> None:
    """Each backend computes attention, with scales of zero and below as well."""
    given = {} if scale is None else {"scale": scale}
    _assert_agrees(candidate, _heads(dtype=dtype), **given)


@pytest.mark.parametrize("scale", [0.0, -0.7])
def test_flash_answers_nan_where_causality_meets_a_scale_below_or_of_zero(scale: float) -> None:
    """Its announced failure is there, in the plainest call: math answers the same call rightly."""
    heads = _heads((4, 4), value_size=3, dtype=torch.float32)
    _assert_agrees(MATH, heads, scale=scale, causal=True)
    assert FLASH(*heads, scale=scale, causal=True).isnan().any()


@EVERY
@pytest.mark.parametrize("shape", [(2, 4, 5, 7), (2, 1, 5, 7), (2, 1, 1, 7), (1, 1, 5, 7)])
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("empty", [True, False])
def test_obeys_masks(
    candidate: Candidate, shape: tuple[int, ...], *, causal: bool, empty: bool
) -> None:
    """A bool mask and its bias are obeyed, with causality too, and an empty row gives zeros."""
    keep = _keep(*shape)
    if empty:
        keep[0, 0, 0] = False
    flags: dict[str, Any] = {"causal": True} if causal else {}
    _assert_agrees(candidate, _heads(), keep=keep, **flags)
    bias = _normal(*shape, seed=4).masked_fill(~keep, float("-inf"))
    _assert_agrees(candidate, _heads(), bias=bias, **flags)
    _assert_agrees(candidate, _heads(), bias=_normal(*shape, seed=5), keep=keep, **flags)


@EVERY
@pytest.mark.parametrize("lengths", [(5, 7), (7, 5), (1, 4)])
def test_causality_is_aligned_top_left(candidate: Candidate, lengths: tuple[int, int]) -> None:
    """Alone, the causal flag hides the keys whose index is larger than the query's."""
    _assert_agrees(candidate, _heads(lengths), causal=True)


@EVERY
@pytest.mark.parametrize("kv_heads", [1, 2])
def test_groups_heads(candidate: Candidate, kv_heads: int) -> None:
    """Query heads share key/value heads in consecutive groups."""
    _assert_agrees(candidate, _heads(kv_heads=kv_heads), keep=_keep(2, 4, 5, 7))


@pytest.mark.parametrize("candidate", [DEFAULT, MATH], ids=lambda candidate: candidate.name)
def test_values_may_be_wider(candidate: Candidate) -> None:
    """Where flash is not asked for, values may have a head size of their own."""
    _assert_agrees(candidate, _heads(value_size=5))


@EVERY
def test_empty_batches_and_queries_give_empty_answers(candidate: Candidate) -> None:
    """No items or no queries: the answer is empty and has the right shape."""
    query, key, value = _heads()
    assert candidate(query[:0], key[:0], value[:0]).shape == (0, 4, 5, 3)
    assert candidate(query[:, :, :0], key, value).shape == (2, 4, 0, 3)


@pytest.mark.parametrize("candidate", [DEFAULT, FLASH], ids=lambda candidate: candidate.name)
def test_flash_takes_values_it_does_not_have(candidate: Candidate) -> None:
    """Five values for 64 keys get an answer of the usual shape: the declared finding."""
    query, key, value = _heads((5, 64))
    assert candidate(query, key, value[:, :, :5].contiguous()).shape == (2, 4, 5, 3)
    declared = [entry.clause for entry in candidate.declaration.expected_failures]
    assert "shape.rejects-mismatch" in declared


@pytest.mark.filterwarnings("ignore:Flash attention kernel not used|All fused kernels")
def test_flash_alone_refuses_strided_channels() -> None:
    """With its channels apart in memory a query finds no kernel: the other declared finding."""
    query, key, value = _heads()
    apart = query.mT.contiguous().mT
    with pytest.raises(RuntimeError, match="No available kernel"):
        FLASH(apart, key, value)
    declared = {entry.clause: entry.kind for entry in FLASH.declaration.expected_failures}
    assert declared["shape.strided"] == "raised"


def test_math_refuses_values_it_does_not_have() -> None:
    """The math backend multiplies matrices, and their sizes must fit."""
    query, key, value = _heads((5, 64))
    with pytest.raises(RuntimeError, match="Expected size"):
        MATH(query, key, value[:, :, :5])


@pytest.mark.parametrize("candidate", [DEFAULT, MATH], ids=lambda candidate: candidate.name)
def test_dropout_zeroes_and_rescales(candidate: Candidate) -> None:
    """With one key, each output row is dropped, or doubled at probability one half."""
    query, key, value = _heads((64, 1))
    ratio = candidate(query, key, value, dropout=0.5) / value
    assert set(ratio.unique().tolist()) == {0.0, 2.0}
