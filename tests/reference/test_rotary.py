"""Rotary positions: lengths, distances, pairs, fractions, alignment."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest
import torch
from agreement import disagreement
from golden_problems import Case, Shape, core_case
from torch import Tensor

from reference import STANDARD, attend, rotary_angles, rotary_pairs, rotary_size, rotate_heads

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


def test_pairs() -> None:
    """Halves pair channel i with i + R/2, interleaved pairs neighbours."""
    first, second = rotary_pairs(6, STANDARD.replace(rotary="halves"))
    assert (first.tolist(), second.tolist()) == ([0, 1, 2], [3, 4, 5])
    first, second = rotary_pairs(6, STANDARD.replace(rotary="interleaved"))
    assert (first.tolist(), second.tolist()) == ([0, 2, 4], [1, 3, 5])
    assert rotary_pairs(6, STANDARD)[0].numel() == 0


@pytest.mark.parametrize(
    ("size", "fraction", "turned"),
    [(8, 1.0, 8), (7, 1.0, 6), (1, 1.0, 0), (8, 0.5, 4), (10, 0.3, 2), (64, 0.25, 16), (2, 0.4, 0)],
)
def test_size_of_the_turned_part(size: int, fraction: float, turned: int) -> None:
    """The turned channels are the largest even number within the fraction."""
    assert rotary_size(size, STANDARD.replace(rotary="halves", rotary_fraction=fraction)) == turned


@pytest.mark.parametrize("pairing", PAIRINGS)
def test_other_channels_stay(pairing: str) -> None:
    """Channels beyond the turned part are the same bits, and those within are others."""
    tokens, point = heads(), STANDARD.replace(rotary=pairing, rotary_fraction=0.7)
    turned = rotate_heads(tokens, torch.arange(1, 6), point)
    assert torch.equal(turned[..., 4:], tokens[..., 4:])
    assert not bool((turned[..., :4] == tokens[..., :4]).any())


def test_angles() -> None:
    """The first pair turns by one radian a position, the last of two by base ** -1/2."""
    angles = rotary_angles(torch.tensor([3, -2]), 4, STANDARD.replace(rotary="halves"))
    assert torch.equal(angles, torch.tensor([[3.0, 0.03], [-2.0, -0.02]], dtype=torch.float64))


def test_direction() -> None:
    """A quarter turn takes the first channel of a pair to the second one (RoFormer, eq. 34)."""
    point = STANDARD.replace(rotary="halves")
    quarter = torch.tensor([math.pi / 2], dtype=torch.float64)
    turned = rotate_heads(torch.tensor([[[[1.0, 0.0]]]]), quarter, point)
    assert float(turned[..., 1]) == 1.0
    assert abs(float(turned[..., 0])) < ROUNDING


@pytest.mark.parametrize("pairing", PAIRINGS)
@pytest.mark.parametrize("alignment", ["bottom-right", "top-left"])
def test_alignment(pairing: str, alignment: Any) -> None:
    """The last queries of a sequence, asked alone, answer as in the whole at bottom-right only."""
    point = STANDARD.replace(rotary=pairing, causal_alignment=alignment)
    query, key, value = core_case(Shape(query_length=4, key_length=4, head_size=4)).inputs
    whole = attend(query, key, value, semantics=point).output
    last = attend(query[:, :, 2:], key, value, semantics=point).output
    close = bool(((last - whole[:, :, 2:]).abs() <= ROUNDING * 10).all())
    assert close == (alignment == "bottom-right")


def test_values_are_not_turned() -> None:
    """The answer at a single key is its value."""
    query, key, value = core_case(Shape(key_length=1, head_size=4)).inputs
    output = attend(query, key, value, semantics=STANDARD.replace(rotary="halves")).output
    assert torch.equal(output, value.repeat_interleave(2, dim=1).expand(output.shape))


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
