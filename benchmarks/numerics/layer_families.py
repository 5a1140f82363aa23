"""Families of tokens and projection weights for a layer; tags as in ``families``."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

import torch
from torch import Generator, Tensor

from .families import SPARSE, normal


@dataclass(frozen=True, kw_only=True, eq=False)
class Drawn:
    """Float64 tokens ``x [B, Lq, E]``, ``context [B, Lk, E]``, matrices by role, biases by role."""

    x: Tensor
    context: Tensor
    matrices: dict[str, Tensor]
    biases: dict[str, Tensor]

    def scaled(self, **factors: float) -> Drawn:
        """With the matrices of some roles multiplied."""
        matrices = {role: m * factors.get(role, 1.0) for role, m in self.matrices.items()}
        return replace(self, matrices=matrices)

    def biased(self, **biases: Tensor) -> Drawn:
        """With the biases of some roles replaced."""
        return replace(self, biases={**self.biases, **biases})


@dataclass(frozen=True, kw_only=True)
class LayerFamily:
    """A change of normal draws, given the dtype's name and a generator for more."""

    change: Callable[[Drawn, str, Generator], Drawn]
    generic: bool


def draw(
    batch: int, queries: int, keys: int, widths: dict[str, tuple[int, int]], generator: Generator
) -> Drawn:
    """Normal tokens, matrices ``(out, in)`` that keep their size, biases half as large."""
    width = widths["q"][1]
    x = normal(generator, batch, queries, width)
    context = x.clone() if queries == keys else normal(generator, batch, keys, width)
    matrices = {
        role: normal(generator, *shape) / math.sqrt(shape[1]) for role, shape in widths.items()
    }
    biases = {role: 0.5 * normal(generator, shape[0]) for role, shape in widths.items()}
    return Drawn(x=x, context=context, matrices=matrices, biases=biases)


def _plain(change: Callable[[Drawn], Drawn], *, generic: bool) -> LayerFamily:
    return LayerFamily(change=lambda drawn, _dtype, _generator: change(drawn), generic=generic)


def _constant(drawn: Drawn) -> Drawn:
    entries = {"q": 0.3, "k": 0.37, "v": 0.41, "o": 0.53}
    matrices = {
        role: torch.full_like(m, entries[role] / math.sqrt(m.shape[1]))
        for role, m in drawn.matrices.items()
    }
    x, context = torch.full_like(drawn.x, 0.7), torch.full_like(drawn.context, 0.7)
    return replace(drawn, x=x, context=context, matrices=matrices)


def _positive(drawn: Drawn) -> Drawn:
    matrices = {role: m.abs() for role, m in drawn.matrices.items()}
    matrices["q"] = matrices["q"] / math.sqrt(matrices["q"].shape[1])
    return replace(drawn, x=drawn.x.abs(), context=drawn.context.abs(), matrices=matrices)


def _ties(drawn: Drawn) -> Drawn:
    return replace(drawn, context=drawn.context[:, :1].expand_as(drawn.context).clone())


def _wide(drawn: Drawn, _dtype: str, generator: Generator) -> Drawn:
    def sized(tokens: Tensor) -> Tensor:
        sizes = torch.exp(2.0 * normal(generator, *tokens.shape[:-1], 1)).clamp(max=30.0)
        return tokens * sizes

    return replace(drawn, x=sized(drawn.x), context=sized(drawn.context)).scaled(q=0.3, k=0.3)


def _outlier(drawn: Drawn) -> Drawn:
    x, context = drawn.x.clone(), drawn.context.clone()
    x[..., 0] *= 100.0
    context[..., 0] *= 100.0
    return replace(drawn, x=x, context=context).scaled(q=0.05, k=0.05)


def _sink(drawn: Drawn) -> Drawn:
    context = drawn.context.clone()
    context[:, 0] = 8.0 * drawn.x.mean(dim=1) + 3.0
    return replace(drawn, context=context)


def _small(factor: float, in_float16: float) -> LayerFamily:
    def change(drawn: Drawn, dtype: str, _generator: Generator) -> Drawn:
        size = in_float16 if dtype == "float16" else factor
        value, output = drawn.biases["v"] * size, drawn.biases["o"] * 0.0
        return drawn.scaled(v=size).biased(v=value, o=output)

    return LayerFamily(change=change, generic=False)


def _logits(size: float, in_float16: float, *, generic: bool) -> LayerFamily:
    def change(drawn: Drawn, dtype: str, _generator: Generator) -> Drawn:
        root = math.sqrt(in_float16 if dtype == "float16" else size)
        return drawn.scaled(q=root, k=root)

    return LayerFamily(change=change, generic=generic)


def _exact(drawn: Drawn, generator: Generator) -> Drawn:
    """Signed permutations without biases where matrices are square: they round nothing."""

    def permuted(matrix: Tensor) -> Tensor:
        rows, columns = matrix.shape
        chosen = torch.randperm(columns, generator=generator)[:rows]
        signs = 1.0 - 2.0 * torch.randint(0, 2, (rows, 1), generator=generator).double()
        return torch.eye(columns, dtype=torch.float64)[chosen] * signs

    matrices = {role: permuted(m) for role, m in drawn.matrices.items()}
    return replace(drawn, matrices=matrices, biases={})


def _exact_lattice(drawn: Drawn, _dtype: str, generator: Generator) -> Drawn:
    """Exact projections of integers whose logits are near a thousand and nearly tied."""
    exact = _exact(drawn, generator)
    for role in ("q", "k"):
        rows, columns = exact.matrices[role].shape
        exact.matrices[role] = torch.eye(columns, dtype=torch.float64)[:rows]
    width = drawn.x.shape[-1]
    common = torch.randint(2, 7, (1, 1, width), generator=generator).double()
    common = 4.0 * common * (1.0 - 2.0 * torch.randint(0, 2, (width,), generator=generator))

    def near(shape: torch.Size) -> Tensor:
        signs = 1.0 - 2.0 * torch.randint(0, 2, shape, generator=generator).double()
        return common + signs * (torch.rand(shape, generator=generator) < SPARSE)

    return replace(exact, x=near(drawn.x.shape), context=near(drawn.context.shape))


def _exact_positive(drawn: Drawn, _dtype: str, generator: Generator) -> Drawn:
    exact = _exact(drawn, generator)
    return replace(exact, x=0.05 * drawn.x, context=drawn.context.abs() + 1.0)


LAYER_FAMILIES: Final[dict[str, LayerFamily]] = {
    "normal": _plain(lambda drawn: drawn, generic=True),
    "no biases": _plain(lambda drawn: replace(drawn, biases={}), generic=True),
    "logits to 30": _logits(30.0, 30.0, generic=True),
    "wide scales": LayerFamily(change=_wide, generic=True),
    "outlier channel": _plain(_outlier, generic=True),
    "attention sink": _plain(_sink, generic=True),
    "offset values": _plain(
        lambda drawn: drawn.biased(v=torch.full_like(drawn.biases["v"], 300.0)), generic=True
    ),
    "offset keys": _plain(
        lambda drawn: drawn.biased(k=torch.full_like(drawn.biases["k"], 20.0)), generic=True
    ),
    "exact projections": LayerFamily(
        change=lambda drawn, _, generator: _exact(drawn, generator), generic=True
    ),
    "exact lattice": LayerFamily(change=_exact_lattice, generic=False),
    "exact positive": LayerFamily(change=_exact_positive, generic=False),
    "ties": _plain(_ties, generic=False),
    "constant": _plain(_constant, generic=False),
    "positive": _plain(_positive, generic=False),
    "tiny values": _small(1e-36, 1e-4),
    "subnormal values": _small(1e-41, 1e-6),
    "logits to 1e3": _logits(1e3, 600.0, generic=False),
    "one key wins": _logits(4e4, 1.2e3, generic=False),
}
