"""Mistakes in the gradients of a layer's weights and biases."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

import conformance

from ..eager import EagerLayer
from ._backward import HandWrittenLayer
from ._kit import layer


@layer("gradients.golden")
class OutputWeightsCut(EagerLayer):
    """The output matrix is detached, so that no gradient reaches it."""

    def project(self, tokens: Tensor, name: str) -> Tensor:
        if name != "o":
            return super().project(tokens, name)
        bias = self.weights.o_bias
        return torch.nn.functional.linear(tokens, self.weights.o.detach(), bias)


@layer("gradients.golden")
class MatrixGradientTransposed(HandWrittenLayer):
    """The gradient of a square matrix is transposed."""

    def matrix_gradient(self, gradient: Tensor, tokens: Tensor) -> Tensor:
        found = super().matrix_gradient(gradient, tokens)
        return found.mT if found.shape[0] == found.shape[1] else found


@layer("gradients.golden")
class BiasGradientAveraged(HandWrittenLayer):
    """The gradient of a bias is averaged over items and tokens instead of added up."""

    def bias_gradient(self, gradient: Tensor) -> Tensor:
        return gradient.mean(dim=(0, 1))


@layer("gradients.golden")
class MatrixGradientOfTheLastItem(HandWrittenLayer):
    """The gradient of a matrix is that of the last item: items overwrite each other."""

    def matrix_gradient(self, gradient: Tensor, tokens: Tensor) -> Tensor:
        return super().matrix_gradient(gradient[-1:], tokens[-1:])


@layer("gradients.golden")
class MatrixGradientAveraged(HandWrittenLayer):
    """The gradient of a matrix is averaged over the batch instead of added up."""

    def matrix_gradient(self, gradient: Tensor, tokens: Tensor) -> Tensor:
        return super().matrix_gradient(gradient, tokens) / gradient.shape[0]


@layer("gradients.golden")
class ValueBiasCut(EagerLayer):
    """The bias of the values is detached, so that no gradient reaches it."""

    def __init__(self, geometry: conformance.Geometry, weights: Any) -> None:
        super().__init__(geometry, weights)
        self.value_bias = None if weights.v_bias is None else weights.v_bias.detach()

    def project(self, tokens: Tensor, name: str) -> Tensor:
        if name != "v":
            return super().project(tokens, name)
        return torch.nn.functional.linear(tokens, self.weights.v, self.value_bias)
