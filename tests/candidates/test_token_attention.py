from __future__ import annotations

import pytest
import torch
from layer_problems import assert_agrees, layer_problem

from candidates.token_attention import TokenAttention, token_attention


def test_documents_run() -> None:
    """The document's sizes map [2, 128, 100] to the same shape."""
    attention = TokenAttention(token_size=100, qk_size=2, v_size=2, head_num=12)
    assert attention(torch.zeros(2, 128, 100)).shape == (2, 128, 100)


def test_projections() -> None:
    """Queries and keys, and values, have head sizes of their own; every projection has a bias."""
    attention = TokenAttention(token_size=10, qk_size=2, v_size=3, head_num=4)
    shapes = {name: tuple(value.shape) for name, value in attention.state_dict().items()}
    assert shapes == {
        "W_q.weight": (8, 10),
        "W_q.bias": (8,),
        "W_k.weight": (8, 10),
        "W_k.bias": (8,),
        "W_v.weight": (12, 10),
        "W_v.bias": (12,),
        "W.weight": (10, 12),
        "W.bias": (10,),
    }


def test_scale_is_a_plain_attribute() -> None:
    """The scale is in no state dict and does not follow the module to another dtype."""
    attention = TokenAttention(token_size=10, qk_size=4, v_size=3, head_num=4)
    assert float(attention.scale) == 0.5
    assert "scale" not in attention.state_dict()
    assert "scale" not in dict(attention.named_buffers())
    assert attention.to(torch.float64).scale.dtype == torch.float32


def test_refuses_another_width() -> None:
    """A wrong token size is refused by an assertion that names both sizes."""
    attention = TokenAttention(token_size=10, qk_size=2, v_size=3, head_num=4)
    with pytest.raises(AssertionError, match="width 11, not token_size=10"):
        attention(torch.zeros(2, 5, 11))


@pytest.mark.parametrize("biases", [True, False])
@pytest.mark.parametrize("sizes", [{}, {"head_size": 3, "value_head_size": 1, "num_heads": 2}])
def test_agrees_with_the_golden(sizes: dict[str, int], *, biases: bool) -> None:
    """The declared candidate computes attention as specified, in float32."""
    problem = layer_problem(token_attention, dtype=torch.float32, biases=biases, **sizes)
    assert_agrees(token_attention, problem)


def test_agrees_in_float64_where_the_scale_is_exact() -> None:
    """With a head size of 4 the float32 scale is exact, and so is the answer in float64."""
    assert_agrees(token_attention, layer_problem(token_attention, head_size=4))
