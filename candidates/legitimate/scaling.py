"""Where the scale goes: into the scores, into an operand, or its root into both."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ._kit import admitted, core, factor, soften


def _attend(query: Tensor, key: Tensor, value: Tensor, keep: Tensor | None, causal: bool) -> Tensor:  # noqa: FBT001 (private)
    """Attention without a scale."""
    return soften(query @ key.mT, admitted(query, key, keep, causal=causal)) @ value


@core()
def root_on_both_operands(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    keep: Tensor | None = None,
    causal: bool = False,
    scale: float | None = None,
) -> Tensor:
    """The root of the scale on query and key, as Whisper and torch's math backend do it."""
    whole = factor(query, scale)
    root = math.sqrt(abs(whole))
    return _attend(query * root, key * math.copysign(root, whole), value, keep, causal)


@core()
def scaled_query(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    keep: Tensor | None = None,
    causal: bool = False,
    scale: float | None = None,
) -> Tensor:
    """The scale on the query, as BART does it."""
    return _attend(query * factor(query, scale), key, value, keep, causal)


@core()
def scaled_key(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    keep: Tensor | None = None,
    causal: bool = False,
    scale: float | None = None,
) -> Tensor:
    """The scale on the key."""
    return _attend(query, key.mul(factor(query, scale)), value, keep, causal)


@core(features=[])
def divided_by_the_root(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    keep: Tensor | None = None,
    causal: bool = False,
) -> Tensor:
    """The scores divided by a tensor, the root of the head size."""
    root = torch.sqrt(torch.tensor(query.shape[-1], dtype=query.dtype))
    scores = query @ key.mT / root
    return soften(scores, admitted(query, key, keep, causal=causal)) @ value


@core(features=[])
def divided_query(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    keep: Tensor | None = None,
    causal: bool = False,
) -> Tensor:
    """The query divided by the root of the head size, as BERT in TensorFlow does it."""
    return _attend(query / math.sqrt(query.shape[-1]), key, value, keep, causal)
