"""Mistakes in causality, window, softcap and bias, and in what one of them does to another."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

import torch
from torch import Tensor

from .._golden import golden
from ..inputs import Inputs
from ._steps import (
    capped_scores,
    given_of,
    plain_scores,
    relogited,
    rescored,
    unmasked_logits,
    weighing,
)
from .named import Asked, CoreChange, NamedMistake, Question, mistakes

_BLOCKS: Final = (2, 4, 8, 16, 32)
_ALIGN: Final = "align the diagonal as declared"
_BIAS: Final = "mask.bias-counts"


def _causal(inputs: Inputs) -> bool:
    return inputs.causal


def _biased(inputs: Inputs) -> bool:
    return inputs.mask_form == "bias"


def _windowed(inputs: Inputs) -> bool:
    return inputs.window is not None


def _capped(inputs: Inputs) -> bool:
    return inputs.softcap is not None


def _masked(inputs: Inputs) -> bool:
    return inputs.masked


def _changed(where: Callable[[Inputs], bool], **changes: object) -> Question:
    """Some fields of the inputs are others, on inputs of some kind."""
    return lambda asked: asked.inputs.replace(**changes) if where(asked.inputs) else None


def _ahead(asked: Asked, *, bottom_right: bool | None = None) -> Tensor:
    """How far each key lies ahead of each query: ``[Lq, Lk]``."""
    sizes = asked.inputs.geometry
    aligned = asked.semantics.causal_alignment == "bottom-right"
    shift = sizes.key_length - sizes.query_length
    shift = shift if (aligned if bottom_right is None else bottom_right) else 0
    return torch.arange(sizes.key_length) - torch.arange(sizes.query_length)[:, None] - shift


def _seen(table: Callable[[Asked], Tensor]) -> Question:
    """Another table in place of the triangle."""

    def question(asked: Asked) -> Inputs | None:
        inputs = asked.inputs
        if not inputs.causal:
            return None
        seen = table(asked)
        keep = seen[None, None] if inputs.keep is None else inputs.keep & seen
        return inputs.replace(keep=keep, causal=False)

    return question


def _by_blocks(size: int) -> Callable[[Asked], Tensor]:
    def table(asked: Asked) -> Tensor:
        ahead = _ahead(asked)
        keys = torch.arange(ahead.shape[1])
        places = keys - ahead
        return keys.div(size, rounding_mode="floor") <= places.div(size, rounding_mode="floor")

    return table


def _either(asked: Asked) -> Inputs | None:
    inputs = asked.inputs
    if not inputs.causal or inputs.keep is None:
        return None
    return inputs.replace(keep=inputs.keep | (_ahead(asked) <= 0), causal=False)


def _rewindowed(change: Callable[[int, int], tuple[int, int] | None]) -> Question:
    def question(asked: Asked) -> Inputs | None:
        window = asked.inputs.window
        return None if window is None else asked.inputs.replace(window=change(*window))

    return question


def _window_at(*, bottom_right: bool) -> Question:
    """The window is placed by an alignment, causality stays as declared."""

    def question(asked: Asked) -> Inputs | None:
        inputs = asked.inputs
        if inputs.window is None:
            return None
        left, right = inputs.window
        ahead = _ahead(asked, bottom_right=bottom_right)
        seen = ((ahead >= -left) | (left < 0)) & ((ahead <= right) | (right < 0))
        keep = seen[None, None] if inputs.keep is None else inputs.keep & seen
        return inputs.replace(window=None, keep=keep)

    return question


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


def _narrower(asked: Asked, attention: golden.Attention) -> golden.Attention | None:
    """One key fewer on the left: a window of n shows n keys, the query's own among them."""
    window = asked.inputs.window
    if window is None or window[0] < 0:
        return None
    hidden = _ahead(asked) <= -window[0]
    return relogited(attention, attention.logits.masked_fill(hidden, -math.inf))


_FEATURES: Final[dict[str, tuple[str, Callable[[Inputs], bool], dict[str, object]]]] = {
    "mask": (
        "the mask",
        lambda inputs: inputs.masked and inputs.mask_form != "bias",
        {"keep": None, "bias": None},
    ),
    "bias": ("the bias", _biased, {"bias": None}),
    "lengths": (
        "lengths",
        lambda inputs: inputs.mask_form == "lengths",
        {"keep": None},
    ),
    "causal": ("the causal flag", _causal, {"causal": False}),
    "window": ("the window", _windowed, {"window": None}),
    "softcap": ("the softcap", _capped, {"softcap": None}),
    "scale-argument": (
        "the scale that the call gives",
        lambda inputs: inputs.scale is not None,
        {"scale": None},
    ),
}
_SPECIALS: Final = {
    "mask": "mask-ignored",
    "bias": "bias-ignored",
    "lengths": "lengths-ignored",
    "causal": "causal-ignored",
    "window": "window-ignored",
    "softcap": "softcap-ignored",
    "scale-argument": "scale-argument-ignored",
}


def _lost_features() -> list[NamedMistake]:
    """What is dropped on the path that something else takes."""
    found: list[NamedMistake] = []
    for name, (spoken, present, absent) in _FEATURES.items():
        for other, (winner, taken, _) in _FEATURES.items():
            if (
                other == name
                or {name, other} <= {"mask", "bias", "lengths"}
                or other == "scale-argument"
            ):
                continue
            found += mistakes(
                f"{name}-lost-to-{other}",
                "mask.causal-and-mask"
                if {name, other} == {"mask", "causal"}
                else "numerics.options",
                f"{spoken} is dropped where {winner} is given too",
                "apply both",
                {"question": _changed(_both(present, taken), **absent)},
                *(
                    [{"question": _changed(_both(present, taken), keep=None, bias=None)}]
                    if name == "bias"
                    else []
                ),
                *(
                    [{"question": _changed(_both(_masked, taken), **absent)}]
                    if name == "mask"
                    else []
                ),
                *(
                    [{"question": _changed(_both(present, _masked), **absent)}]
                    if other == "mask"
                    else []
                ),
                special_of=_SPECIALS[name],
            )
    return found


def _both(one: Callable[[Inputs], bool], two: Callable[[Inputs], bool]) -> Callable[..., bool]:
    return lambda inputs: one(inputs) and two(inputs)


STRUCTURE: Final[tuple[NamedMistake, ...]] = (
    *mistakes(
        "causal-ignored",
        "mask.causal",
        "the causal flag is ignored",
        "hide the keys after each query when it is set, whether a mask is given or not",
        {"question": _changed(_causal, causal=False)},
    ),
    *mistakes(
        "causal-needs-mask",
        "mask.causal",
        "the causal flag takes effect only where a mask is given too",
        "hide the keys after each query whether a mask is given or not",
        {"question": _changed(lambda inputs: inputs.causal and not inputs.masked, causal=False)},
        special_of="causal-ignored",
    ),
    *mistakes(
        "causal-only-when-square",
        "mask.causal-alignment",
        "the causal flag is dropped where there are more or fewer keys than queries",
        "align the triangle as declared and apply it to every shape",
        {
            "question": _changed(
                lambda inputs: (
                    inputs.causal and inputs.geometry.query_length != inputs.geometry.key_length
                ),
                causal=False,
            )
        },
        special_of="causal-ignored",
    ),
    *mistakes(
        "causal-sees-only-the-future",
        "mask.causal",
        "the triangle is the upper one: a query sees the future and not the past",
        "hide the keys after each query: tril, not triu",
        {"question": _seen(lambda asked: _ahead(asked) >= 0)},
        {"question": _seen(lambda asked: _ahead(asked) > 0)},
        {"question": _seen(lambda asked: _ahead(asked, bottom_right=False) >= 0)},
        {"question": _seen(lambda asked: _ahead(asked, bottom_right=False) > 0)},
    ),
    *mistakes(
        "causal-by-blocks",
        "mask.causal",
        "causality is kept between blocks of tokens and forgotten inside a block",
        "compare positions of tokens, not of blocks",
        *({"question": _seen(_by_blocks(size))} for size in _BLOCKS),
        special_of="causal-ignored",
    ),
    *mistakes(
        "causal-or-mask",
        "mask.causal-and-mask",
        "a key is attended when causality or the mask admits it",
        "combine the two with and, not or",
        {"question": _either},
    ),
    *mistakes(
        "window-ignored",
        "mask.golden",
        "the window is ignored",
        "hide the keys outside of it",
        {"question": _changed(_windowed, window=None)},
    ),
    *mistakes(
        "window-one-wider",
        "mask.golden",
        "the window shows one key more than asked for, on one side or on both",
        "a window of n shows n keys before the query's own place and n after",
        {"changes": {"window_offset": 1}},
        {"question": _rewindowed(lambda left, right: (left + (left >= 0), right))},
    ),
    *mistakes(
        "window-one-narrower",
        "mask.golden",
        "the window shows one key fewer than asked for on a side",
        "a window of n shows n keys beside the query's own",
        {"changes": {"window_offset": -1}},
        {"core": _narrower},
        where=_windowed,
    ),
    *mistakes(
        "window-sides-swapped",
        "mask.golden",
        "the left and right sides of the window are swapped",
        "window=(left, right): keys before the query's place, and after",
        {"question": _rewindowed(lambda left, right: (right, left))},
    ),
    *mistakes(
        "window-left-ignored",
        "mask.golden",
        "the left side of the window is ignored",
        "hide the keys outside of it",
        {"question": _rewindowed(lambda _left, right: (-1, right))},
        special_of="window-ignored",
    ),
    *mistakes(
        "window-right-ignored",
        "mask.golden",
        "the right side of the window is ignored",
        "hide the keys outside of it",
        {"question": _rewindowed(lambda left, _right: (left, -1))},
        special_of="window-ignored",
    ),
    *mistakes(
        "window-top-left",
        "mask.golden",
        "the window is placed as if the first query stood at the first key",
        _ALIGN,
        {"question": _window_at(bottom_right=False)},
        special_of="causal-top-left",
    ),
    *mistakes(
        "window-bottom-right",
        "mask.golden",
        "the window is placed as if the last query stood at the last key",
        _ALIGN,
        {"question": _window_at(bottom_right=True)},
        special_of="causal-bottom-right",
    ),
    *mistakes(
        "softcap-ignored",
        "numerics.golden",
        "the softcap is ignored",
        "cap the scaled scores: c * tanh(scores / c)",
        {"question": _changed(_capped, softcap=None)},
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
        where=lambda inputs: _capped(inputs) and inputs.bias is not None,
    ),
    *mistakes(
        "softcap-not-multiplied",
        "numerics.golden",
        "tanh(scores / c) is not multiplied by c",
        "cap the scaled scores: c * tanh(scores / c)",
        {"core": _recapped(lambda scores, cap: torch.tanh(scores / cap))},
        where=_capped,
    ),
    *mistakes(
        "softcap-not-divided",
        "numerics.golden",
        "the scores are not divided by c before tanh",
        "cap the scaled scores: c * tanh(scores / c)",
        {"core": _recapped(lambda scores, cap: cap * torch.tanh(scores))},
        where=_capped,
    ),
    *mistakes(
        "softcap-before-scale",
        "numerics.golden",
        "the softcap is applied before the scale",
        "scale the scores first, then cap them",
        {"core": _capped_before_scale},
        where=_capped,
    ),
    *mistakes(
        "softcap-clamps",
        "numerics.golden",
        "the scores are clamped to the softcap",
        "cap the scaled scores smoothly: c * tanh(scores / c)",
        {"core": _recapped(lambda scores, cap: scores.clamp(-cap, cap))},
        where=_capped,
    ),
    *mistakes(
        "bias-ignored",
        _BIAS,
        "the finite values of the bias are ignored",
        "add it to the scaled scores",
        {"question": _changed(lambda inputs: inputs.bias is not None, bias=None)},
        {"question": _changed(_biased, bias=None, keep=None)},
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
        where=_biased,
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
    *_lost_features(),
)
