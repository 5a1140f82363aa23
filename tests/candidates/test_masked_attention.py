from __future__ import annotations

import dataclasses

import pytest
import torch
from layer_problems import answer, assert_agrees, layer_problem, slack
from torch import Generator

from candidates.masked_attention import MaskedAttention, masked_attention


def test_refuses_a_width_the_heads_do_not_divide() -> None:
    """d_model must be divisible by num_heads, and the message names both."""
    with pytest.raises(ValueError, match="d_model=10 is not divisible by num_heads=3"):
        MaskedAttention(d_model=10, num_heads=3)


def test_projections_are_square() -> None:
    """Four projections from d_model to d_model, with biases."""
    shapes = {name: tuple(value.shape) for name, value in MaskedAttention(6, 2).named_parameters()}
    expected: dict[str, tuple[int, ...]] = {}
    for name in ("W_q", "W_k", "W_v", "W_o"):
        expected |= {f"{name}.weight": (6, 6), f"{name}.bias": (6,)}
    assert shapes == expected


@pytest.mark.parametrize("form", [torch.bool, torch.int64])
@pytest.mark.parametrize("shape", [(2, 1, 1, 7), (2, 3, 5, 7), (1, 1, 5, 7)])
def test_agrees_with_the_golden(shape: tuple[int, ...], form: torch.dtype) -> None:
    """Any mask that broadcasts is obeyed, as 0/1 or as a bool; an empty row averages all values."""
    problem = layer_problem(masked_attention)
    keep = torch.rand(shape, generator=Generator().manual_seed(1)) < 0.6
    keep[0, 0, 0] = False
    keyword = "keep" if form == torch.bool else "keep_int"
    assert_agrees(masked_attention, problem, {keyword: keep.to(form)}, {"keep": keep})


@pytest.mark.parametrize("biases", [True, False])
def test_agrees_without_a_mask(*, biases: bool) -> None:
    """Without a mask every key counts."""
    assert_agrees(masked_attention, layer_problem(masked_attention, biases=biases))


def test_fill_is_out_of_range_in_float16() -> None:
    """In float16 a call with a mask raises, and one without does not."""
    attention = MaskedAttention(4, 2).to(torch.float16)
    tokens = torch.ones(1, 3, 4, dtype=torch.float16)
    assert attention(tokens, tokens, tokens).isfinite().all()
    with pytest.raises(RuntimeError, match="overflow"):
        attention(tokens, tokens, tokens, torch.ones(1, 1, 1, 3))


def test_permuted_tokens_permute_the_rows() -> None:
    """The document's point: [t3, t1, t2, t4] gives the rows of [t1, t2, t3, t4] in that order."""
    problem = layer_problem(masked_attention, query_length=4, key_length=4, batch=1)
    order = [2, 0, 1, 3]
    tokens = problem.query[:, order]
    swapped = dataclasses.replace(problem, query=tokens, key=tokens, value=tokens)
    same = dataclasses.replace(problem, key=problem.query, value=problem.query)
    rows = answer(masked_attention, same)[:, order]
    difference = (answer(masked_attention, swapped) - rows).abs().max()
    assert float(difference) <= 2 * slack(problem)
