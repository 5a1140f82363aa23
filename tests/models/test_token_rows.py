from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from bare_modules import HEADS, WIDTH, Projected, attend
from torch import Tensor

from candidates.exports import Input, Source, by_export
from conformance.models.in_place import GraphEngine
from conformance.models.recording import record
from conformance.models.sites import find_sites
from conformance.models.token_rows import mixed_part, turns_values
from conformance.models.torch_sites import find_torch_sites

Split = Callable[[Tensor], Tensor]


def by_token(tokens: Tensor) -> Tensor:
    """``[B, L, E]`` as ``[B, H, L, D]``."""
    return tokens.unflatten(-1, (HEADS, -1)).transpose(1, 2)


def reshaped(tokens: Tensor) -> Tensor:
    """The same without a transpose: rows of heads are of several tokens."""
    batch, length, width = tokens.shape
    return tokens.reshape(batch, HEADS, length, width // HEADS)


def turned_by_pairs(tokens: Tensor) -> Tensor:
    """Heads whose channels are turned as complex numbers, two to a pair."""
    heads = by_token(tokens)
    pairs = torch.view_as_complex(heads.unflatten(-1, (-1, 2)))
    angles = torch.arange(float(heads.shape[2]))[:, None].expand(-1, pairs.shape[-1])
    turned = pairs * torch.polar(torch.ones_like(angles), angles)
    return torch.view_as_real(turned).flatten(-2)


def merged(heads: Tensor) -> Tensor:
    """``[B, H, L, D]`` as ``[B, L, E]``."""
    return heads.transpose(1, 2).flatten(2)


def merged_as_is(heads: Tensor) -> Tensor:
    """The same without a transpose."""
    return heads.reshape(heads.shape[0], heads.shape[2], -1)


class Block(Projected):
    """An attention that splits its query and merges its heads in some way."""

    def __init__(self, split: Split, merge: Split) -> None:
        super().__init__(WIDTH, HEADS)
        self.split, self.merge = split, merge

    def forward(self, x: Tensor) -> Tensor:
        """Attention of tokens."""
        query, key, value = self.split(self.q(x)), by_token(self.k(x)), by_token(self.v(x))
        return self.o(self.merge(attend(query, key, value)))


@pytest.mark.parametrize(
    ("split", "merge", "said"),
    [
        (by_token, merged, ""),
        (turned_by_pairs, merged, ""),
        (reshaped, merged, "the heads of the query are split so that tokens are mixed"),
        (by_token, merged_as_is, "its heads are merged so that tokens are mixed"),
    ],
)
def test_where_tokens_are_mixed(split: Split, merge: Split, said: str) -> None:
    """Numbers are followed from the projection to the heads, and from the heads to the output."""
    torch.manual_seed(0)
    recording = record(Block(split, merge), {"x": torch.randn(2, 5, WIDTH)})
    (site,), _ = find_torch_sites(recording)
    words = mixed_part(recording, site)
    assert re.sub(r" \(test_token_rows.py:\d+\): .*transpose\(1, 2\).*", "", words) == said
    assert ("transpose" in words) == bool(said)  # the line and what to do


@pytest.mark.parametrize(
    ("split", "merge", "said"),
    [
        (by_token, merged, ""),
        (reshaped, merged, "the heads of the query are split so that tokens are mixed (at "),
        (by_token, merged_as_is, "its heads are merged so that tokens are mixed (at "),
        (by_token, lambda heads: merged(heads).flatten(1).unflatten(-1, (-1, WIDTH)), ""),
        (lambda tokens: placed(by_token(tokens)), merged, ""),
        (
            lambda tokens: placed(reshaped(tokens)),
            merged,
            "the heads of the query are split so that tokens are mixed (at ",
        ),
    ],
)
def test_a_graph_is_told_where_tokens_are_mixed(
    split: Split, merge: Split, said: str, tmp_path: Path
) -> None:
    """Also before positions turn heads; what becomes of merged rows is the model's affair."""
    torch.manual_seed(0)
    axes = ("batch", "tokens", WIDTH)
    source = Source(
        name="block",
        module=Block(split, merge).eval(),
        inputs=(Input(name="x", axes=axes),),
        outputs={"y": axes},
    )
    engine = GraphEngine(find_sites(by_export(source, tmp_path / "block.onnx")))
    with engine.process:
        told = engine.mixing_tokens({"x": np.random.default_rng(0).random((2, 5, WIDTH), "f")})
    assert [(index, words[: len(said)]) for index, words in told] == [(0, said)] * bool(said)


class Folded(Projected):
    """Items and heads are one axis, and tokens come before items where heads are merged."""

    def __init__(self, merge: Callable[[Tensor], Tensor]) -> None:
        super().__init__(WIDTH, HEADS)
        self.merge = merge

    def forward(self, x: Tensor) -> Tensor:
        """Attention of tokens, whose answer is one row a token."""
        heads = (by_token(part(x)).flatten(0, 1) for part in (self.q, self.k, self.v))
        query, key, value = heads
        weights = (torch.bmm(query, key.mT) / query.shape[-1] ** 0.5).softmax(-1)
        answer = self.o(self.merge(torch.bmm(weights, value)))
        return answer.reshape(x.shape[1], x.shape[0], -1).transpose(0, 1)


@pytest.mark.parametrize(
    ("merge", "said"),
    [
        (lambda heads: heads.transpose(0, 1).reshape(-1, WIDTH), ""),
        (lambda heads: heads.reshape(-1, WIDTH), "its heads are merged so that tokens are mixed"),
    ],
)
def test_heads_folded_with_items_are_of_one_token_in_each_row(
    merge: Callable[[Tensor], Tensor], said: str
) -> None:
    """However many of them are of one item: each row has whole heads of one token."""
    torch.manual_seed(0)
    recording = record(Folded(merge), {"x": torch.randn(2, 5, WIDTH)})
    (site,), _ = find_torch_sites(recording)
    assert "B" not in site.output_letters
    words = mixed_part(recording, site)
    assert re.sub(r" \(test_token_rows.py:\d+\): .*transpose\(1, 2\).*", "", words) == said
    assert ("transpose" in words) == bool(said)  # the line and what to do


def placed(heads: Tensor, sign: float = 1.0) -> Tensor:
    """Heads ``[B, H, L, D]`` turned by their positions."""
    angles = sign * torch.arange(heads.shape[2])[:, None] * torch.tensor([1.0, 0.1])
    one, other = heads.chunk(2, dim=-1)
    cos, sin = angles.cos(), angles.sin()
    return torch.cat([one * cos - other * sin, one * sin + other * cos], -1)


class Placed(Projected):
    """Queries and keys have positions; values and the heads' answers as they are told."""

    def __init__(self, value: Split, answer: Split) -> None:
        super().__init__(WIDTH, HEADS)
        self.value, self.answer = value, answer

    def forward(self, x: Tensor) -> Tensor:
        """Attention of tokens."""
        query, key = placed(by_token(self.q(x))), placed(by_token(self.k(x)))
        return self.o(merged(self.answer(attend(query, key, self.value(by_token(self.v(x)))))))


def as_is(heads: Tensor) -> Tensor:
    """Without positions."""
    return heads


def added(heads: Tensor) -> Tensor:
    """Positions that are added."""
    return heads + torch.arange(heads.shape[2])[:, None]


@pytest.mark.parametrize(
    ("value", "answer", "turns"),
    [
        (as_is, as_is, False),
        (added, as_is, False),
        (placed, as_is, True),
        (placed, lambda heads: placed(heads, -1.0), False),
    ],
)
def test_values_that_turn_with_their_places_are_told(
    value: Split, answer: Split, *, turns: bool
) -> None:
    """By equal tokens, unless the answer is turned back; positions that are added are no turns."""
    torch.manual_seed(0)
    tokens = torch.randn(2, 1, WIDTH).expand(-1, 5, -1)
    recording = record(Placed(value, answer), {"x": tokens})
    (site,), _ = find_torch_sites(recording)
    assert turns_values(recording, site) is turns
