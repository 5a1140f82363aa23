"""Problems with an output gradient, and torch's own gradients of the golden."""

from __future__ import annotations

from typing import Any

import torch
from golden_problems import Case, Shape, core_case, layer_case, shapes
from hypothesis import strategies as st
from torch import Generator, Tensor

from conformance._golden import golden
from conformance.declare.promises import declare
from conformance.tolerance import Contract, contract_for
from conformance.tolerance.backward_pass import has_gradient_bounds


def contract(dtype: str = "float64", scale: float = 0.3, *, eager: bool = False) -> Contract:
    """A contract, by default for a scale that is no power of four."""
    options: dict[str, Any] = {"scores": "eager"} if eager else {}
    return contract_for(declare("core", **options), dtype, scale)


def semantics(point: object) -> golden.Semantics:
    """The same point of the copy of the golden that the package has loaded."""
    return golden.Semantics(**vars(point))


def attend(case: Case, point: golden.Semantics) -> golden.Attention:
    """The golden core for a generated case."""
    return golden.attend(*case.inputs, **case.keywords_at(point), semantics=point)


def output_gradient(shape: torch.Size, seed: int = 0) -> Tensor:
    """Independent normal float64."""
    generator = Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def differentiable(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Fresh leaves."""
    return {name: tensor.detach().clone().requires_grad_() for name, tensor in tensors.items()}


def core_cases() -> st.SearchStrategy[Case]:
    """Generated problems of the core."""
    return shapes().map(lambda shape: core_case(shape.changed(sinks=False)))


def layer_cases() -> st.SearchStrategy[Case]:
    """Generated problems of the layer, of whose gradients beside a memory nothing is known."""

    def without_memory(shape: Shape) -> Shape:
        return shape.changed(learned="") if shape.learned == "memory" else shape

    return shapes().map(lambda shape: layer_case(without_memory(shape).changed(sinks=False)))


def is_judged(attention: golden.Attention) -> bool:
    """Whether gradients of this evaluation have bounds."""
    rows = attention.semantics.empty_rows == "nan" and bool(attention.output.isnan().any())
    return has_gradient_bounds(attention.semantics) and not rows
