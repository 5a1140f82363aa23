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


def test_empty_rows_come_before_the_output_projection() -> None:
    """Zeros for a row without keys leave the output bias, exactly."""
    answer = layer(lengths=torch.tensor([0, 4]))
    assert torch.equal(answer.output[0], weight("o_bias").expand(3, 2))


def test_concatenation_along_tokens() -> None:
    """Document 001's layer: four tokens and two heads of size two give eight rows, not four."""
    point = STANDARD.replace(head_merge="tokens", scale="none")
    tokens, matrix = torch.rand(1, 4, 3), torch.rand(4, 3)
    weights = ProjectionWeights(q=matrix, k=matrix, v=matrix, o=torch.rand(2, 4))
    answer = multi_head_attention(tokens, tokens, tokens, weights, num_heads=2, semantics=point)
    assert answer.output.shape == (1, 8, 2)
    assert answer.core.output.shape == (1, 2, 4, 2)


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
