"""Families of values for a core: each makes float64 query, key and value from normal draws.

``generic`` families have independent tokens, so that every bound applies; the others are
structured (ties, constants, positive data, saturated logits) and meet the worst case only.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import torch
from torch import Generator, Tensor

from conformance.problems.recipes import RECIPES

Three = tuple[Tensor, Tensor, Tensor]
Draws = Callable[..., Tensor]


@dataclass(frozen=True, kw_only=True)
class Family:
    """How query, key and value are made of three normal draws, a dtype's name and more draws."""

    make: Callable[[Tensor, Tensor, Tensor, str, Generator], Three]
    generic: bool


def normal(generator: Generator, *shape: int) -> Tensor:
    """Independent standard normal float64 values."""
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def _plain(change: Callable[[Tensor, Tensor, Tensor], Three], *, generic: bool) -> Family:
    return Family(make=lambda q, k, v, _dtype, _generator: change(q, k, v), generic=generic)


def _logits(size: float, half: float) -> Family:
    """Logits of a typical ``size``, in float16 of ``half``: its products overflow at 65504."""

    def make(q: Tensor, k: Tensor, v: Tensor, dtype: str, _: Generator) -> Three:
        root = (half if dtype == "float16" else size) ** 0.5
        return root * q, root * k, v

    return Family(make=make, generic=size <= GENERIC_LOGITS)


# Beyond this most weights are 0 or 1: saturated, and no longer like independent numbers.
GENERIC_LOGITS: Final = 30.0


def _by_dtype(factor: float, in_float16: float) -> Callable[[str], float]:
    return lambda dtype: in_float16 if dtype == "float16" else factor


def _cancelling(factor: Callable[[str], float]) -> Family:
    def make(q: Tensor, k: Tensor, v: Tensor, dtype: str, _: Generator) -> Three:
        signs = torch.ones(v.shape[-2], 1, dtype=v.dtype)
        signs[1::2] = -1.0
        return 0.05 * q, k, factor(dtype) * v.abs() * signs

    return Family(make=make, generic=True)


def _small(factor: Callable[[str], float]) -> Family:
    return Family(make=lambda q, k, v, dtype, _: (q, k, factor(dtype) * v), generic=False)


def _first(tokens: Tensor) -> Tensor:
    return tokens[..., :1, :].expand_as(tokens).clone()


def _wide(tokens: Tensor, generator: Generator) -> Tensor:
    sizes = torch.exp(2.0 * normal(generator, *tokens.shape[:-1], 1)).clamp(max=30.0)
    return tokens * sizes


def _outlier(tokens: Tensor) -> Tensor:
    """One channel a hundred times as large, like the massive activations of language models."""
    scaled = tokens.clone()
    scaled[..., 0] *= 100.0
    return scaled


def _sink(q: Tensor, k: Tensor, v: Tensor) -> Three:
    """The first key wins in every row and its value is small: an attention sink."""
    key, value = k.clone(), v.clone()
    key[..., 0, :] = 3.0
    value[..., 0, :] *= 0.1
    return q + 1.0, key, value


def _one_repeated_weight(q: Tensor, k: Tensor, v: Tensor) -> Three:
    """All keys but the first are one: one inexact weight is added up again and again."""
    key = k[..., -1:, :].expand_as(k).clone()
    key[..., 0, :] = 0.0
    return _first(q), key, v


def _lattice(q: Tensor, k: Tensor, v: Tensor, dtype: str, generator: Generator) -> Three:
    """Integers whose logits are near a thousand and nearly tied: rounded scores show."""
    del dtype

    def sparse(shape: torch.Size) -> Tensor:
        return (torch.rand(shape, generator=generator) < SPARSE).double()

    def signs(shape: torch.Size) -> Tensor:
        return 1.0 - 2.0 * torch.randint(0, 2, shape, generator=generator).double()

    row = torch.Size((1, 1, 1, q.shape[-1]))
    common = torch.randint(2, 7, row, generator=generator).double() * signs(row)
    query = 4.0 * common + sparse(q.shape) * signs(q.shape)
    return query, 4.0 * common + sparse(k.shape) * signs(k.shape), v


SPARSE: Final = 0.06


def _recipe(name: str) -> Family:
    recipe = RECIPES[name]

    def make(q: Tensor, k: Tensor, v: Tensor, _dtype: str, generator: Generator) -> Three:
        roles = (recipe.query, q), (recipe.key, k), (recipe.value, v)
        query, key, value = (maker(tuple(t.shape), generator) for maker, t in roles)
        return query, key, value

    return Family(make=make, generic=recipe.generic)


FAMILIES: Final[dict[str, Family]] = {
    "normal": _plain(lambda q, k, v: (q, k, v), generic=True),
    "logits to 30": _logits(30.0, 30.0),
    "wide scales": Family(
        make=lambda q, k, v, _, g: (_wide(q, g), _wide(k, g), _wide(v, g)), generic=True
    ),
    "outlier channel": _plain(lambda q, k, v: (_outlier(q) * 0.1, k, _outlier(v)), generic=True),
    "attention sink": _plain(_sink, generic=True),
    "cancelling values": _cancelling(_by_dtype(1e4, 100.0)),
    "offset values": _plain(lambda q, k, v: (q, k, v + 300.0), generic=True),
    "offset keys": _plain(lambda q, k, v: (q, k + 20.0, v), generic=True),
    "one repeated weight": _plain(_one_repeated_weight, generic=False),
    "ties": _plain(lambda q, k, v: (q, _first(k), v), generic=False),
    "constant": _plain(
        lambda q, k, v: (0.0 * q + 0.7, 0.0 * k + 0.3, 0.0 * v + 0.41), generic=False
    ),
    "positive": _plain(lambda q, k, v: (q.abs(), k.abs(), v.abs()), generic=False),
    "positive values": _plain(lambda q, k, v: (0.05 * q, k, v.abs() + 1.0), generic=False),
    "tiny values": _small(_by_dtype(1e-36, 1e-4)),
    "subnormal values": _small(_by_dtype(1e-41, 1e-6)),
    "logits to 1e3": _logits(1e3, 600.0),
    "one key wins": _logits(4e4, 1.2e3),
    "lattice": Family(make=_lattice, generic=False),
    **{f"recipe {name}": _recipe(name) for name in RECIPES},
}
