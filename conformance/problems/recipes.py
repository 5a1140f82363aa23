"""Value recipes: named distributions that expose faults hidden by ordinary values.

A recipe makes query, key and value tokens as float64 tensors, channels on the last axis and tokens
on the last but one; a recipe serves both heads ``[B, H, L, D]`` and layer inputs ``[B, L, E]``. In
ordinary recipes the logits stay below 1e5.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal

import torch
from torch import Generator, Tensor

# The part of a lattice point's channels that differ from the corner.
SPARSE: Final = 0.06
# The relative spread of the values of a channel that hardly vary.
SLIGHT: Final = 2.0**-6

Shape = tuple[int, ...]
Maker = Callable[[Shape, Generator], Tensor]


@dataclass(frozen=True, kw_only=True)
class ValueRecipe:
    """The makers of query, key and value, and the weights of a layer.

    ``generic`` means independent tokens with distinct logits: errors count as independent, and
    statistical bounds apply. ``weights`` are "normal", "integers", "selections" (each row picks an
    input) or "signed-selections" (perhaps with another sign): selections do not round, and expose
    the rounding of a layer's core.
    """

    query: Maker
    key: Maker
    value: Maker
    generic: bool
    weights: Literal["normal", "integers", "selections", "signed-selections"] = "normal"


def normal(shape: Shape, generator: Generator) -> Tensor:
    """Independent standard normal values."""
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def _times(factor: float) -> Maker:
    return lambda shape, generator: normal(shape, generator) * factor


def _positive(factor: float) -> Maker:
    return lambda shape, generator: (normal(shape, generator).abs() + 1.0) * factor


def _tied(shape: Shape, generator: Generator) -> Tensor:
    token = normal((*shape[:-2], 1, shape[-1]), generator)
    return token.expand(shape).clone()


def _dominant(shape: Shape, generator: Generator) -> Tensor:
    tokens = normal(shape, generator)
    if shape[-2] > 0:
        chosen = int(torch.randint(shape[-2], (1,), generator=generator))
        tokens[..., chosen, :] *= 20.0
    return tokens


def _cancelling(shape: Shape, generator: Generator) -> Tensor:
    signs = torch.ones(shape[-2], 1, dtype=torch.float64)
    signs[1::2] = -1.0
    return normal(shape, generator) + 1e4 * signs


def _mixed_scales(shape: Shape, generator: Generator) -> Tensor:
    """Neighbouring heads (or, for layer inputs, tokens) differ by factors of 100."""
    exponents = torch.arange(shape[1]).remainder(3).double() - 1.0
    factors = 10.0 ** (2.0 * exponents).reshape(-1, *([1] * (len(shape) - 2)))
    return normal(shape, generator) * factors


def _integers(shape: Shape, generator: Generator) -> Tensor:
    return torch.randint(-3, 4, shape, generator=generator).double()


def _lattice(apart: float) -> Maker:
    """Tokens near one corner of a lattice: logits are exact in half precision, and nearly tied.

    Corners that lie far apart make large logits.
    """

    def make(shape: Shape, generator: Generator) -> Tensor:
        corner = torch.randint(1, 5, (*shape[:-2], 1, shape[-1]), generator=generator).double()
        steps = torch.rand(shape, generator=generator) < SPARSE
        signs = torch.randint(0, 2, shape, generator=generator).double() * 2.0 - 1.0
        return apart * corner + steps * signs

    return make


def _alike(least: float, most: float, *, one_zero: bool = False) -> Maker:
    """Tokens with one number in all channels: sums of equal terms round in one direction.

    With ``one_zero`` all tokens of a head are equal, except a token of zeros.
    """

    def make(shape: Shape, generator: Generator) -> Tensor:
        tokens = 1 if one_zero else shape[-2]
        drawn = torch.rand((*shape[:-2], tokens, 1), generator=generator, dtype=torch.float64)
        made = (least + (most - least) * drawn).expand(shape).clone()
        if one_zero and shape[-2]:
            made[..., int(torch.randint(shape[-2], (1,), generator=generator)), :] = 0.0
        return made

    return make


def _hardly_varied(shape: Shape, generator: Generator) -> Tensor:
    """Positive numbers close to a mean for each channel."""
    channel = torch.rand((*shape[:-2], 1, shape[-1]), generator=generator, dtype=torch.float64)
    return (1.0 + channel) * (1.0 + SLIGHT * normal(shape, generator))


RECIPES: Final[dict[str, ValueRecipe]] = {
    "normal": ValueRecipe(query=normal, key=normal, value=normal, generic=True),
    "integers": ValueRecipe(
        query=_integers, key=_integers, value=_integers, generic=False, weights="integers"
    ),
    "large-logits": ValueRecipe(query=_times(25.0), key=_times(25.0), value=normal, generic=False),
    "negative-logits": ValueRecipe(
        query=_positive(1.0), key=_positive(-20.0), value=normal, generic=False
    ),
    "tied-keys": ValueRecipe(query=normal, key=_tied, value=normal, generic=False),
    "dominant-key": ValueRecipe(query=normal, key=_dominant, value=normal, generic=False),
    # Not generic: nearly equal weights are all rounded the same way.
    "nearly-uniform": ValueRecipe(query=_times(1e-3), key=normal, value=normal, generic=False),
    "cancelling": ValueRecipe(query=normal, key=normal, value=_cancelling, generic=False),
    "tiny": ValueRecipe(query=normal, key=normal, value=_times(1e-30), generic=False),
    "huge": ValueRecipe(query=normal, key=normal, value=_times(1e30), generic=False),
    "subnormal": ValueRecipe(query=normal, key=normal, value=_times(1e-40), generic=False),
    "mixed-scales": ValueRecipe(query=normal, key=normal, value=_mixed_scales, generic=True),
    # Decisive logits even if a candidate's own weights would keep logits near zero.
    "decisive": ValueRecipe(query=_times(4.0), key=_times(4.0), value=normal, generic=True),
    "plain-projections": ValueRecipe(
        query=normal, key=normal, value=normal, generic=True, weights="signed-selections"
    ),
    "nearly-tied": ValueRecipe(
        query=_lattice(6.0),
        key=_lattice(6.0),
        value=normal,
        generic=False,
        weights="selections",
    ),
    # If logits may be stored in half precision, only small logits can be told apart.
    "small-near-ties": ValueRecipe(
        query=_lattice(0.5),
        key=_lattice(0.5),
        value=normal,
        generic=False,
        weights="selections",
    ),
    # Many keys near the largest, with positive values: sums of weights, or of weighted values, in
    # a coarse format round every term in one direction.
    "long-sums": ValueRecipe(
        query=_alike(0.7, 1.3),
        key=_alike(-0.2, -0.1, one_zero=True),
        value=_hardly_varied,
        generic=False,
        weights="selections",
    ),
    # The same for sums over the channels of a dot product.
    "long-products": ValueRecipe(
        query=_alike(0.7, 1.3),
        key=_alike(1.0, 1.25),
        value=normal,
        generic=False,
        weights="selections",
    ),
}
# Recipes with a purpose of their own, which clauses choose by name.
PROBES: Final = (
    "decisive",
    "plain-projections",
    "nearly-tied",
    "small-near-ties",
    "long-sums",
    "long-products",
)
ORDINARY: Final = tuple(name for name in RECIPES if name not in PROBES)
# For answers that must change visibly: no values that hide every change.
LIVELY: Final = ("normal", "integers", "dominant-key", "mixed-scales")
HALF_PRECISION: Final = ("normal", "integers", "tied-keys", "nearly-uniform", *PROBES)
