from __future__ import annotations

import pytest
import torch
from layer_problems import assert_agrees, layer_problem

from candidates.wide_head_attention import WideHeadAttention, wide_head_attention


def test_hidden_size_is_that_of_one_head() -> None:
    """The output is hidden_size * num_heads wide, whatever the widths of the inputs."""
    attention = WideHeadAttention(3, 4, 5, hidden_size=6, num_heads=7)
    assert attention(torch.rand(2, 8, 3), torch.rand(2, 9, 4), torch.rand(2, 9, 5)).shape == (
        2,
        8,
        42,
    )
    shapes = {name: tuple(value.shape) for name, value in attention.named_parameters()}
    assert shapes == {
        "linear_q.weight": (42, 3),
        "linear_q.bias": (42,),
        "linear_k.weight": (42, 4),
        "linear_k.bias": (42,),
        "linear_v.weight": (42, 5),
        "linear_v.bias": (42,),
        "linear_o.weight": (42, 42),
        "linear_o.bias": (42,),
    }


def test_refuses_an_empty_batch() -> None:
    """Folding heads into an empty batch leaves nothing to infer the head size from."""
    attention = WideHeadAttention(3, 4, 5, hidden_size=6, num_heads=7)
    with pytest.raises(RuntimeError, match="cannot reshape"):
        attention(torch.rand(0, 8, 3), torch.rand(0, 9, 4), torch.rand(0, 9, 5))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("biases", [True, False])
def test_agrees_with_the_golden(dtype: torch.dtype, *, biases: bool) -> None:
    """The declared candidate computes cross-attention as specified."""
    assert_agrees(
        wide_head_attention, layer_problem(wide_head_attention, dtype=dtype, biases=biases)
    )
