"""Rotary positions: lengths, distances, pairs, fractions, alignment."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from agreement import disagreement
from golden_problems import Case, Shape, core_case
from torch import Tensor

from reference import STANDARD, attend, rotary_angles, rotate_heads

PAIRINGS = ["halves", "interleaved"]
# A rotation makes a few roundings; angles below 100 err by at most 100 units.
ROUNDING = 200 * 2.0**-53


def heads(length: int = 5, size: int = 6, seed: int = 0) -> Tensor:
    """Random heads ``[2, 3, L, D]``."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(2, 3, length, size, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize("pairing", PAIRINGS)
def test_products_know_distances_alone(pairing: str) -> None:
    """Moving query and key by the same number of positions leaves their product."""
    point = STANDARD.replace(rotary=pairing)
    query, key = heads(seed=1), heads(seed=2)
    here = torch.arange(5)
    near = rotate_heads(query, here, point) @ rotate_heads(key, here, point).mT
    far = rotate_heads(query, here + 70, point) @ rotate_heads(key, here + 70, point).mT
    sizes = query.norm(dim=-1, keepdim=True) * key.norm(dim=-1).unsqueeze(-2)
    assert bool(((near - far).abs() <= ROUNDING * 6 * sizes).all())
    moved = rotate_heads(query, here + 1, point) @ rotate_heads(key, here, point).mT
    assert bool(((near - moved).abs() > 0.01).any())


@pytest.mark.parametrize("pairing", PAIRINGS)
def test_position_zero_turns_nothing(pairing: str) -> None:
    """At position zero every channel stays, bit for bit."""
    tokens = heads(length=1)
    turned = rotate_heads(tokens, torch.zeros(1), STANDARD.replace(rotary=pairing))
    assert torch.equal(turned, tokens)


def test_angles() -> None:
    """The first pair turns by one radian a position, the last of two by base ** -1/2."""
    angles = rotary_angles(torch.tensor([3, -2]), 4, STANDARD.replace(rotary="halves"))
    assert torch.equal(angles, torch.tensor([[3.0, 0.03], [-2.0, -0.02]], dtype=torch.float64))


TABLES = torch.complex(
    torch.randn(2, 5, 1, generator=torch.Generator().manual_seed(1), dtype=torch.float64),
    torch.randn(2, 5, 1, generator=torch.Generator().manual_seed(2), dtype=torch.float64),
)


def with_tables(case: Case, tables: Tensor) -> Case:
    """A case whose call gives tables."""
    return dataclasses.replace(case, tensors={**case.tensors, "rotary_tables": tables})


@pytest.mark.parametrize("pairing", PAIRINGS)
def test_tables_of_a_call_stand_for_those_of_positions(pairing: str) -> None:
    """Tables of positions give the same answer, others that of the second formulation."""
    point = STANDARD.replace(rotary=pairing)
    case = core_case(Shape(query_length=3, key_length=5, head_size=2))
    golden = case.golden(point).output
    angles = rotary_angles(torch.arange(5), 2, point)[None]
    for own in (angles, torch.polar(torch.ones_like(angles), angles)):
        torch.testing.assert_close(with_tables(case, own).golden(point).output, golden)
    given = with_tables(case, TABLES)
    answer = given.golden(point)
    assert disagreement(answer.output, given.second(point).output, "output") == ""
    cached = attend(*given.inputs, **given.keywords, semantics=point, turned_keys=2)
    torch.testing.assert_close(cached.output, answer.output)


def test_tables_that_do_not_fit_are_refused() -> None:
    """One sentence names what is wrong with them."""
    inputs = core_case(Shape(query_length=3, key_length=5, head_size=2)).inputs
    point = STANDARD.replace(rotary="halves")
    for tables, turned, words in (
        (TABLES[:, :4], 0, "rotary_tables"),
        (TABLES.real.long(), 0, "neither complex nor real"),
        (TABLES.expand(2, 5, 1).repeat(2, 1, 1)[:3], 0, "items"),
        (None, 1, "turned_keys"),
    ):
        with pytest.raises(ValueError, match=words):
            attend(*inputs, semantics=point, rotary_tables=tables, turned_keys=turned)
