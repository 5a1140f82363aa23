"""From dot products to what enters the softmax: scale, cap, modification, biases, mask."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from .checks import check_argument
from .semantics import Semantics


@dataclass(frozen=True, kw_only=True)
class ScoreOptions:
    """What is done to the dot products ``[B, H, Lq, Lk]`` before the mask."""

    scale: float
    bias: Tensor | None
    alibi: Tensor | None
    softcap: float | None


@dataclass(frozen=True, kw_only=True)
class Logits:
    """The steps from the scaled dot products to the logits, each float64 ``[B, H, Lq, Lk]``.

    ``softcap`` is the largest size that the cap leaves to scores; None without a cap.
    """

    softcap: float | None
    scores: Tensor
    capped: Tensor
    modified: Tensor
    logits: Tensor


def masked_logits(
    query: Tensor, key: Tensor, allowed: Tensor, options: ScoreOptions, semantics: Semantics
) -> Logits:
    """Scale, cap, modify and bias the dot products, and mask the keys that are not ``allowed``.

    A ``score_mod`` that answers minus infinity hides a key like a bias of minus infinity.
    """
    softcap = options.softcap
    scores = _scaled(query @ key.transpose(-1, -2), options, semantics)
    capped = scores if semantics.caps("bias") else cap(scores, softcap)
    modified = modify(capped, semantics)
    logits = mask_logits(_add_biases(modified, options, semantics), allowed, semantics)
    if semantics.caps("mask"):
        logits = cap(logits, softcap)
    return Logits(softcap=softcap, scores=scores, capped=capped, modified=modified, logits=logits)


def _scaled(products: Tensor, options: ScoreOptions, semantics: Semantics) -> Tensor:
    """The dot products times the scale, with the finite bias where it is scaled too."""
    bias = options.bias
    if bias is not None and semantics.bias_order == "before-scale":
        products = products + torch.where(torch.isneginf(bias), 0.0, bias)
    return options.scale * products


def cap(scores: Tensor, softcap: float | None) -> Tensor:
    """``c tanh(scores / c)``; the scores themselves without a cap."""
    return scores if softcap is None else softcap * torch.tanh(scores / softcap)


def modify(scores: Tensor, semantics: Semantics) -> Tensor:
    """Apply ``score_mod`` to ``[B, H, Lq, Lk]``, with the indices as broadcasting int64 tensors.

    Raises TypeError or ValueError, naming ``score_mod``, for an answer that is no such tensor.
    """
    change = semantics.score_mod
    if change is None:
        return scores
    batch, head, query, key = (torch.arange(size, device=scores.device) for size in scores.shape)
    places = batch[:, None, None, None], head[:, None, None], query[:, None], key
    modified = change(scores.clone(), *places)  # a copy, as it may change what it is given
    if not isinstance(modified, Tensor):
        msg = f"score_mod returned a {type(modified).__name__}, not a torch.Tensor"
        raise TypeError(msg)
    fits = modified.dim() <= scores.dim() and all(
        have in (1, want)
        for have, want in zip(reversed(modified.shape), reversed(scores.shape), strict=False)
    )
    shown = list(modified.shape)
    check_argument(fits, "score_mod", f"returned shape {shown} for scores {list(scores.shape)}")
    return modified.double().expand(scores.shape)


def _add_biases(scores: Tensor, options: ScoreOptions, semantics: Semantics) -> Tensor:
    if options.alibi is not None:
        scores = scores + options.alibi
    bias = options.bias
    if bias is None:
        return scores
    if semantics.bias_order == "before-scale":  # its finite part is in the scores already
        return scores.masked_fill(torch.isneginf(bias), -math.inf)
    return scores + bias


def mask_logits(logits: Tensor, allowed: Tensor, semantics: Semantics) -> Tensor:
    """Hide the keys that are not ``allowed`` from the logits ``[B, H, Lq, Lk]``."""
    fill = semantics.mask_fill
    operations = {
        "replace": lambda: logits.masked_fill(~allowed, fill),
        "add": lambda: torch.where(allowed, logits, logits + fill),
        "add-to-kept": lambda: logits + allowed,
        "multiply-logits": lambda: torch.where(allowed | torch.isneginf(logits), logits, 0.0),
        "multiply-weights": lambda: logits,
        "ignore": lambda: logits,
    }
    return operations[semantics.mask_operation]()
