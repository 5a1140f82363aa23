"""Bounds of positions, normalised heads, modified scores and sinks hold and are not idle."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, Final

import pytest
import torch
from torch import Tensor

from candidates.legitimate import distances, modified, normalised, rotary, sinks
from conformance import Candidate
from conformance._golden import golden
from conformance.tolerance import contract_for, core_bound
from conformance.tolerance.prepared import normalised_error
from conformance.tolerance.statistical import core_statistics, has_statistical_bound

CORES: Final[list[Candidate]] = [
    value
    for module in (rotary, distances, normalised, modified, sinks)
    for value in vars(module).values()
    if isinstance(value, Candidate) and value.kind == "core"
]
DTYPES: Final = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}
# Batch, heads, lengths of query and key, head size: short and long, narrow and wide.
SHAPES: Final = (
    (2, 3, 4, 7, 6),
    (1, 5, 3, 300, 8),
    (1, 2, 17, 33, 64),
    (2, 4, 9, 9, 5),
    (1, 1, 2, 1100, 16),
)


def drawn(shape: tuple[int, ...], dtype: torch.dtype, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Query, key and value of one problem; every third of them twice as large."""
    batch, heads, queries, keys, size = shape
    generator = torch.Generator().manual_seed(seed)
    spread = 2.0 if seed % 3 == 0 else 1.0
    lengths = (queries, keys, keys)
    query, key, value = (
        torch.randn(batch, heads, length, size, generator=generator) for length in lengths
    )
    return (spread * query).to(dtype), (spread * key).to(dtype), value.to(dtype)


def options(candidate: Candidate, shape: tuple[int, ...], seed: int) -> dict[str, Any]:
    """The causal flag every other time, and sinks where they are offered."""
    declared = candidate.declaration
    flagged = declared.causal is not None and not declared.always_causal and seed % 2 == 0
    keywords: dict[str, Any] = {"causal": True} if flagged else {}
    if "sinks" in declared.features:
        keywords["sinks"] = torch.randn(shape[1], generator=torch.Generator().manual_seed(seed))
    return keywords


def margins(candidate: Candidate, name: str, shape: tuple[int, ...], seed: int) -> Iterator[float]:
    """The largest error over the worst-case bound, and over the statistical one if it holds."""
    declared, dtype = candidate.declaration, DTYPES[name]
    tensors = drawn(shape, dtype, seed)
    keywords = options(candidate, shape, seed)
    if "sinks" in keywords:
        keywords["sinks"] = keywords["sinks"].to(dtype)
    causal = bool(keywords.get("causal")) or declared.always_causal
    expected = golden.attend(
        *tensors,
        causal=causal,
        sinks=keywords.get("sinks"),
        semantics=declared.semantics,
    )
    contract = contract_for(declared, name, expected.scale)
    error = (candidate.function(*tensors, **keywords).double() - expected.output).abs()
    yield float((error / core_bound(expected, contract)).nan_to_num(nan=0.0).max())
    if has_statistical_bound(declared.semantics):
        statistics = core_statistics(expected, contract)
        rows = error[:, :, statistics.rows]
        yield float((rows / statistics.bound).nan_to_num(nan=0.0).max())


@pytest.mark.parametrize("name", DTYPES)
@pytest.mark.parametrize("candidate", CORES, ids=lambda candidate: candidate.name)
def test_correct_ones_stay_within_their_bounds(candidate: Candidate, name: str) -> None:
    """In every dtype, near and far, neither bound is exceeded; nor is it a thousand times wide."""
    ratios = [
        margin
        for seed, shape in enumerate(SHAPES)
        for margin in margins(candidate, name, shape, seed)
    ]
    assert max(ratios) <= 1.0
    assert max(ratios) > 1e-3


def test_far_positions_are_known_less_well() -> None:
    """The bound grows with the position, as the angle's error does in float32."""
    point = golden.STANDARD.replace(rotary="halves")
    contract = contract_for(rotary.by_rotating_halves.declaration, "float32", 0.25)
    query, key, value = (tokens.double() for tokens in drawn((1, 1, 4, 4, 16), torch.float32, 1))
    near = golden.attend(query, key, value, semantics=point)
    far = golden.attend(
        query,
        torch.cat([torch.zeros(1, 1, 4000, 16).double(), key], dim=2),
        torch.cat([torch.zeros(1, 1, 4000, 16).double(), value], dim=2),
        keep=(torch.arange(4004) >= 4000).reshape(1, 1, 1, -1),
        semantics=point,
    )
    wider = core_bound(far, contract).mean() / core_bound(near, contract).mean()
    assert 5.0 < float(wider) < math.inf


def test_a_sink_is_bounded_as_one_more_key() -> None:
    """The bound beside a sink is that of the same attention with a key of zeros."""
    query, key, value = (tokens.double() for tokens in drawn((1, 2, 3, 5, 4), torch.float32, 2))
    logits = torch.tensor([0.5, -1.0], dtype=torch.float64)
    contract = contract_for(sinks.sink_first.declaration, "float32", 0.5)
    with_sinks = golden.attend(query, key, value, sinks=logits)
    pad = torch.nn.functional.pad
    bias = pad(torch.zeros(1, 2, 1, 5).double(), (0, 1))
    bias[0, :, 0, -1] = logits
    more = golden.attend(query, pad(key, (0, 0, 0, 1)), pad(value, (0, 0, 0, 1)), bias=bias)
    ratio = core_bound(with_sinks, contract) / core_bound(more, contract)
    assert bool(((ratio > 0.5) & (ratio <= 1.0 + 1e-9)).all())


def test_a_head_that_may_vanish_may_become_any_direction() -> None:
    """Errors as large as a head bound its normalised values by the largest there can be."""
    contract = contract_for(rotary.by_rotating_halves.declaration, "float32", 0.5)
    point = golden.STANDARD.replace(qk_norm="l2")
    heads = torch.full((1, 1, 1, 4), 0.5, dtype=torch.float64)
    bound = normalised_error(heads, 1.2 * heads, point, contract)
    assert bool((bound >= 1.5).all())  # from 0.5 to minus 1
