"""Modules that are wrong before they are exported: the export is faithful, and so is wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.nn import functional

from ..exports import by_export, by_tracing
from ..exports.sources import SelfMultihead, seeded
from ._kit import PROGRAM, SOURCE, Plain, broken, cross, declare, own


class AlwaysDropping(Plain):
    """Drops weights out, whether it trains or not."""

    def weigh(self, scores: Tensor) -> Tensor:
        return functional.dropout(super().weigh(scores), 0.3, training=True)


class Dropping(Plain):
    """Drops weights out in training mode."""

    def __init__(self) -> None:
        super().__init__()
        self.dropout = nn.Dropout(0.3)

    def weigh(self, scores: Tensor) -> Tensor:
        dropped: Tensor = self.dropout(super().weigh(scores))
        return dropped


class ByQueryLength(Plain):
    """Scales by the number of queries, a wrong axis of the shape."""

    def scores(self, query: Tensor, key: Tensor) -> Tensor:
        scores: Tensor = query @ key.transpose(-1, -2) * query.shape[-2] ** -0.5
        return scores


class OtherwiseWhenExported(Plain):
    """Takes a way of its own under torch.export, which forgets the scale."""

    def scores(self, query: Tensor, key: Tensor) -> Tensor:
        if torch.compiler.is_exporting():
            return query @ key.transpose(-1, -2)
        return super().scores(query, key)


class HeadsByView(Plain):
    """Splits heads by a view of the tokens, without moving an axis."""

    def split(self, tokens: Tensor) -> Tensor:
        batch, length, width = tokens.shape
        return tokens.reshape(batch, 3, length, width // 3)


always_dropping: Final = seeded(AlwaysDropping)
dropping: Final = seeded(Dropping)
by_query_length: Final = seeded(ByQueryLength)
otherwise: Final = seeded(OtherwiseWhenExported)
heads_by_view: Final = seeded(HeadsByView)
length_first: Final = seeded(lambda: SelfMultihead(batch_first=False))


@broken("export.deterministic", source=always_dropping, step=SOURCE)
def dropout_always_on(path: Path) -> Path:
    """``functional.dropout(…, training=True)`` is exported as it runs: at random."""
    return by_tracing(cross(always_dropping), path)


@broken("export.deterministic", source=dropping)
def dropout_left_in(path: Path) -> Path:
    """Exported in training mode: the dropout is part of the graph."""
    options: dict[str, Any] = {"training": torch.onnx.TrainingMode.TRAINING}
    try:
        return by_tracing(cross(dropping), path, do_constant_folding=False, **options)
    finally:
        dropping.eval()


@broken("numerics.golden", source=by_query_length, step=SOURCE)
def scaled_by_the_number_of_queries(path: Path) -> Path:
    """The scale is taken from the wrong axis of the shape."""
    return by_tracing(cross(by_query_length), path)


@broken("numerics.golden", source=heads_by_view, step=SOURCE)
def heads_by_view_alone(path: Path) -> Path:
    """The heads are split by a view without a transpose, so that they mix tokens."""
    return by_tracing(cross(heads_by_view), path)


@broken("export.matches-source", source=otherwise, step=PROGRAM, alone=False)
def branch_for_the_exporter(path: Path) -> Path:
    """A branch that only an exporter takes forgets the scale."""
    return by_export(cross(otherwise), path)


@broken("equivariance.batch-independent", source=length_first, step=SOURCE)
def batch_and_length_mixed_up(path: Path) -> Path:
    """A module that expects the length first is given the batch first: items see each other."""
    by_export(own(length_first), path)
    return declare(path, 'inputs.x = {role = "x", axes = "BLE"}\noutputs.output = {axes = "BLE"}\n')
