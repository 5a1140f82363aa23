from __future__ import annotations

import pytest
import torch
from layer_problems import assert_agrees, layer_problem

from candidates.unbatched_attention import UnbatchedAttention, unbatched_attention


def test_documents_run() -> None:
    """Two heads of size 2 map [4, 3] to the same shape."""
    attention = UnbatchedAttention(embed_dim=3, head_dim=2, num_heads=2)
    assert attention(torch.rand(4, 3)).shape == (4, 3)


def test_projections() -> None:
    """Projections go to head_dim * num_heads and back, with biases."""
    shapes = {
        name: tuple(value.shape) for name, value in UnbatchedAttention(3, 2, 5).named_parameters()
    }
    assert shapes == {
        "q_proj.weight": (10, 3),
        "q_proj.bias": (10,),
        "k_proj.weight": (10, 3),
        "k_proj.bias": (10,),
        "v_proj.weight": (10, 3),
        "v_proj.bias": (10,),
        "out_proj.weight": (3, 10),
        "out_proj.bias": (3,),
    }


def test_refuses_a_batch() -> None:
    """A batched input fails where its shape is unpacked."""
    with pytest.raises(ValueError, match="too many values to unpack"):
        UnbatchedAttention(3, 2, 2)(torch.rand(1, 4, 3))


def test_refuses_an_empty_sequence() -> None:
    """No tokens leave nothing to infer the head size from."""
    with pytest.raises(RuntimeError, match="cannot reshape"):
        UnbatchedAttention(3, 2, 2)(torch.rand(0, 3))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("biases", [True, False])
def test_agrees_with_the_golden(dtype: torch.dtype, *, biases: bool) -> None:
    """The declared candidate computes attention as specified on one sequence."""
    problem = layer_problem(unbatched_attention, dtype=dtype, biases=biases, batch=1)
    assert_agrees(unbatched_attention, problem)
