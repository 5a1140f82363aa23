"""Builds a wrapped module on drawn float64 weights and holds it against the golden reference."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from conformance._golden import golden
from conformance.adapters.packing import HeadSizes
from conformance.adapters.projection_search import agrees
from conformance.base.geometry import Geometry
from conformance.declare.candidate import Candidate

BASE = Geometry(
    batch=2,
    num_heads=3,
    num_kv_heads=3,
    query_length=5,
    key_length=7,
    head_size=4,
    value_head_size=4,
    query_size=12,
    key_size=12,
    value_size=12,
    output_size=12,
)


def drawn_weights(geometry: Geometry, semantics: golden.Semantics) -> golden.ProjectionWeights:
    """Normal weights, with the biases that the point has."""
    generator = torch.Generator().manual_seed(7)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    rows = {
        "q": (geometry.num_heads * geometry.head_size, geometry.query_size, semantics.query_bias),
        "k": (geometry.num_kv_heads * geometry.head_size, geometry.key_size, semantics.key_bias),
        "v": (
            geometry.num_kv_heads * geometry.value_head_size,
            geometry.value_size,
            semantics.value_bias,
        ),
        "o": (
            geometry.output_size,
            geometry.num_heads * geometry.value_head_size,
            semantics.output_bias,
        ),
    }
    drawn = {role: normal(out, width) / width**0.5 for role, (out, width, _) in rows.items()}
    biases = {f"{role}_bias": normal(out) for role, (out, _, present) in rows.items() if present}
    return golden.ProjectionWeights(**drawn, **biases)


def drawn_inputs(geometry: Geometry, inputs: str) -> tuple[Tensor, Tensor, Tensor]:
    """Normal query, key and value; one tensor where the candidate takes one for several."""
    generator = torch.Generator().manual_seed(8)
    size = {"generator": generator, "dtype": torch.float64}
    query = torch.randn(geometry.batch, geometry.query_length, geometry.query_size, **size)
    if inputs == "self":
        return query, query, query
    key = torch.randn(geometry.batch, geometry.key_length, geometry.key_size, **size)
    value = torch.randn(geometry.batch, geometry.key_length, geometry.value_size, **size)
    return query, key, (key if inputs == "memory" else value)


def is_golden(candidate: Candidate, base: Geometry = BASE, *, dtype: str = "float64") -> bool:
    """Whether a wrapped module answers as the golden reference does, within the derived bound."""
    declaration = candidate.declaration
    geometry = declaration.pins.apply(base)
    weights = candidate.fixed_weights or drawn_weights(geometry, declaration.semantics)
    forward = candidate(geometry, weights)
    assert isinstance(forward, nn.Module)
    forward = forward.eval().double()
    inputs = drawn_inputs(geometry, declaration.inputs)
    with torch.no_grad():
        output = forward(*inputs[: len(declaration.positional)])
    return agrees(output, inputs, weights, sizes_of(geometry), declaration.semantics, dtype)


def sizes_of(geometry: Geometry) -> HeadSizes:
    """The head sizes of a geometry."""
    names = ("num_heads", "num_kv_heads", "head_size", "value_head_size")
    sizes: dict[str, Any] = {name: getattr(geometry, name) for name in names}
    return HeadSizes(**sizes)


def assumed(candidate: Candidate, text: str) -> bool:
    """Whether a text is among what is assumed of a module."""
    return any(text in assumption for assumption in candidate.declaration.assumptions)
