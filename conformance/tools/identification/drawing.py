"""The tensors of probes: normal numbers, sizes that all differ, masks."""

from __future__ import annotations

import torch
from torch import Tensor

from ..._golden import golden
from ...base.geometry import Geometry
from ...problems.inputs import Inputs
from ...problems.materialise import TORCH_DTYPES, projection_shapes, token_shapes

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
    """Normal tokens (or heads) of a geometry; inputs that a mode shares are the same object."""
    generator = torch.Generator().manual_seed(1 + seed)
    shapes = token_shapes(geometry, layer=kind != "core")
    query, key, value = (
        torch.randn(shape, generator=generator, dtype=torch.float64).to(TORCH_DTYPES[dtype])
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


def draw_weights(
    geometry: Geometry, biases: str, *, dtype: str, seed: int
) -> golden.ProjectionWeights:
    """Projections that keep unit size, with the biases of some roles (``"qkvo"`` for all)."""
    generator = torch.Generator().manual_seed(100 + seed)
    rows = projection_shapes(geometry)

    def number(*shape: int) -> Tensor:
        drawn = torch.randn(shape, generator=generator, dtype=torch.float64)
        return (drawn / shape[-1] ** 0.5 if len(shape) > 1 else drawn).to(TORCH_DTYPES[dtype])

    tensors = {role: number(*shape) for role, shape in rows.items()}
    drawn = {f"{role}_bias": number(shape[0]) for role, shape in rows.items()}
    kept = {name: tensor for name, tensor in drawn.items() if name[0] in biases}
    return golden.ProjectionWeights(**tensors, **kept)


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


def draw_keep(form: str, letters: str, geometry: Geometry, *, seed: int = 0) -> Tensor:
    """A mask for a form: for lengths the first keys of each row, by lengths that differ."""
    if form != "lengths":
        return random_keep(letters, geometry, seed=seed)
    sizes = letter_sizes(letters, geometry)
    rows = torch.arange(sizes[0] * sizes[2]).reshape(sizes[0], 1, sizes[2], 1) + seed
    return torch.arange(sizes[-1]) < 1 + rows % max(1, sizes[-1] - 1)


def masked(inputs: Inputs, form: str, shape: str, keep: Tensor | int = 0) -> Inputs:
    """Inputs with a mask in a form and shape; ``keep`` may be the seed of a drawn one."""
    if isinstance(keep, int):
        keep = draw_keep(form, shape, inputs.geometry, seed=keep)
    return inputs.replace(keep=keep, mask_form=form, mask_shape=shape)
