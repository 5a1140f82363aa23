from __future__ import annotations

from typing import Any

import pytest
import torch
from layer_problems import LayerProblem, answer, assert_agrees, forward_of, layer_problem, slack
from torch import Generator, Tensor

from candidates.torch_multihead_attention import (
    torch_multihead_attention,
    torch_multihead_attention_fast_path,
    torch_multihead_attention_separate_widths,
    torch_multihead_attention_with_weights,
)
from conformance._golden import golden
from conformance.declare.candidate import Candidate

PLAIN = torch_multihead_attention
SEPARATE = torch_multihead_attention_separate_widths
WEIGHTS = torch_multihead_attention_with_weights
FAST = torch_multihead_attention_fast_path
ALL = [PLAIN, SEPARATE, WEIGHTS, FAST]
MASK_SHAPES = ["BHQK", "B1QK", "B11K", "11QK"]


def _keep(problem: LayerProblem, letters: str) -> Tensor:
    sizes = problem.geometry
    full = {"B": sizes.batch, "H": sizes.num_heads, "Q": sizes.query_length, "K": sizes.key_length}
    shape = [full.get(letter, 1) for letter in letters]
    keep = torch.rand(shape, generator=Generator().manual_seed(1)) < 0.6
    keep[..., 0] = True
    return keep


@pytest.mark.parametrize("candidate", ALL, ids=lambda candidate: candidate.name)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("biases", [True, False])
def test_agrees_without_a_mask(candidate: Candidate, dtype: torch.dtype, *, biases: bool) -> None:
    """Every way through the module computes attention as specified."""
    assert_agrees(candidate, layer_problem(candidate, dtype=dtype, biases=biases))


@pytest.mark.parametrize("candidate", ALL, ids=lambda candidate: candidate.name)
@pytest.mark.parametrize("letters", MASK_SHAPES)
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("empty", [True, False])
def test_obeys_drop_masks(candidate: Candidate, letters: str, *, causal: bool, empty: bool) -> None:
    """Masks of every shape, causality beside them and rows without a key act as declared."""
    problem = layer_problem(candidate)
    keep = _keep(problem, letters)
    if empty:
        keep[0, 0, 0] = False
    flags: dict[str, Any] = {"causal": True} if causal else {}
    assert_agrees(candidate, problem, {"drop": ~keep, **flags}, {"keep": keep, **flags})


@pytest.mark.parametrize(
    "candidate", [PLAIN, SEPARATE, WEIGHTS], ids=lambda candidate: candidate.name
)
@pytest.mark.parametrize("letters", MASK_SHAPES)
@pytest.mark.parametrize("causal", [True, False])
def test_obeys_biases(candidate: Candidate, letters: str, *, causal: bool) -> None:
    """A bias with infinities in it is added to the logits, causality beside it or not."""
    problem = layer_problem(candidate)
    keep = _keep(problem, letters)
    noise = torch.randn(keep.shape, generator=Generator().manual_seed(2), dtype=torch.float64)
    bias = noise.masked_fill(~keep, float("-inf"))
    flags: dict[str, Any] = {"causal": True} if causal else {}
    assert_agrees(candidate, problem, {"bias": bias, **flags}, {"bias": bias, **flags})


@pytest.mark.parametrize(
    "candidate", [PLAIN, SEPARATE, WEIGHTS], ids=lambda candidate: candidate.name
)
@pytest.mark.parametrize("lengths", [(5, 7), (7, 5), (4, 4)])
def test_causality_is_aligned_top_left(candidate: Candidate, lengths: tuple[int, int]) -> None:
    """Alone, the causal flag hides the keys whose index is larger than the query's."""
    problem = layer_problem(candidate, query_length=lengths[0], key_length=lengths[1])
    assert_agrees(candidate, problem, {"causal": True}, {"causal": True})


def test_returns_weights_of_each_head() -> None:
    """Asked for, the weights come back one table a head, as the golden has them."""
    problem = layer_problem(WEIGHTS)
    pair = forward_of(WEIGHTS, problem)(
        problem.query, problem.key, problem.value, return_weights=True
    )
    wanted = golden.multi_head_attention(
        problem.query, problem.key, problem.value, problem.weights, num_heads=3
    ).core.weights
    assert pair[1].shape == (2, 3, 5, 7)
    assert float((pair[1] - wanted).detach().abs().max()) <= slack(problem)


@pytest.mark.parametrize("candidate", [PLAIN, WEIGHTS], ids=lambda candidate: candidate.name)
def test_dropout_lasts_one_call(candidate: Candidate) -> None:
    """The keyword silences all weights at probability 1; the next call has no dropout again."""
    problem = layer_problem(candidate, biases=False)
    forward = forward_of(candidate, problem)
    inputs = (problem.query, problem.key, problem.value)
    before = forward(*inputs)
    assert not forward(*inputs, dropout=1.0).any()
    assert torch.equal(forward(*inputs), before)


def _kernels(candidate: Candidate, problem: LayerProblem) -> set[str]:
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        answer(candidate, problem)
    return {event.key for event in profile.key_averages()}


@pytest.mark.filterwarnings("ignore")  # the profiler's own, about its schedule and its clean-up
def test_takes_the_path_its_name_says() -> None:
    """The fast path runs the fused kernel; the others run scaled dot products or softmax."""
    fused = "aten::_native_multi_head_attention"
    assert fused in _kernels(FAST, layer_problem(FAST))
    plain = _kernels(PLAIN, layer_problem(PLAIN))
    assert fused not in plain
    assert "aten::scaled_dot_product_attention" in plain
    assert "aten::scaled_dot_product_attention" not in _kernels(WEIGHTS, layer_problem(WEIGHTS))


def test_packs_only_equal_widths() -> None:
    """Equal widths share one input projection; other key and value widths have their own."""
    packed = forward_of(PLAIN, layer_problem(PLAIN)).attention
    assert packed.in_proj_weight.shape == (36, 12)
    separate = forward_of(SEPARATE, layer_problem(SEPARATE)).attention
    assert separate.in_proj_weight is None
    assert separate.k_proj_weight.shape == (12, 13)
    assert separate.v_proj_weight.shape == (12, 9)
