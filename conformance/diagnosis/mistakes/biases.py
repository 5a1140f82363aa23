"""Additive masks lost, changed, or read as something else."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

import torch
from torch import Tensor

from ..._golden import golden
from ...problems.inputs import Inputs
from ._given import changed, has_bias
from ._steps import capped_scores, given_of, relogited, unmasked_logits, weighing
from .named import Asked, NamedMistake, Question, mistakes

_BIAS: Final = "mask.bias-counts"


def _rebiased(change: Callable[[Tensor], Tensor]) -> Question:
    def question(asked: Asked) -> Inputs | None:
        bias = asked.inputs.bias
        return None if bias is None else asked.inputs.replace(bias=change(bias.double()))

    return question


def _bias_of_first(axis: int, *, hidden_too: bool) -> Question:
    """With the values at hidden keys, or zeros there, as where minus infinity was taken out."""

    def question(asked: Asked) -> Inputs | None:
        bias, keep = asked.inputs.bias, asked.inputs.keep
        if bias is None or bias.shape[axis] == 1:
            return None
        if keep is not None and not hidden_too:
            bias = bias.masked_fill(~keep, 0.0)
        return asked.inputs.replace(bias=bias.narrow(axis, 0, 1))

    return question


def _as_boolean(hidden: Callable[[Tensor, Tensor], Tensor]) -> Question:
    """The additive mask is cast to bool: ``hidden`` gets its table and its finite values."""

    def question(asked: Asked) -> Inputs | None:
        inputs = asked.inputs
        if inputs.mask_form != "bias":
            return None
        given = given_of(asked)
        bias = torch.zeros(given.shape) if inputs.bias is None else inputs.bias
        return inputs.replace(keep=~hidden(given, bias), bias=None)

    return question


def _multiplied_by_bias(asked: Asked, attention: golden.Attention) -> golden.Attention | None:
    if asked.inputs.mask_form != "bias":
        return None
    given = asked.inputs.bias
    bias = torch.zeros(1, dtype=torch.float64) if given is None else given.double()
    logits = (capped_scores(attention) * bias).masked_fill(~attention.allowed, -math.inf)
    return relogited(attention, logits)


def _bias_after_softmax(asked: Asked, attention: golden.Attention) -> golden.Attention | None:
    bias = asked.inputs.bias
    if bias is None:
        return None
    logits = (unmasked_logits(attention) - bias).masked_fill(~attention.allowed, -math.inf)
    return weighing(attention, golden.softmax(logits) + bias * attention.allowed)


BIASES: Final[tuple[NamedMistake, ...]] = (
    *mistakes(
        "bias-ignored",
        _BIAS,
        "the finite values of the bias are ignored",
        "add it to the scaled scores",
        {"question": changed(lambda inputs: inputs.bias is not None, bias=None)},
        {"question": changed(has_bias, bias=None, keep=None)},
    ),
    *mistakes(
        "bias-subtracted",
        _BIAS,
        "the bias is subtracted",
        "add it",
        {"question": _rebiased(lambda bias: -bias)},
    ),
    *mistakes(
        "bias-doubled",
        _BIAS,
        "the bias is added twice",
        "add it once",
        {"question": _rebiased(lambda bias: 2.0 * bias)},
    ),
    *mistakes(
        "bias-halved",
        _BIAS,
        "half of the bias is added",
        "add it as it is",
        {"question": _rebiased(lambda bias: 0.5 * bias)},
    ),
    *mistakes(
        "bias-in-binary-units",
        _BIAS,
        "the scores are rescaled for powers of two and the bias is not",
        "multiply the bias by log2(e), too",
        {"question": _rebiased(lambda bias: bias * math.log(2.0))},
        {"question": _rebiased(lambda bias: bias / math.log(2.0))},
    ),
    *mistakes(
        "bias-clamped",
        _BIAS,
        "a bias above zero is clamped to zero",
        "add it as it is",
        {"question": _rebiased(lambda bias: bias.clamp_max(0.0))},
    ),
    *mistakes(
        "bias-without-sign",
        _BIAS,
        "the sign of the bias is lost",
        "add it as it is",
        {"question": _rebiased(torch.abs)},
        {"question": _rebiased(lambda bias: -bias.abs())},
    ),
    *(
        mistake
        for axis, name in enumerate(("item", "head", "query"))
        for mistake in mistakes(
            f"bias-of-first-{name}",
            _BIAS,
            f"the finite values of the bias of the first {name} are used for all",
            "broadcast the bias along its own axes",
            {"question": _bias_of_first(axis, hidden_too=True)},
            {"question": _bias_of_first(axis, hidden_too=False)},
            special_of=f"mask-of-first-{name}",
        )
    ),
    *mistakes(
        "bias-multiplied",
        _BIAS,
        "the scores are multiplied by the bias",
        "add it",
        {"core": _multiplied_by_bias},
        where=has_bias,
    ),
    *mistakes(
        "bias-after-softmax",
        _BIAS,
        "the bias is added to the weights, after the softmax",
        "add it to the scaled scores",
        {"core": _bias_after_softmax},
        where=lambda inputs: inputs.bias is not None,
    ),
    *mistakes(
        "bias-taken-for-boolean",
        "mask.bias",
        "the additive mask is cast to a boolean one: its numbers are lost",
        "add a floating-point mask to the scaled scores",
        {"question": _as_boolean(lambda given, bias: ~given | (bias != 0.0))},
        {"question": _as_boolean(lambda given, bias: given & (bias == 0.0))},
        {"question": _as_boolean(lambda given, bias: ~given | (bias < 0.0))},
    ),
)
