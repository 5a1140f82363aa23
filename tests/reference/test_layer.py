"""The layer: which head owns which channels, shared heads, biases, refusals."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from golden_problems import Shape, layer_case
from refusals import refused
from torch import Tensor

from reference import (
    STANDARD,
    MultiHeadAttention,
    ProjectionWeights,
    merge_heads,
    multi_head_attention,
    project,
    split_heads,
)

SHAPE = Shape(length_form="B")
EYE = torch.eye(4)
AXES = ((2, 5, 4), (6, 4), (12, 4))  # tokens, two heads of size 3, four heads of size 3


def layer(**changes: Any) -> MultiHeadAttention:
    """One evaluation with some weights or keyword arguments changed."""
    case = layer_case(SHAPE)
    assert case.weights is not None
    fields = {field.name for field in dataclasses.fields(ProjectionWeights)}
    matrices = {name: changes.pop(name) for name in fields & set(changes)}
    query, key, value = case.inputs
    arguments: dict[str, Any] = {"query": query, "key": key, "value": value}
    arguments["weights"] = dataclasses.replace(case.weights, **matrices)
    arguments |= {"num_heads": SHAPE.num_heads, "num_kv_heads": SHAPE.kv_heads}
    return multi_head_attention(**(arguments | case.keywords | changes))


def weight(name: str) -> Tensor:
    """A matrix or a bias of that evaluation."""
    tensor: Tensor = getattr(layer_case(SHAPE).weights, name)
    return tensor.clone()


def test_identity_projections() -> None:
    """With unit matrices the core gets the heads' channels, and its answers stand side by side."""
    tokens = torch.randn(2, 3, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    weights = ProjectionWeights(q=EYE, k=EYE, v=EYE, o=EYE)
    answer = multi_head_attention(tokens, tokens, tokens, weights, num_heads=2, causal=True)
    heads = torch.stack([tokens[..., :2], tokens[..., 2:]], dim=1)
    for channels in (answer.core.query, answer.core.key, answer.core.value):
        assert torch.equal(channels, heads)
    assert torch.equal(answer.output, torch.cat(answer.core.output.unbind(1), dim=-1))


@pytest.mark.parametrize("head", range(4))
def test_heads_own_their_rows(head: int) -> None:
    """Changing a head's rows of the query matrix moves that head and no other."""
    matrix = weight("q")
    rows = slice(head * SHAPE.head_size, (head + 1) * SHAPE.head_size)
    matrix[rows] += 1.0
    before, after = layer().core.output, layer(q=matrix).core.output
    moved = [bool((before[:, h] != after[:, h]).any()) for h in range(4)]
    assert moved == [h == head for h in range(4)]


def test_heads_own_their_columns() -> None:
    """Without a head's columns in the output matrix the layer answers as if the head said zero."""
    matrix = weight("o")
    matrix[:, 2:4] = 0.0  # head 1 of value size 2
    answer = layer(o=matrix)
    silent = answer.core.output.clone()
    silent[:, 1] = 0.0
    wanted = project(merge_heads(silent), weight("o"), weight("o_bias"))
    assert torch.equal(answer.output, wanted)


def test_shared_heads_are_repeated_heads() -> None:
    """A shared key/value head is the same as a matrix that repeats its rows for each head."""
    generator = torch.Generator().manual_seed(0)
    # Small integers: projections are exact, so that no order of summation can differ.
    tokens, shared, own = (
        torch.randint(-4, 5, axes, generator=generator).double() for axes in AXES
    )
    repeated = shared.unflatten(0, (2, 3)).repeat_interleave(2, dim=0).flatten(0, 1)
    few = ProjectionWeights(q=own, k=shared, v=shared)
    many = ProjectionWeights(q=own, k=repeated, v=repeated)
    one = multi_head_attention(tokens, tokens, tokens, few, num_heads=4, num_kv_heads=2)
    other = multi_head_attention(tokens, tokens, tokens, many, num_heads=4)
    assert torch.equal(one.core.key, other.core.key)
    assert torch.equal(one.output, other.output)


def test_without_output_matrix() -> None:
    """Without an output matrix the heads are only put side by side."""
    answer = layer(o=None, o_bias=None)
    assert torch.equal(answer.output, answer.merged)
    assert answer.output.shape == (2, 3, 8)


def test_empty_rows_come_before_the_output_projection() -> None:
    """Zeros for a row without keys leave the output bias, exactly."""
    answer = layer(lengths=torch.tensor([0, 4]))
    assert torch.equal(answer.output[0], weight("o_bias").expand(3, 2))


@pytest.mark.parametrize("name", ["q_bias", "k_bias", "v_bias", "o_bias"])
def test_bias_flags(name: str) -> None:
    """A point without a bias answers as if that bias were not given."""
    flag = {"q": "query", "k": "key", "v": "value", "o": "output"}[name[0]] + "_bias"
    without = layer(semantics=STANDARD.replace(**{flag: False}))
    assert torch.equal(without.output, layer(**{name: None}).output)
    # The softmax does not see the key bias, the rounding of the logits may.
    assert name == "k_bias" or not torch.equal(without.output, layer().output)


def test_concatenation_along_tokens() -> None:
    """Document 001's layer: four tokens and two heads of size two give eight rows, not four."""
    point = STANDARD.replace(head_merge="tokens", scale="none")
    tokens, matrix = torch.rand(1, 4, 3), torch.rand(4, 3)
    weights = ProjectionWeights(q=matrix, k=matrix, v=matrix, o=torch.rand(2, 4))
    answer = multi_head_attention(tokens, tokens, tokens, weights, num_heads=2, semantics=point)
    assert answer.output.shape == (1, 8, 2)
    assert answer.core.output.shape == (1, 2, 4, 2)


@pytest.mark.parametrize(
    ("rule", "wanted"),
    [
        ("blocks", [[[0, 1], [4, 5]], [[2, 3], [6, 7]]]),
        ("interleaved", [[[0, 2], [4, 6]], [[1, 3], [5, 7]]]),
        ("reinterpret", [[[0, 1], [2, 3]], [[4, 5], [6, 7]]]),
    ],
)
def test_splits_and_merges(rule: Any, wanted: list[Any]) -> None:
    """Each way of cutting two tokens of four channels into two heads, and its way back."""
    tokens = torch.arange(8).reshape(1, 2, 4)
    point = STANDARD.replace(head_split=rule, head_merge=rule)
    heads = split_heads(tokens, 2, point)
    assert heads.tolist() == [wanted]
    assert torch.equal(merge_heads(heads, point), tokens)


def test_merge_along_tokens() -> None:
    """Merged along the tokens, head 0's rows come before head 1's."""
    heads = torch.arange(8).reshape(1, 2, 2, 2)
    merged = merge_heads(heads, STANDARD.replace(head_merge="tokens"))
    assert merged.tolist() == [[[0, 1], [2, 3], [4, 5], [6, 7]]]


def test_project() -> None:
    """A projection is ``x W^T + b`` in float64, for any axes before the last."""
    tokens, matrix = (
        torch.tensor([[[1.0, 2.0]]]),
        torch.tensor([[3.0, 4.0], [5.0, 6.0], [0.0, 1.0]]),
    )
    assert project(tokens, matrix, None).tolist() == [[[11.0, 17.0, 2.0]]]
    projected = project(tokens[0, 0], matrix, torch.tensor([1.0, 0.0, -2.0]))
    assert projected.tolist() == [12.0, 17.0, 0.0]
    assert projected.dtype == torch.float64


def test_wrong_parts_are_refused() -> None:
    """Projections, splits and merges name the argument whose shape is wrong."""
    tokens = torch.zeros(1, 2, 4)
    with refused("matrix has shape [3, 5]: axis 1 must be 4, the width of tokens"):
        project(tokens, torch.zeros(3, 5), None)
    with refused("matrix has shape [4]: it needs 2 axes [out, in]"):
        project(tokens, torch.zeros(4), None)
    with refused("bias has shape [4]: axis 0 must be 3, the rows of matrix"):
        project(tokens, torch.zeros(3, 4), torch.zeros(4))
    with refused("num_heads is 3: it must be positive and divide 4, the width of tokens"):
        split_heads(tokens, 3)
    with refused("tokens has shape [4]: it needs 3 axes [B, L, H*D]"):
        split_heads(torch.zeros(4), 2)
    with refused("heads has shape [1, 2, 4]: it needs 4 axes [B, H, L, Dv]"):
        merge_heads(tokens)


def zeros(*axes: int) -> Tensor:
    """A tensor of zeros."""
    return torch.zeros(axes)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"query": zeros(3, 3)}, "query has shape [3, 3]: it needs 3 axes [B, Lq, Eq]"),
        ({"key": zeros(4)}, "key has shape [4]: it needs 3 axes [B, Lk, Ek]"),
        (
            {"value": zeros(2, 4, 5, 1)},
            "value has shape [2, 4, 5, 1]: it needs 3 axes [B, Lk, Ev]",
        ),
        (
            {"key": zeros(1, 4, 4)},
            "key has shape [1, 4, 4]: axis 0 must be 2, the batch size of query",
        ),
        (
            {"value": zeros(3, 4, 5)},
            "value has shape [3, 4, 5]: axis 0 must be 2, the batch size of query",
        ),
        (
            {"value": zeros(2, 3, 5)},
            "value has shape [2, 3, 5]: axis 1 must be 4, the length of key",
        ),
        ({"q": zeros(12)}, "weights.q has shape [12]: it needs 2 axes [out, in]"),
        (
            {"q": zeros(12, 4)},
            "weights.q has shape [12, 4]: axis 1 must be 3, the width of its input",
        ),
        (
            {"k": zeros(6, 3)},
            "weights.k has shape [6, 3]: axis 1 must be 4, the width of its input",
        ),
        (
            {"v": zeros(4, 4)},
            "weights.v has shape [4, 4]: axis 1 must be 5, the width of its input",
        ),
        (
            {"k": zeros(8, 4)},
            "weights.k has shape [8, 4]: axis 0 must be 6, num_kv_heads times the head size of q",
        ),
        (
            {"o": zeros(2, 7)},
            "weights.o has shape [2, 7]: axis 1 must be 8, num_heads times the value head size",
        ),
        (
            {"q_bias": zeros(11)},
            "weights.q_bias has shape [11]: axis 0 must be 12, the rows of weights.q",
        ),
        ({"v_bias": zeros(4, 1)}, "weights.v_bias has shape [4, 1]: it needs 1 axes [out]"),
        ({"o": None}, "weights.o_bias is given without its matrix"),
        ({"num_heads": 0}, "num_heads is 0: there must be at least one head"),
        (
            {"num_heads": 5, "num_kv_heads": 5},
            "num_heads is 5: it must be positive and divide 12, the rows of weights.q",
        ),
        (
            {"num_kv_heads": 3},
            "num_kv_heads is 3: it must be positive and divide 4, the number of heads",
        ),
        (
            {"v": zeros(3, 5)},
            "num_kv_heads is 2: it must be positive and divide 3, the rows of weights.v",
        ),
        ({"softcap": -1.0}, "softcap is -1.0, not positive and finite"),
        ({"lengths": torch.tensor([9, 9])}, "lengths has entries outside 0..4"),
    ],
)
def test_wrong_arguments_are_refused(changed: dict[str, Any], message: str) -> None:
    """A wrong shape or value is refused in a sentence that starts with the argument's name."""
    with refused(message):
        layer(**changed)


@pytest.mark.parametrize("name", ["q", "k", "v", "o", "q_bias", "o_bias"])
def test_other_types_are_refused(name: str) -> None:
    """A list in place of a matrix or bias is a TypeError that names it."""
    with refused(f"weights.{name} is a list, not a torch.Tensor", TypeError):
        layer(**{name: [[1.0]]})
