"""The tensors of probes: lively numbers, sizes that all differ, telling masks."""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from ..._golden import golden
from ...base.geometry import Geometry
from ...problems.inputs import Inputs

DTYPES = {
    "float64": torch.float64,
    "float32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
}
# Pairwise different, so that no axis can stand in for another.
FREE = Geometry(
    batch=2,
    num_heads=3,
    num_kv_heads=3,
    query_length=4,
    key_length=6,
    head_size=5,
    value_head_size=7,
    query_size=11,
    key_size=13,
    value_size=8,
    output_size=9,
)


def draw(
    geometry: Geometry,
    *,
    kind: str,
    mode: str = "separate",
    batched: bool = True,
    dtype: str = "float32",
    seed: int = 0,
    weights: golden.ProjectionWeights | None = None,
) -> Inputs:
    """Normal tokens (or heads) of a geometry; one object where the mode says that they are one."""
    generator = torch.Generator().manual_seed(1 + seed)
    shapes = _shapes(geometry, kind)
    query, key, value = (
        torch.randn(shape, generator=generator, dtype=torch.float64).to(DTYPES[dtype])
        for shape in shapes
    )
    if mode != "separate":
        value = key
    if mode == "self":
        query = key
    return Inputs(
        geometry=geometry,
        mode=mode,  # type: ignore[arg-type]  # one of the three
        batched=batched,
        query=query,
        key=key,
        value=value,
        weights=weights,
    )


def _shapes(geometry: Geometry, kind: str) -> tuple[tuple[int, ...], ...]:
    batch, queries, keys = geometry.batch, geometry.query_length, geometry.key_length
    if kind != "core":
        return (
            (batch, queries, geometry.query_size),
            (batch, keys, geometry.key_size),
            (batch, keys, geometry.value_size),
        )
    return (
        (batch, geometry.num_heads, queries, geometry.head_size),
        (batch, geometry.num_kv_heads, keys, geometry.head_size),
        (batch, geometry.num_kv_heads, keys, geometry.value_head_size),
    )


def draw_weights(
    geometry: Geometry, biases: str, *, dtype: str, seed: int
) -> golden.ProjectionWeights:
    """Projections that keep unit size, with the biases of some roles (``"qkvo"`` for all)."""
    generator = torch.Generator().manual_seed(100 + seed)
    rows = {
        "q": (geometry.num_heads * geometry.head_size, geometry.query_size),
        "k": (geometry.num_kv_heads * geometry.head_size, geometry.key_size),
        "v": (geometry.num_kv_heads * geometry.value_head_size, geometry.value_size),
        "o": (geometry.output_size, geometry.num_heads * geometry.value_head_size),
    }

    def number(*shape: int) -> Tensor:
        drawn = torch.randn(shape, generator=generator, dtype=torch.float64)
        return (drawn / shape[-1] ** 0.5 if len(shape) > 1 else drawn).to(DTYPES[dtype])

    tensors = {role: number(*shape) for role, shape in rows.items()}
    drawn = {f"{role}_bias": number(shape[0]) for role, shape in rows.items()}
    kept = {name: tensor for name, tensor in drawn.items() if name[0] in biases}
    return golden.ProjectionWeights(**tensors, **kept)


def in_dtype(
    weights: golden.ProjectionWeights | None, dtype: str
) -> golden.ProjectionWeights | None:
    """The same projections in a dtype."""
    if weights is None:
        return None
    tensors = {field.name: getattr(weights, field.name) for field in dataclasses.fields(weights)}
    present = {name: one.to(DTYPES[dtype]) for name, one in tensors.items() if one is not None}
    return golden.ProjectionWeights(**present)


def letter_sizes(letters: str, geometry: Geometry) -> tuple[int, ...]:
    """The four sizes of a canonical mask that varies along the axes of some letters."""
    full = {
        "B": geometry.batch,
        "H": geometry.num_heads,
        "Q": geometry.query_length,
        "K": geometry.key_length,
    }
    if letters in ("B", "BQ", "Q", ""):  # lengths speak of keys without a letter for them
        letters += "K"
    return tuple(full[axis] if axis in letters else 1 for axis in "BHQK")


def random_keep(letters: str, geometry: Geometry, *, seed: int = 0) -> Tensor:
    """A mask each of whose rows keeps some keys and hides some."""
    sizes = letter_sizes(letters, geometry)
    generator = torch.Generator().manual_seed(7 + seed)
    keys = sizes[-1]
    ranks = torch.rand(sizes, generator=generator).argsort(-1).argsort(-1)
    kept = torch.randint(1, max(2, keys), (*sizes[:-1], 1), generator=generator)
    return ranks < kept


def prefix_keep(letters: str, geometry: Geometry, *, seed: int = 0) -> Tensor:
    """The first keys of each row, by lengths from 1 on that differ from row to row."""
    sizes = letter_sizes(letters, geometry)
    rows = torch.arange(sizes[0] * sizes[2]).reshape(sizes[0], 1, sizes[2], 1) + seed
    return torch.arange(sizes[-1]) < 1 + rows % max(1, sizes[-1] - 1)


def masked(inputs: Inputs, form: str, shape: str, keep: Tensor) -> Inputs:
    """The same problem with a mask handed over in a form and shape."""
    return inputs.replace(keep=keep, mask_form=form, mask_shape=shape)
