"""Graphs that onnxruntime's transformer optimizer rewrote, for their model or for another."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import onnx
import torch
from onnx import helper
from onnxruntime.transformers import optimizer
from torch import Tensor, nn

from ..exports import Input, Source, by_tracing
from ..exports._exporting import quiet
from ..exports.sources import seeded
from ._kit import broken, node_of, rewrite

WIDTH: Final = 32
HEADS: Final = 4


class BertAttention(nn.Module):
    """Self-attention as in BERT; the mask is 1 where a token may be attended."""

    def __init__(self) -> None:
        super().__init__()
        self.query = nn.Linear(WIDTH, WIDTH)
        self.key = nn.Linear(WIDTH, WIDTH)
        self.value = nn.Linear(WIDTH, WIDTH)
        self.dense = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        query, key, value = (
            self._split(projection(x)) for projection in (self.query, self.key, self.value)
        )
        scores = query @ key.transpose(-1, -2) / (WIDTH // HEADS) ** 0.5
        scores = scores + (1.0 - mask[:, None, None, :].float()) * -10000.0
        context = (torch.softmax(scores, dim=-1) @ value).permute(0, 2, 1, 3).contiguous()
        attended: Tensor = self.dense(context.view(x.shape[0], x.shape[1], WIDTH))
        return attended

    def _split(self, tokens: Tensor) -> Tensor:
        shape = (tokens.shape[0], tokens.shape[1], HEADS, WIDTH // HEADS)
        return tokens.view(shape).permute(0, 2, 1, 3)


class Block(nn.Module):
    """The attention with what surrounds it in BERT, by which the optimizer knows it."""

    def __init__(self, attention: BertAttention) -> None:
        super().__init__()
        self.attention = attention
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        normed: Tensor = self.norm(self.attention(x, mask) + x)
        return normed


bert_attention: Final = seeded(BertAttention)
SOURCE: Final = Source(
    name="bert_attention",
    module=Block(bert_attention).eval(),
    inputs=(
        Input(name="x", axes=("batch", "tokens", WIDTH)),
        Input(name="mask", axes=("batch", "tokens"), kind="keep"),
    ),
    outputs={"output": ("batch", "tokens", WIDTH)},
)


def _optimised(path: Path, model_type: str) -> Path:
    by_tracing(SOURCE, path, opset=14)
    with quiet():
        fused = optimizer.optimize_model(
            str(path), model_type=model_type, num_heads=HEADS, hidden_size=WIDTH, opt_level=0
        )
        fused.save_model_to_file(str(path))
    return rewrite(path, _without_norm)


def _without_norm(model: onnx.ModelProto) -> None:
    """Cut the attention out of its block: what was normed is its answer, with the bias."""
    norm = node_of(model, "SkipLayerNormalization")
    projected, bias = next(name for name in norm.input[:2] if name != "x"), norm.input[-1]
    model.graph.node.remove(norm)
    model.graph.node.append(helper.make_node("Add", [projected, bias], ["output"]))


@broken("export.matches-source", source=bert_attention, alone=False)
def mask_dropped_by_fusion(path: Path) -> Path:
    """The optimizer, told that this is a vision transformer, fuses attention without its mask."""
    return _optimised(path, "vit")


@broken("export.matches-source", source=bert_attention, alone=False)
def mask_misread_by_fusion(path: Path) -> Path:
    """The optimizer's fused operator counts what the mask keeps, and keeps as many first keys."""
    return _optimised(path, "bert")
