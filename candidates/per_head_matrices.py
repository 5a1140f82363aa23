"""Document B1: two heads written out by hand, and put together along the wrong axis."""

from __future__ import annotations

from typing import Final

import torch
from torch import Generator, Tensor

import conformance
from conformance import ExpectedFailure, ProjectionWeights

WIDTH: Final = 3
HEAD_SIZE: Final = 2
NUM_HEADS: Final = 2

_generator = Generator().manual_seed(0)


def _uniform(*shape: int) -> Tensor:
    return torch.rand(*shape, generator=_generator)


# One (width, head size) matrix a head, and the single matrix that both heads' rows meet.
QUERY_MATRICES: Final = [_uniform(WIDTH, HEAD_SIZE) for _ in range(NUM_HEADS)]
KEY_MATRICES: Final = [_uniform(WIDTH, HEAD_SIZE) for _ in range(NUM_HEADS)]
VALUE_MATRICES: Final = [_uniform(WIDTH, HEAD_SIZE) for _ in range(NUM_HEADS)]
OUTPUT_MATRIX: Final = _uniform(HEAD_SIZE, HEAD_SIZE)


def attend_head(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """One head of ``[tokens, size]`` each. The document leaves the scores unscaled."""
    return torch.softmax(query @ key.T, dim=-1) @ value


def attend_heads(x: Tensor) -> Tensor:
    """``[tokens, 3] -> [2 * tokens, 2]``: one head below the other, as in the document."""
    matrices = zip(QUERY_MATRICES, KEY_MATRICES, VALUE_MATRICES, strict=True)
    heads = [attend_head(x @ query, x @ key, x @ value) for query, key, value in matrices]
    return torch.cat(heads, dim=0) @ OUTPUT_MATRIX


# What the document meant: heads side by side, each meeting its block of the output matrix.
WEIGHTS: Final = ProjectionWeights(
    q=torch.cat([matrix.T for matrix in QUERY_MATRICES]),
    k=torch.cat([matrix.T for matrix in KEY_MATRICES]),
    v=torch.cat([matrix.T for matrix in VALUE_MATRICES]),
    o=torch.cat([OUTPUT_MATRIX.T] * NUM_HEADS, dim=1),
)

per_head_matrices = conformance.fixed_layer(
    attend_heads,
    WEIGHTS,
    num_heads=NUM_HEADS,
    name="per_head_matrices",
    inputs="self",
    batched=False,
    expected_failures=[
        ExpectedFailure(
            clause="*",
            kind="shape",
            reason=(
                "the document's own mistake: heads are concatenated along the token axis (8 rows "
                "for 4 tokens), and the scores are not scaled"
            ),
        )
    ],
)
