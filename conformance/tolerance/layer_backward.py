"""The backward pass of the layer: what each stage's bound starts from."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from conformance._golden import golden

from .contract import Contract
from .golden_gradients import GoldenGradients, golden_gradients
from .keys import sum_groups, unmerge_heads, unsplit_heads
from .prepared_gradients import as_met, pulled_back


@dataclass(frozen=True, kw_only=True, eq=False)
class Part:
    """One of the three input projections, all float64.

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
    weights: golden.ProjectionWeights
    semantics: golden.Semantics
    contract: Contract
    output_gradient: Tensor
    output_matrix: Tensor | None
    output_width: int
    output_bias: bool
    gradients: GoldenGradients
    heads: dict[str, Tensor]
    parts: dict[str, Part]

    @property
    def num_kv_heads(self) -> int:
        """The number of key/value heads."""
        return self.parts["k"].num_heads

    def tokens(self) -> tuple[Tensor, Tensor, Tensor]:
        """The inputs of the layer."""
        return self.parts["q"].tokens, self.parts["k"].tokens, self.parts["v"].tokens


def layer_backward(
    layer: golden.MultiHeadAttention,
    tokens: dict[str, Tensor],
    weights: golden.ProjectionWeights,
    semantics: golden.Semantics,
    output_gradient: Tensor,
    contract: Contract,
) -> LayerBackward:
    """Evaluate it. Raises ValueError at a point of the semantics that has no bound."""
    core, matrix = layer.core, None
    merged = output_gradient
    if weights.o is not None:
        matrix = weights.o[:, : layer.merged.shape[-1]].double()
        merged = output_gradient @ matrix
    heads = unmerge_heads(merged, core.output.shape, semantics)
    gradients = golden_gradients(as_met(core), heads)
    query_heads, key_heads = pulled_back(core, gradients)
    by_head = {"q": query_heads, "k": key_heads, "v": gradients.value}
    num_kv_heads = weights.v.shape[0] // core.value.shape[-1]
    return LayerBackward(
        layer=layer,
        weights=weights,
        semantics=semantics,
        contract=contract,
        output_gradient=output_gradient,
        output_matrix=matrix,
        output_width=0 if weights.o is None else weights.o.shape[1],
        output_bias=weights.o_bias is not None and semantics.output_bias,
        gradients=gradients,
        heads=by_head,
        parts=_parts(by_head, tokens, weights, num_kv_heads, semantics),
    )


def _parts(
    heads: dict[str, Tensor],
    tokens: dict[str, Tensor],
    weights: golden.ProjectionWeights,
    num_kv_heads: int,
    semantics: golden.Semantics,
) -> dict[str, Part]:
    counts = {"q": heads["q"].shape[1], "k": num_kv_heads, "v": num_kv_heads}
    names = {"q": "query", "k": "key", "v": "value"}
    parts = {}
    for name, gradient in heads.items():
        grouped = sum_groups(gradient, counts[name], semantics)
        parts[name] = Part(
            input_name=names[name],
            tokens=tokens[name],
            matrix=getattr(weights, name).double(),
            gradient=unsplit_heads(grouped, semantics),
            num_heads=counts[name],
            bias=getattr(weights, f"{name}_bias") is not None
            and getattr(semantics, f"{names[name]}_bias"),
        )
    return parts


def ones_like_tokens(tokens: Tensor) -> Tensor:
    """What a bias is multiplied by: ``[B, L, 1]``."""
    return torch.ones(*tokens.shape[:-1], 1, dtype=torch.float64)
