"""Whether weights are varied enough for errors to count as independent."""

from __future__ import annotations

import pytest
import torch
from examples import core, layer
from torch import Generator, Tensor

import conformance
from conformance import ProjectionWeights
from conformance.declare.candidate import Candidate
from conformance.problems.materialise import are_varied, has_generic_weights

WIDTH = 16


def random(rows: int = WIDTH, columns: int = WIDTH, *, seed: int = 0) -> Tensor:
    """A matrix of independent numbers."""
    return torch.randn(rows, columns, generator=Generator().manual_seed(seed))


def alike(matrix: Tensor) -> ProjectionWeights:
    """Projections of which only the values' matrix is as given."""
    return ProjectionWeights(q=random(), k=random(seed=1), v=matrix, o=random(seed=2))


@pytest.mark.parametrize(
    "matrix",
    [
        random(),
        random(64, 128),
        random().bfloat16(),
        torch.eye(WIDTH),
        -2.0 * torch.eye(WIDTH).flip(0),
        torch.nn.init.orthogonal_(torch.empty(WIDTH, WIDTH), generator=Generator().manual_seed(3)),
    ],
    ids=["random", "wide", "bfloat16", "identity", "moved", "orthogonal"],
)
def test_varied_weights_count(matrix: Tensor) -> None:
    """Random numbers in any format, and matrices that only move numbers."""
    assert are_varied(alike(matrix))


@pytest.mark.parametrize(
    "matrix",
    [
        torch.full((WIDTH, WIDTH), 0.1),
        torch.zeros(WIDTH, WIDTH),
        random(WIDTH, 1) * random(1, WIDTH),
        random(1).expand(WIDTH, WIDTH),
        random() * (torch.arange(WIDTH) < 2),
        torch.full((WIDTH, WIDTH), torch.nan),
    ],
    ids=["constant", "zeros", "of rank one", "one row", "sparse", "nan"],
)
def test_weights_that_are_alike_do_not(matrix: Tensor) -> None:
    """Constants, rows in proportion, mostly zeros, no numbers: they repeat one rounding."""
    assert not are_varied(alike(matrix))


def brought(weights: ProjectionWeights | None) -> Candidate:
    """A layer that brings weights; it is never called here."""
    sizes = dict.fromkeys(("query_size", "key_size", "value_size", "output_size"), WIDTH)
    made: Candidate = conformance.fixed_layer(
        lambda query, key, value: query + 0.0 * (key.sum() + value.sum()),
        weights,
        num_heads=2,
        name="brought",
        geometry=sizes if weights is None else None,
    )
    return made


def test_candidates_whose_weights_are_drawn_are_generic() -> None:
    """Cores have no weights, and drawn ones are random."""
    assert has_generic_weights(core())
    assert has_generic_weights(layer())


def test_weights_of_a_candidate_are_looked_at() -> None:
    """Those it brings decide; unknown ones are taken for alike."""
    assert has_generic_weights(brought(alike(random())))
    assert not has_generic_weights(brought(alike(torch.ones(WIDTH, WIDTH))))
    assert not has_generic_weights(brought(None))
