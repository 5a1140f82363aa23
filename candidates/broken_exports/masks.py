"""Masks that mean something else in the graph than they did in the module."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import onnx
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import Tensor

from ..exports import Input, by_export, by_tracing
from ..exports import sources as exported
from ..exports.described import CROSS
from ..exports.sources import seeded
from ._kit import DROPPED, KEPT, SOURCE, Plain, broken, cross, declare, node_of, plain, rewrite

PER_QUERY: Final = Input(name="mask", axes=("batch", 1, "queries", "keys"), kind="keep")


class Dropping(Plain):
    """Masks where the mask is true."""

    def masked(self, scores: Tensor, mask: Tensor) -> Tensor:
        return scores.masked_fill(mask, float("-inf"))


class Adding(Plain):
    """Adds a mask of zeros and ones, as if it were a bias."""

    def masked(self, scores: Tensor, mask: Tensor) -> Tensor:
        return scores + mask


class AddingEarly(Plain):
    """Adds the bias before the scores are scaled."""

    def attend(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Tensor:
        biased = query @ key.transpose(-1, -2) + (0 if mask is None else mask)
        return torch.softmax(biased * query.shape[-1] ** -0.5, dim=-1) @ value


class AddingBias(Plain):
    """Adds the mask to the scaled scores."""

    def masked(self, scores: Tensor, mask: Tensor) -> Tensor:
        return scores + mask


class MaskingWeights(Plain):
    """Multiplies the weights by the mask, without dividing by their sum again."""

    def attend(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Tensor:
        weights = self.weigh(self.scores(query, key))
        return (weights if mask is None else weights * mask) @ value


dropping: Final = seeded(Dropping)
adding: Final = seeded(Adding)
adding_early: Final = seeded(AddingEarly)
adding_bias: Final = seeded(AddingBias)
masking_weights: Final = seeded(MaskingWeights)
BIAS: Final = Input(name="mask", axes=("batch", 1, "queries", "keys"), kind="bias")


@broken("export.matches-source", source=dropping, alone=False)
def polarity_flipped(path: Path) -> Path:
    """A conversion put a Not in front of a mask that says what to drop."""
    by_tracing(cross(dropping, DROPPED), path)

    def edit(model: onnx.ModelProto) -> None:
        for node in model.graph.node:
            node.input[:] = ["flipped" if name == "mask" else name for name in node.input]
        model.graph.node.insert(0, helper.make_node("Not", ["mask"], ["flipped"]))

    return rewrite(path, edit)


@broken("mask.golden", source=adding, step=SOURCE)
def integer_mask_added(path: Path) -> Path:
    """A 0/1 mask is added to the scores: kept keys gain one, and nothing is masked."""
    by_tracing(cross(adding, PER_QUERY), path)
    return declare(path, 'inputs.mask = {role = "keep_int"}\n')


@broken("mask.bias", source=adding_early, step=SOURCE)
def bias_added_before_scaling(path: Path) -> Path:
    """The bias is added before the scores are scaled, so it is scaled, too."""
    return by_tracing(cross(adding_early, BIAS), path)


@broken("mask.golden", source=masking_weights, step=SOURCE)
def mask_after_softmax(path: Path) -> Path:
    """The weights of masked keys are struck out, and the others no longer sum to one."""
    return by_tracing(cross(masking_weights, PER_QUERY), path)


@broken("mask.bias", source=adding_bias)
def bias_subtracted(path: Path) -> Path:
    """The Add that takes the mask became a Sub."""
    by_tracing(cross(adding_bias, BIAS), path)

    def edit(model: onnx.ModelProto) -> None:
        next(node for node in model.graph.node if "mask" in node.input).op_type = "Sub"

    return rewrite(path, edit)


@broken("export.matches-source", source=plain, alone=False)
def mask_of_the_first_item(path: Path) -> Path:
    """A Gather takes the first item's mask for all, left over from a squeezed batch."""
    by_tracing(cross(plain, KEPT), path)

    def edit(model: onnx.ModelProto) -> None:
        for node in model.graph.node:
            node.input[:] = ["first" if name == "mask" else name for name in node.input]
        model.graph.initializer.append(helper.make_tensor("zero", TensorProto.INT64, [1], [0]))
        gather = helper.make_node("Gather", ["mask", "zero"], ["first"], axis=0)
        model.graph.node.insert(0, gather)

    return rewrite(path, edit)


@broken("export.dynamic-length", source=exported.cross_padding)
def padding_refused(path: Path) -> Path:
    """From opset 23 on, torch writes a padding mask that onnxruntime's Attention refuses."""
    source = next(source for source in CROSS if source.name == "cross_padding")
    return by_export(source, path, opset=23)


@broken("mask.golden", source=plain)
def comparison_by_less_than_two(path: Path) -> Path:
    """The comparison of the mask with 0 got another constant, and everything is masked alike."""
    by_tracing(cross(plain, KEPT), path)

    def edit(model: onnx.ModelProto) -> None:
        compared = node_of(model, "Equal").input[1]
        for node in model.graph.node:
            if compared in node.output:
                two = numpy_helper.to_array(node.attribute[0].t) + 2
                node.attribute[0].t.CopyFrom(numpy_helper.from_array(two, ""))

    return rewrite(path, edit)
