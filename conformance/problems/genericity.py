"""Whether weights that a candidate brings are varied enough for errors to count as independent."""

from __future__ import annotations

import torch
from torch import Tensor

from .._golden import golden
from ..declare.candidate import Candidate
from ..tolerance import model
from ..tolerance.projection import is_exact


def has_generic_weights(candidate: Candidate) -> bool:
    """Whether a candidate's projections round their outputs each in its own way.

    A core has none and drawn ones do. Of those that a candidate brings, each matrix must hold many
    numbers and rows that point in different directions, or only pick inputs: constant weights, or
    rows that are multiples of each other, make the same error many times over.
    """
    if candidate.kind != "layer" or candidate.draws_weights:
        return True
    return candidate.fixed_weights is not None and are_varied(candidate.fixed_weights)


def are_varied(weights: golden.ProjectionWeights) -> bool:
    """Whether every matrix of some projections is varied."""
    matrices = (weights.q, weights.k, weights.v, weights.o)
    return all(matrix is None or _is_varied(matrix.detach().double()) for matrix in matrices)


def _is_varied(matrix: Tensor) -> bool:
    if is_exact(matrix, None):
        return True
    if not bool(torch.isfinite(matrix).all()) or matrix.numel() == 0:
        return False
    rows = matrix[:: max(1, matrix.shape[0] // model.SAMPLED_ROWS)]
    _, counts = rows.abs().unique(return_counts=True)
    if int(counts.max()) > model.MOST_ALIKE * rows.numel():
        return False
    return _mean_squared_cosine(rows) <= model.MOST_ALIGNED / matrix.shape[1]


def _mean_squared_cosine(rows: Tensor) -> float:
    """Of the angles between different rows; 0 for a single row. Random ones have 1 / width."""
    count = rows.shape[0]
    if count == 1:
        return 0.0
    directions = rows / torch.linalg.vector_norm(rows, dim=1, keepdim=True)
    squares = (directions @ directions.T).square()
    return float(squares.sum() - count) / (count * (count - 1))
