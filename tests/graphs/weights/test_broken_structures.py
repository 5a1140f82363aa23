"""What is recovered of graphs whose structure is wrong, and what is said of it."""

from __future__ import annotations

from pathlib import Path

import attention_layers as layers
import pytest
import torch
from attention_layers import Layer, PerHead
from torch import Tensor, nn
from weight_graphs import Case, differing, export, find, tokens

from conformance.graphs.process import GraphProcess


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (layers.Interleaved, "cuts the query heads out of the matrix in another order"),
        (layers.Reinterpreted, "does not cut the query heads out of each token's own row"),
    ],
    ids=["interleaved", "reinterpreted"],
)
def test_heads_cut_otherwise_are_judged_by_the_files_rows(
    make: Case, said: str, tmp_path: Path
) -> None:
    """Head h owns rows h*D to (h+1)*D of what the file stores, whatever the graph does."""
    module = make()
    projections = find(export(tmp_path / "m.onnx", module, tokens(12, 12, 12)))
    assert differing(projections, module) == []
    assert any(said in sentence for sentence in projections.assumptions)


class Tiled(Layer):
    """Key heads handed out in turn, as ``repeat`` does, instead of in groups."""

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Attention with the wrong groups."""
        group = self.heads // self.kv_heads
        q = layers.cut(self.q(query), self.heads)
        k, v = (
            layers.cut(part(source), self.kv_heads).repeat(1, group, 1, 1)
            for part, source in ((self.k, key), (self.v, value))
        )
        projections: Tensor = self.o(layers.merged(self.attend(q, k, v)))
        return projections


def test_heads_handed_out_in_turn_are_noticed(tmp_path: Path) -> None:
    """The stored key heads are recovered, and the sentence says how the graph hands them out."""
    module = Tiled(heads=6, kv_heads=2)
    projections = find(export(tmp_path / "m.onnx", module, tokens(12, 12, 12)))
    assert differing(projections, module) == []
    assert projections.num_kv_heads == 2
    assert any("hands out the key heads in turn" in text for text in projections.assumptions)


class Merged(Layer):
    """Heads merged without being moved behind the queries."""

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Attention with a wrong merge."""
        q, k, v = (
            layers.cut(part(source), self.heads)
            for part, source in ((self.q, query), (self.k, key), (self.v, value))
        )
        projections: Tensor = self.o(self.attend(q, k, v).reshape(query.shape))
        return projections


def test_a_wrong_merge_is_noticed(tmp_path: Path) -> None:
    """The output projection is recovered behind a wrong merge, which is named."""
    module = Merged()
    projections = find(export(tmp_path / "m.onnx", module, tokens(12, 12, 12)))
    assert differing(projections, module) == []
    assert any("merges the heads without moving them" in text for text in projections.assumptions)


class Below(PerHead):
    """Heads put below one another, and one small matrix for all of them."""

    def __init__(self) -> None:
        super().__init__()
        self.o = nn.Linear(4, 6, bias=False)

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Three rows for each query."""
        heads = [
            layers.divided(q(query), k(key), v(value))
            for q, k, v in zip(self.q, self.k, self.v, strict=True)
        ]
        projections: Tensor = self.o(torch.cat(heads, dim=1))
        return projections


def test_heads_below_one_another_are_noticed(tmp_path: Path) -> None:
    """Every head's block of the output projection is the one matrix that all of them meet."""
    module = Below()
    projections = find(export(tmp_path / "m.onnx", module, tokens(12, 12, 12)))
    assert torch.equal(projections.weights.o, module.o.weight.detach().repeat(1, 3))
    assert any("below one another" in text for text in projections.assumptions)


class BakedBatch(Layer):
    """The number of items of the traced call in every reshape."""

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Attention of two items."""
        q, k, v = (
            part(source).view(2, -1, 3, 4).transpose(1, 2)
            for part, source in ((self.q, query), (self.k, key), (self.v, value))
        )
        projections: Tensor = self.o(layers.divided(q, k, v).transpose(1, 2).reshape(2, -1, 12))
        return projections


def test_a_baked_number_of_items_is_no_hindrance(tmp_path: Path) -> None:
    """A graph that runs at two items alone, though it says otherwise, is read at two."""
    module = BakedBatch()
    path = export(tmp_path / "m.onnx", module, tokens(12, 12, 12))
    projections = find(path, process=GraphProcess)
    assert differing(projections, module) == []


class Thrice(Layer):
    """The query handed over as key and value, too; the other inputs do not count."""

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Self-attention with two idle inputs."""
        return super().forward(query, query, query) + 0 * (key.sum() + value.sum())


def test_heads_of_the_wrong_tokens_are_noticed(tmp_path: Path) -> None:
    """The projections are read although their input is another one, which is said."""
    module = Thrice()
    projections = find(export(tmp_path / "m.onnx", module, tokens(12, 12, 12)))
    assert differing(projections, module) == []
    assert "the graph makes the key heads of the tokens of query" in projections.assumptions
