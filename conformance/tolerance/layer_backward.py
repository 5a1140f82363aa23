"""The backward pass of the layer: what each stage's bound starts from."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from conformance._golden import golden

from .backward_pass import BackwardPass, backward_pass
from .contract import Contract
from .prepared_gradients import as_prepared, pulled_back
from .visible_keys import sum_groups, unmerge_heads, unsplit_heads


@dataclass(frozen=True, kw_only=True, eq=False)
class ProjectionGradient:
    """The backward pass of one of the three input projections, all float64.

    ``tokens [B, L, in]`` are its input (named ``input_name``), ``matrix [out, in]`` its matrix,
    ``gradient [B, L, out]`` the gradient of its output, ``num_heads`` its heads; ``bias`` says
    whether it has one that takes part.
    """

    input_name: str
    tokens: Tensor
    matrix: Tensor
    gradient: Tensor
    num_heads: int
    bias: bool


@dataclass(frozen=True, kw_only=True, eq=False)
class LayerBackward:
    """Golden values of the backward pass: parts "q", "k", "v", the core's and the output's.

    ``gradients`` are those of the heads as they meet, ``heads`` (by "q", "k", "v") those of the
    projected ones, for each query head: turned back and behind their normalisation.
    """

    layer: golden.MultiHeadAttention
    contract: Contract
    output_gradient: Tensor
    output_matrix: Tensor | None
    output_width: int
    output_bias: bool
    gradients: BackwardPass
    heads: dict[str, Tensor]
    parts: dict[str, ProjectionGradient]

    @property
    def semantics(self) -> golden.Semantics:
        """The point of the layer."""
        return self.layer.core.semantics

    @property
    def num_kv_heads(self) -> int:
        """The number of key/value heads."""
        return self.parts["k"].num_heads

    def widened(self, product: Tensor) -> Tensor:
        """A gradient of the output matrix with zeros in the columns that no head meets."""
        return pad(product, (0, self.output_width - product.shape[-1]))


def layer_backward(
    layer: golden.MultiHeadAttention, output_gradient: Tensor, contract: Contract
) -> LayerBackward:
    """Evaluate it. Raises ValueError at a point of the semantics that has no bound."""
    core, weights, matrix = layer.core, layer.weights, None
    merged = output_gradient
    if weights.o is not None:
        matrix = weights.o[:, : layer.merged.shape[-1]]
        merged = output_gradient @ matrix
    heads = unmerge_heads(merged, core.output.shape, core.semantics)
    gradients = backward_pass(as_prepared(core), heads)
    query_heads, key_heads = pulled_back(core, gradients)
    by_head = {"q": query_heads, "k": key_heads, "v": gradients.value}
    num_kv_heads = weights.v.shape[0] // core.value.shape[-1]
    parts = {}
    for place, (name, gradient) in enumerate(by_head.items()):
        count = gradient.shape[1] if name == "q" else num_kv_heads
        grouped = sum_groups(gradient, count, core.semantics)
        parts[name] = ProjectionGradient(
            input_name=("query", "key", "value")[place],
            tokens=layer.tokens[place],
            matrix=getattr(weights, name),
            gradient=unsplit_heads(grouped, core.semantics),
            num_heads=count,
            bias=getattr(weights, f"{name}_bias") is not None,
        )
    return LayerBackward(
        layer=layer,
        contract=contract,
        output_gradient=output_gradient,
        output_matrix=matrix,
        output_width=0 if weights.o is None else weights.o.shape[1],
        output_bias=weights.o_bias is not None,
        gradients=gradients,
        heads=by_head,
        parts=parts,
    )


def ones_like_tokens(tokens: Tensor) -> Tensor:
    """What a bias is multiplied by: ``[B, L, 1]``."""
    return torch.ones(*tokens.shape[:-1], 1, dtype=torch.float64)
