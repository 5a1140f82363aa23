"""Variances of sums whose terms are off together: squares of linear forms, without their tables.

Every function takes tensors with the leading axes ``[B, H]``.
"""

from __future__ import annotations

import torch
from torch import Tensor

from . import model


def independent_columns(
    variance: Tensor, terms: tuple[Tensor, Tensor, Tensor], tokens: Tensor, rows: tuple[Tensor, ...]
) -> Tensor:
    """``sum_j variance_ij (a_ij tokens_je - b_ij first_ie - c_ij second_ie)^2``: ``[.., Lq, E]``.

    ``terms`` are a, b and c ``[.., Lq, Lk]``, ``tokens [.., Lk, E]`` and ``rows`` first and second
    ``[.., Lq, E]``.
    """
    a, b, c = terms
    first, second = rows

    def total(x: Tensor, y: Tensor) -> Tensor:
        return (variance * x * y).sum(dim=-1, keepdim=True)

    result = (variance * a * a) @ tokens.square()
    result += total(b, b) * first.square() + total(c, c) * second.square()
    result -= 2.0 * first * ((variance * a * b) @ tokens)
    result -= 2.0 * second * ((variance * a * c) @ tokens)
    result += 2.0 * total(b, c) * first * second
    return result.clamp_min_(0.0)


def independent_channels(
    variance: Tensor, terms: tuple[Tensor, Tensor, Tensor], tokens: Tensor, rows: tuple[Tensor, ...]
) -> Tensor:
    """``sum_c variance_ic (a_ij tokens_jc - b_ij first_ic - c_ij second_ic)^2``: ``[.., Lq, Lk]``.

    Shapes are those of :func:`independent_columns`, but for ``variance [.., Lq, C]``.
    """
    a, b, c = terms
    first, second = rows

    def total(x: Tensor, y: Tensor) -> Tensor:
        return (variance * x * y).sum(dim=-1, keepdim=True)

    result = a * a * (variance @ tokens.square().mT)
    result += b * b * total(first, first) + c * c * total(second, second)
    result -= 2.0 * a * b * ((variance * first) @ tokens.mT)
    result -= 2.0 * a * c * ((variance * second) @ tokens.mT)
    result += 2.0 * b * c * total(first, second)
    return result.clamp_min_(0.0)


def coherent_rows(
    variance: Tensor,
    pairs: Tensor,
    left: Tensor,
    right: Tensor,
    products: tuple[tuple[Tensor, Tensor], ...],
) -> Tensor:
    """``sum_c variance_ic (sum_j pairs_ij left_je right_jc - sum_n u_n,ie v_n,ic)^2``.

    One error of a row's channel c moves all of its pairs at once. ``left`` is ``[.., Lk, E]``,
    ``right [.., Lk, C]``, ``variance [.., Lq, C]`` and ``products`` hold u ``[.., Lq, E]`` and v
    ``[.., Lq, C]``. Returns ``[.., Lq, E]``.
    """
    lengths = max(pairs.shape[-2], pairs.shape[-1])
    table = pairs.shape[0] * pairs.shape[1] * lengths * right.shape[-1]
    step = max(1, model.COHERENT_GRADIENT_CHUNK // max(1, table))
    pieces = []
    for start in range(0, left.shape[-1], step):
        chosen = slice(start, start + step)
        outer = left[..., chosen].unsqueeze(-1) * right.unsqueeze(-2)
        total = (pairs @ outer.flatten(-2)).unflatten(-1, outer.shape[-2:])
        for first, second in products:
            total -= first[..., chosen].unsqueeze(-1) * second.unsqueeze(-2)
        pieces.append((total.square_() @ variance.unsqueeze(-1)).squeeze(-1))
    return torch.cat(pieces, dim=-1) if pieces else left.new_zeros(*pairs.shape[:-1], 0)


def walk(squares: Tensor, result: Tensor, terms: int, unit: float) -> Tensor:
    """The variance of adding up products whose squares sum to ``squares``; see ``model.WALK``."""
    own = (model.WALK * terms + model.PRODUCTS) * unit**2
    return squares * own + result.square() * (model.DRIFT * terms * unit**2)
