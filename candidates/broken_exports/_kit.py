"""How a broken export is declared, and the plain attention that most of them are made of."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import onnx
import torch
from torch import Tensor, nn

from ..exports import Input, Source
from ..exports.sources import NUM_HEADS, WIDTH, seeded

HEAD_SIZE: Final = WIDTH // NUM_HEADS
BIASED: Final = Input(name="mask", axes=("batch", 1, "queries", "keys"), kind="bias")
KEPT: Final = Input(name="mask", axes=("batch", 1, 1, "keys"), kind="keep")
DROPPED: Final = Input(name="mask", axes=("batch", 1, 1, "keys"), kind="drop")

# Where an answer first leaves its bound: in the module itself, in what torch.export makes of it, in
# the graph at the lowest level of optimisation, or at the highest.
SOURCE: Final = "source"
PROGRAM: Final = "exported program"
GRAPH: Final = "graph at the lowest level"
HIGHEST: Final = "graph at the highest level"
# Where the file is wrong and every answer is right.
NONE: Final = ""

DECLARED: Final[list[BrokenExport]] = []


@dataclass(frozen=True, kw_only=True, eq=False)
class BrokenExport:
    """One broken graph.

    clauses
        The MUST clauses that fail, whatever else does.
    step
        The step of the export to blame.
    source
        The module it claims to be an export of, for ``--source``.
    alone
        Whether the clauses fail without the source, too: some mistakes nobody can see without.
    promises
        What its owner declares of it, as for :func:`conformance.layer`.
    refused
        Whether onnxruntime cannot even open it, so that one sentence says so and nothing is judged.
    """

    name: str
    sentence: str
    clauses: tuple[str, ...]
    step: str
    source: nn.Module
    alone: bool
    promises: dict[str, str]
    refused: bool
    make: Callable[[Path], Path]


Maker = Callable[[Path], Path]


def broken(
    *clauses: str,
    source: nn.Module,
    step: str = GRAPH,
    alone: bool = True,
    refused: bool = False,
    **promises: str,
) -> Callable[[Maker], Maker]:
    """Declare ``made(path)``, which writes a broken graph to a path, under its own name."""

    def record(made: Maker) -> Maker:
        def make(folder: Path) -> Path:
            path = folder / f"{made.__name__}.onnx"
            return path if path.exists() else made(path)

        DECLARED.append(
            BrokenExport(
                name=made.__name__,
                sentence=" ".join(inspect.cleandoc(made.__doc__ or "").split()),
                clauses=clauses,
                step=step,
                source=source,
                alone=alone,
                promises=promises,
                refused=refused,
                make=make,
            )
        )
        return made

    return record


class Plain(nn.Module):
    """Multi-head attention in steps, keeping keys whose mask is 1; a subclass replaces a step."""

    def __init__(self) -> None:
        super().__init__()
        self.W_q = nn.Linear(WIDTH, WIDTH)
        self.W_k = nn.Linear(WIDTH, WIDTH)
        self.W_v = nn.Linear(WIDTH, WIDTH)
        self.W_o = nn.Linear(WIDTH, WIDTH)

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None
    ) -> Tensor:
        heads = (
            self.split(self.W_q(query)),
            self.split(self.W_k(key)),
            self.split(self.W_v(value)),
        )
        merged = self.merge(self.attend(*heads, mask))
        output: Tensor = self.W_o(merged)
        return output

    def attend(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Tensor:
        """``[B, H, L, D]`` each to the heads' outputs of that shape."""
        scores = self.scores(query, key)
        if mask is not None:
            scores = self.masked(scores, mask)
        return self.weigh(scores) @ value

    def split(self, tokens: Tensor) -> Tensor:
        """``[B, L, E]`` to ``[B, H, L, D]``."""
        batch, length, _ = tokens.shape
        return tokens.view(batch, length, NUM_HEADS, HEAD_SIZE).transpose(1, 2)

    def merge(self, heads: Tensor) -> Tensor:
        """``[B, H, L, D]`` to ``[B, L, E]``."""
        batch, _, length, _ = heads.shape
        return heads.transpose(1, 2).reshape(batch, length, WIDTH)

    def scores(self, query: Tensor, key: Tensor) -> Tensor:
        """``[B, H, Lq, Lk]``."""
        scores: Tensor = query @ key.transpose(-1, -2) * HEAD_SIZE**-0.5
        return scores

    def masked(self, scores: Tensor, mask: Tensor) -> Tensor:
        """The scores with minus infinity where the mask is 0."""
        return scores.masked_fill(mask == 0, float("-inf"))

    def weigh(self, scores: Tensor) -> Tensor:
        """The softmax over the keys."""
        return torch.softmax(scores, dim=-1)


class Own(Plain):
    """The same of one sequence."""

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:  # type: ignore[override]  # fewer inputs are the point
        return super().forward(x, x, x, mask)


def cross(module: nn.Module, mask: Input | None = None) -> Source:
    """A module of query, key and value, with or without a mask, as what is exported."""
    tokens = (
        Input(name="query", axes=("batch", "queries", WIDTH)),
        Input(name="key", axes=("batch", "keys", WIDTH)),
        Input(name="value", axes=("batch", "keys", WIDTH)),
    )
    return Source(
        name=type(module).__name__,
        module=module,
        inputs=tokens if mask is None else (*tokens, mask),
        outputs={"output": ("batch", "queries", WIDTH)},
    )


def own(module: nn.Module, mask: Input | None = None) -> Source:
    """A module of one sequence as what is exported."""
    tokens = (Input(name="x", axes=("batch", "tokens", WIDTH)),)
    return Source(
        name=type(module).__name__,
        module=module,
        inputs=tokens if mask is None else (*tokens, mask),
        outputs={"output": ("batch", "tokens", WIDTH)},
    )


plain: Final = seeded(Plain)
plain_own: Final = seeded(Own)


def declare(path: Path, text: str) -> Path:
    """Put a declaration beside a graph, as its owner would who knows what it is meant to be."""
    path.with_name(f"{path.stem}.conformance.toml").write_text(text, encoding="utf-8")
    return path


def node_of(model: onnx.ModelProto, operator: str, number: int = 0) -> onnx.NodeProto:
    """A node of an operator; raises IndexError when there are fewer."""
    nodes: list[onnx.NodeProto] = list(model.graph.node)
    return [node for node in nodes if node.op_type == operator][number]


def rewrite(path: Path, edit: Callable[[onnx.ModelProto], None]) -> Path:
    """Edit a graph in its file."""
    model = onnx.load(path)
    edit(model)
    onnx.save(model, path)
    return path
