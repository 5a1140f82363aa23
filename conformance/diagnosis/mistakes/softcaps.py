"""Softcaps lost, in another place, or of another shape."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

import torch
from torch import Tensor

from ..._golden import golden
from ._given import changed, has_softcap
from ._steps import plain_scores, relogited, rescored
from .named import Asked, CoreChange, NamedMistake, mistakes


def _recapped(cap: Callable[[Tensor, float], Tensor]) -> CoreChange:
    def core(asked: Asked, attention: golden.Attention) -> golden.Attention | None:
        softcap = attention.softcap
        if softcap is None:
            return None
        return rescored(lambda found: cap(plain_scores(found), softcap))(asked, attention)

    return core


def _capped_before_scale(asked: Asked, attention: golden.Attention) -> golden.Attention | None:
    cap, scale = attention.softcap, attention.scale
    if cap is None:
        return None
    products = attention.query @ attention.key.mT
    return rescored(lambda _found: scale * cap * torch.tanh(products / cap))(asked, attention)


def _capped_after_bias(_asked: Asked, attention: golden.Attention) -> golden.Attention | None:
    cap, bias = attention.softcap, attention.bias
    if cap is None or bias is None:
        return None
    finite = bias.masked_fill(torch.isneginf(bias), 0.0)
    logits = cap * torch.tanh((plain_scores(attention) + finite) / cap)
    return relogited(attention, logits.masked_fill(~attention.allowed, -math.inf))


SOFTCAPS: Final[tuple[NamedMistake, ...]] = (
    *mistakes(
        "softcap-ignored",
        "numerics.golden",
        "the softcap is ignored",
        "cap the scaled scores: c * tanh(scores / c)",
        {"question": changed(has_softcap, softcap=None)},
    ),
    *mistakes(
        "softcap-after-mask",
        "mask.golden",
        "the softcap is applied after the mask: a hidden key keeps a logit of -c",
        "cap the scores before bias and mask",
        {"changes": {"softcap_order": "after-mask"}},
    ),
    *mistakes(
        "softcap-after-bias",
        "mask.bias",
        "the softcap is applied after the bias",
        "cap the scores before bias and mask",
        {"core": _capped_after_bias},
        special_of="softcap-after-mask",
        where=lambda inputs: has_softcap(inputs) and inputs.bias is not None,
    ),
    *mistakes(
        "softcap-not-multiplied",
        "numerics.golden",
        "tanh(scores / c) is not multiplied by c",
        "cap the scaled scores: c * tanh(scores / c)",
        {"core": _recapped(lambda scores, cap: torch.tanh(scores / cap))},
        where=has_softcap,
    ),
    *mistakes(
        "softcap-not-divided",
        "numerics.golden",
        "the scores are not divided by c before tanh",
        "cap the scaled scores: c * tanh(scores / c)",
        {"core": _recapped(lambda scores, cap: cap * torch.tanh(scores))},
        where=has_softcap,
    ),
    *mistakes(
        "softcap-before-scale",
        "numerics.golden",
        "the softcap is applied before the scale",
        "scale the scores first, then cap them",
        {"core": _capped_before_scale},
        where=has_softcap,
    ),
    *mistakes(
        "softcap-clamps",
        "numerics.golden",
        "the scores are clamped to the softcap",
        "cap the scaled scores smoothly: c * tanh(scores / c)",
        {"core": _recapped(lambda scores, cap: scores.clamp(-cap, cap))},
        where=has_softcap,
    ),
)
