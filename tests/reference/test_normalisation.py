"""Normalised queries and keys."""

from __future__ import annotations

import math

import pytest
import torch
from golden_problems import Shape, core_case

from reference import STANDARD, attend, normalise_heads

NORMS = ["rms", "l2", "layer"]
ROUNDING = 20 * 2.0**-53


@pytest.mark.parametrize("norm", NORMS)
def test_size_of_the_heads(norm: str) -> None:
    """Without an epsilon the mean square is one, the norm is one for "l2"."""
    query = core_case(Shape(head_size=4)).inputs[0]
    point = STANDARD.replace(qk_norm=norm, qk_norm_epsilon=0.0)
    norms = normalise_heads(query, point).norm(dim=-1)
    wanted = 1.0 if norm == "l2" else 2.0
    assert bool(((norms - wanted).abs() <= ROUNDING).all())


@pytest.mark.parametrize("norm", NORMS)
def test_factors_do_not_count(norm: str) -> None:
    """Heads times a power of two are normalised to the same, but for the epsilon."""
    query = core_case(Shape(head_size=4)).inputs[0]
    point = STANDARD.replace(qk_norm=norm, qk_norm_epsilon=0.0)
    assert torch.equal(normalise_heads(4.0 * query, point), normalise_heads(query, point))
    with_epsilon = point.replace(qk_norm_epsilon=2.0)
    other = normalise_heads(query, with_epsilon)
    assert not torch.equal(normalise_heads(4.0 * query, with_epsilon), other)


def test_zeros_stay_zeros() -> None:
    """An epsilon keeps a head of zeros from being divided by zero."""
    for norm in NORMS:
        zeros = torch.zeros(1, 1, 2, 3)
        assert not normalise_heads(zeros, STANDARD.replace(qk_norm=norm)).any()


def test_mean_of_layer_norm() -> None:
    """Only "layer" takes the mean off: a constant head becomes zeros."""
    constant = torch.ones(1, 1, 1, 4)
    assert not normalise_heads(constant, STANDARD.replace(qk_norm="layer")).any()
    unit = normalise_heads(constant, STANDARD.replace(qk_norm="rms", qk_norm_epsilon=0.0))
    assert torch.equal(unit, constant.double())


def test_epsilons() -> None:
    """It joins the mean square under the root for "rms", and is a least norm for "l2"."""
    head = torch.tensor([[[[3.0, 4.0]]]])
    rms = normalise_heads(head, STANDARD.replace(qk_norm="rms", qk_norm_epsilon=3.5))
    assert torch.equal(rms, head.double() / 4.0)
    l2 = normalise_heads(head, STANDARD.replace(qk_norm="l2", qk_norm_epsilon=10.0))
    assert torch.equal(l2, head.double() / 10.0)


def test_normalised_before_turned() -> None:
    """A rotation keeps the norm, so the order shows with "layer", whose mean is no rotation's."""
    query, key, value = core_case(Shape(head_size=4)).inputs
    point = STANDARD.replace(qk_norm="layer", rotary="halves")
    found = attend(query, key, value, semantics=point)
    before = attend(query, key, value, semantics=point.replace(rotary="none"))
    sizes = found.query.norm(dim=-1)
    assert bool(((sizes - before.query.norm(dim=-1)).abs() <= ROUNDING * sizes).all())
    assert torch.equal(found.given_query, query)
    assert not torch.equal(found.query, before.query)


def test_products_are_bounded() -> None:
    """No cosine exceeds one: the scores of unit vectors stay within the scale."""
    query, key, value = core_case(Shape(magnitude=10.0)).inputs
    found = attend(query, key, value, scale=1.0, semantics=STANDARD.replace(qk_norm="l2"))
    assert float(found.scores.abs().max()) <= math.nextafter(1.0 + ROUNDING, 2.0)
