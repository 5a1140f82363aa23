from __future__ import annotations

import pytest
import torch
from layer_problems import assert_agrees, forward_of, layer_problem

from candidates.valid_length_attention import (
    ValidLengthAttention,
    masked_softmax,
    valid_length_attention,
)


def test_documents_run() -> None:
    """100 hidden units, 5 heads, 4 queries and 6 pairs with lengths 3 and 2 give [2, 4, 100]."""
    attention = ValidLengthAttention(100, 100, 100, 100, 5, 0.5).eval()
    queries, pairs = torch.ones(2, 4, 100), torch.ones(2, 6, 100)
    assert attention(queries, pairs, pairs, torch.tensor([3, 2])).shape == (2, 4, 100)


def test_has_no_biases_by_default() -> None:
    """Four projections to num_hiddens, biased only on request."""
    names = dict(ValidLengthAttention(3, 4, 5, 6, 2, 0.0).named_parameters())
    assert {name: tuple(value.shape) for name, value in names.items()} == {
        "W_q.weight": (6, 4),
        "W_k.weight": (6, 3),
        "W_v.weight": (6, 5),
        "W_o.weight": (6, 6),
    }
    biased = ValidLengthAttention(3, 4, 5, 6, 2, 0.0, bias=True).state_dict()
    assert {"W_q.bias", "W_k.bias", "W_v.bias", "W_o.bias"} < set(biased)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("lengths", [None, [0, 4], [[7, 0, 1, 2, 3], [4, 5, 6, 7, 0]]])
def test_agrees_with_the_golden(dtype: torch.dtype, lengths: list[int] | None) -> None:
    """With no lengths, one an item or one a query, it is attention; a length of 0 averages all."""
    problem = layer_problem(valid_length_attention, dtype=dtype)
    given = {} if lengths is None else {"lengths": torch.tensor(lengths)}
    assert_agrees(valid_length_attention, problem, given, given)


def test_the_fill_leaks_below_a_million() -> None:
    """The only valid key loses all its weight when its logit lies below the fill."""
    scores = torch.tensor([[[-2e6, 0.0, 0.0]]])
    weights = masked_softmax(scores, torch.tensor([1]))
    assert weights.tolist() == [[[0.0, 0.5, 0.5]]]


def test_refuses_an_empty_batch() -> None:
    """Folding heads into an empty batch leaves nothing to infer the head size from."""
    attention = ValidLengthAttention(3, 4, 5, 6, 2, 0.0)
    with pytest.raises(RuntimeError, match="cannot reshape"):
        attention(torch.rand(0, 2, 4), torch.rand(0, 3, 3), torch.rand(0, 3, 5))


def test_drops_out_in_training_only() -> None:
    """In training mode a dropout of 1 silences every weight; in eval mode nothing changes."""
    attention = ValidLengthAttention(3, 4, 5, 6, 2, dropout=1.0)
    inputs = torch.rand(1, 2, 4), torch.rand(1, 3, 3), torch.rand(1, 3, 5)
    assert not attention.train()(*inputs).any()
    assert attention.eval()(*inputs).all()


def test_declared_dropout_lasts_one_call() -> None:
    """The keyword drops out with its own probability, and the next call is deterministic again."""
    problem = layer_problem(valid_length_attention)
    forward = forward_of(valid_length_attention, problem)
    inputs = (problem.query, problem.key, problem.value)
    before = forward(*inputs)
    assert not forward(*inputs, dropout=1.0).any()
    assert torch.equal(forward(*inputs), before)
    assert forward.attention.dropout.p == 0.5
