"""Softmaxes, softcaps and sinks: repeated, misplaced, misshapen or lost."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, Final

import torch
from torch import Tensor

from ..._golden import golden
from ...problems.inputs import Inputs
from ._steps import (
    BLOCKS,
    EMPTY_WITHOUT_LOGITS,
    UNRULED,
    append_sinks,
    has_bias,
    has_sinks,
    has_softcap,
    present,
    reweighed,
    row_largest,
)
from .named_mistake import Edits, NamedMistake, edits_by, fixing, named

Edit = golden.Edit
_GOLDEN: Final = "numerics.golden"
# Sums so many times the smallest normal number have few digits.
FAINT: Final = 1e6
_CONVEX: Final = "numerics.convex"
Largest = Callable[[Tensor], Tensor | float]


def faint(total: Tensor) -> Tensor:
    """Mark nonzero sums that have few digits in their dtype."""
    return (total > 0.0) & (total < torch.finfo(total.dtype).smallest_normal * FAINT)


def _twice(logits: Tensor) -> Tensor:
    once = torch.softmax(logits, dim=-1)
    return torch.softmax(once.masked_fill(torch.isneginf(logits), -math.inf), dim=-1)


def _twice_but_for_bias(
    shares: Tensor, attended: Tensor, structure: Tensor, inputs: Inputs
) -> Tensor:
    """Apply a second softmax; minus infinities of an additive mask are zeros after the first."""
    kept = structure if has_bias(inputs) else attended
    return torch.softmax(shares, -1).masked_fill(~kept, 0.0)


def _filled(
    logits: Tensor, sinks: Tensor | None, inputs: Inputs, point: golden.Semantics, *, wide: bool
) -> tuple[Tensor, Tensor]:
    """Return logits in the working dtype, and the rows without keys that no softmax decides.

    ``wide`` promotes to float32 at least, as within a fused kernel. If empty rows return the mean
    of all values, keys are hidden by the lowest finite number: only a softmax that subtracts it
    makes the mean.
    """
    working = inputs.query.dtype
    working = torch.promote_types(working, torch.float32) if wide else working
    empty = torch.isneginf(logits).all(dim=-1, keepdim=True)
    if point.empty_rows != "mean-of-all" or sinks is not None:
        return append_sinks(logits, sinks).to(working), empty
    filled = logits.masked_fill(empty, torch.finfo(working).min)
    return filled.to(working), torch.zeros_like(empty)


# The number subtracted from each row's logits, from them, the logits before keys are hidden, and
# the keys that an additive mask keeps.
Shift = Callable[[Tensor, Tensor, Tensor], Tensor]


def shifted(shift: Shift, divisor: Callable[[Tensor], Tensor], *, wide: bool) -> Edits:
    """Divide exponentials of logits less a number per row by a function of their sum.

    Rows whose exponentials have lost digits without vanishing are open.
    """
    reads = ("", "logits", "sinks", "biased", "by_mask", "inputs", "point")

    def exponentials(
        logits: Tensor,
        sinks: Tensor | None,
        biased: Tensor,
        by_mask: Tensor,
        inputs: Inputs,
        point: golden.Semantics,
    ) -> tuple[Tensor, Tensor]:
        filled, given = _filled(logits, sinks, inputs, point, wide=wide)
        kept = by_mask if has_bias(inputs) else torch.ones_like(by_mask)
        number = shift(filled, biased, kept).to(filled.dtype)
        return torch.exp(filled - number), given

    def weights(right: Tensor, logits: Tensor, *results: Any) -> Tensor:
        each, given = exponentials(logits, *results)
        shares = each / divisor(each.sum(dim=-1, keepdim=True))
        return torch.where(given, right, shares.double()[..., : logits.shape[-1]])

    def empty(right: Tensor, *results: Any) -> Tensor:
        each, given = exponentials(*results)
        return right | (faint(each.sum(dim=-1, keepdim=True)) & ~given).squeeze(-1)

    return (
        Edit("weights", change=golden.Rewired(weights, reads)),
        Edit("empty", change=golden.Rewired(empty, reads)),
    )


def _less(largest: Largest, *, guarded: bool, wide: bool = False) -> golden.Edit:
    """Subtract a number before the exponentials, in the working dtype: they overflow or vanish.

    A guarded sum of zero does not divide.
    """

    def weights(
        weights: Tensor,
        logits: Tensor,
        sinks: Tensor | None,
        inputs: Inputs,
        point: golden.Semantics,
    ) -> Tensor:
        working, given = _filled(logits, sinks, inputs, point, wide=wide)
        exponentials = torch.exp(working - largest(working))
        shares = exponentials / _sum(exponentials, guarded=guarded)
        return torch.where(given, weights, shares.double()[..., : logits.shape[-1]])

    return Edit("weights", change=weights)


def _sum(exponentials: Tensor, *, guarded: bool) -> Tensor:
    total = exponentials.sum(dim=-1, keepdim=True)
    return torch.where(total == 0.0, 1.0, total) if guarded else total


def _less_at_last(largest: Largest, *, guarded: bool) -> golden.Edit:
    def output(
        output: Tensor,
        logits: Tensor,
        sinks: Tensor | None,
        value: Tensor,
        inputs: Inputs,
        point: golden.Semantics,
    ) -> Tensor:
        working, given = _filled(logits, sinks, inputs, point, wide=False)
        exponentials = torch.exp(working - largest(working))
        total = _sum(exponentials, guarded=guarded)
        answer = exponentials[..., : value.shape[2]] @ value.to(working.dtype) / total
        return torch.where(given, output, answer.double())

    return Edit("output", change=output)


def _every_division(largest: Largest) -> list[dict[str, Any]]:
    kinds, guards = (_less, _less_at_last), (False, True)
    own = [{"edits": (kind(largest, guarded=guarded),)} for kind in kinds for guarded in guards]
    fused = (_less(largest, guarded=guarded, wide=True) for guarded in guards)
    return [*own, *({"edits": (one,), "where": _is_half, "needs": "half"} for one in fused)]


def _is_half(inputs: Inputs) -> bool:
    return inputs.query.dtype.itemsize < torch.float32.itemsize


def _not_rescaled(block: int, *, sums_too: bool) -> golden.Edit:
    """Leave running sums unrescaled when the maximum of a block of keys grows."""

    def weights(weights: Tensor, logits: Tensor, sinks: Tensor | None) -> Tensor:
        ends = (torch.arange(logits.shape[-1]) // block + 1) * block - 1
        running = logits.cummax(dim=-1).values[..., ends.clamp_max(logits.shape[-1] - 1)]
        running = torch.where(torch.isneginf(running), 0.0, running)
        exponentials = torch.exp(logits - running)
        final = torch.exp(logits - row_largest(logits))
        total = (exponentials if sums_too else final).sum(dim=-1, keepdim=True)
        if sinks is not None:
            total = total + torch.exp(sinks[:, None, None] - row_largest(logits))
        shares = exponentials / torch.where(total == 0.0, 1.0, total)
        empty = torch.isneginf(logits).all(dim=-1, keepdim=True)
        return torch.where(empty, weights, shares)

    return Edit("weights", change=weights, when=lambda sizes: sizes.key_length > block)


def _joint(*axes: int) -> Edits:
    def total(exponentials: Tensor) -> Tensor:
        sums = exponentials.sum(dim=axes, keepdim=True)
        return torch.where(sums == 0.0, 1.0, sums)

    def largest(logits: Tensor) -> Tensor:
        return logits.amax(dim=axes, keepdim=True).clamp_min(torch.finfo(torch.float64).min)

    return (
        Edit("largest", largest),
        Edit("total", total),
        UNRULED,
    )


SOFTMAXES: Final[tuple[NamedMistake, ...]] = (
    *named("softmax-twice", _GOLDEN)(
        "the softmax is applied to weights that are a softmax already",
        "apply it once",
        reweighed(_twice),
        reweighed(lambda logits: torch.softmax(torch.softmax(logits, -1), -1)),
        Edit("weights", lambda shares: torch.softmax(shares, -1)),
        Edit("weights", _twice_but_for_bias),
    ),
    *named("softmax-over-queries-and-keys", "numerics.constant-value")(
        "one softmax runs over queries and keys together",
        "run it over the keys of each query",
        _joint(-2, -1),
    ),
    *named("softmax-over-all-but-batch", "numerics.constant-value")(
        "one softmax runs over heads, queries and keys together",
        "run it over the keys of each query: before version 13 of its operators ONNX's Softmax "
        "takes all axes from the first on, unless axis=-1 or the last axis is named",
        _joint(-3, -2, -1),
    ),
    *named("softmax-log", _CONVEX)(
        "the logarithm of the softmax weighs the values",
        "use softmax, not log_softmax",
        reweighed(lambda logits: present(torch.log_softmax(logits, -1))),
    ),
    *named("maximum-not-subtracted", "numerics.large-logits")(
        "the exponentials are taken without subtracting the row's largest logit: they overflow",
        "subtract each row's largest logit first, or use torch.softmax",
        *_every_division(lambda _logits: 0.0),
    ),
    *named("maximum-added", "numerics.large-logits")(
        "each row's largest logit is added and not subtracted: high exponentials overflow",
        "subtract it",
        *_every_division(lambda logits: -row_largest(logits)),
    ),
    *named("maximum-of-the-whole-tensor", "numerics.large-logits")(
        "one maximum is subtracted from all rows: low rows vanish",
        "subtract each row's own largest logit",
        *_every_division(torch.max),
        *(
            _less(lambda logits: logits.amax(dim=(-2, -1), keepdim=True), guarded=guarded)
            for guarded in (False, True)
        ),
    ),
    *named("running-maximum-starts-at-zero", "numerics.large-logits")(
        "the running maximum starts at zero: rows of very negative logits vanish",
        "start it at minus infinity",
        *_every_division(lambda logits: row_largest(logits).clamp_min(0.0)),
    ),
    *named("accumulator-not-rescaled", _GOLDEN)(
        "when the running maximum grows, what was added up before is not rescaled",
        "multiply accumulator and sum by exp(old maximum - new maximum)",
        *(
            _not_rescaled(block, sums_too=sums_too)
            for sums_too in (True, False)
            for block in BLOCKS
        ),
    ),
)


def _capped(scores: Tensor, softcap: float) -> Tensor:
    return softcap * torch.tanh(scores / softcap)


# Keys hidden by the bias stay hidden, or keep the logit -c of the cap.
_CAPPED_AFTER_BIAS: Final = (
    Edit("capped", lambda scores: scores),
    Edit("biased", change=_capped),
)
_HIDDEN_TOO: Final = Edit(
    "masked",
    lambda biased, by_mask, structure, softcap: torch.where(by_mask, biased, -softcap).masked_fill(
        ~structure, -math.inf
    ),
)


_softcap: Final = partial(named, primary="numerics.golden", where=has_softcap)
_CAP: Final = "cap the scaled scores: c * tanh(scores / c)"
SOFTCAPS: Final[tuple[NamedMistake, ...]] = (
    *_softcap("softcap-ignored")(
        "the softcap is ignored",
        _CAP,
        Edit("softcap", lambda: None),
    ),
    *named("softcap-after-mask", "mask.golden", needs="mask")(
        "the softcap is applied after the mask: a hidden key keeps a logit of -c",
        "cap the scores before bias and mask",
        {"changes": {"softcap_order": "after-mask"}},
    ),
    *named(
        "softcap-after-bias",
        "mask.bias",
        special_of="softcap-after-mask",
        where=lambda inputs: has_softcap(inputs) and has_bias(inputs),
    )(
        "the softcap is applied after the bias",
        "cap the scores before bias and mask",
        _CAPPED_AFTER_BIAS,
        (*_CAPPED_AFTER_BIAS, _HIDDEN_TOO, EMPTY_WITHOUT_LOGITS),
    ),
    *_softcap("softcap-not-multiplied")(
        "tanh(scores / c) is not multiplied by c",
        _CAP,
        Edit("capped", lambda squashed: squashed),
    ),
    *_softcap("softcap-not-divided")(
        "the scores are not divided by c before tanh",
        _CAP,
        Edit("squashed", golden.Rewired(torch.tanh, ("scores",))),
    ),
    *_softcap("softcap-before-scale")(
        "the softcap is applied before the scale",
        "scale the scores first, then cap them",
        Edit("capped", lambda products, scale, softcap: scale * _capped(products, softcap)),
    ),
    *_softcap("softcap-clamps")(
        "the scores are clamped to the softcap",
        "cap the scaled scores smoothly: c * tanh(scores / c)",
        Edit("capped", lambda scores, softcap: scores.clamp(-softcap, softcap)),
    ),
)


_SINKS: Final = "sinks.golden"
_NULL: Final = "sinks.null-key"
_WITH_NULL: Final = {"null_key": True}
_FIX: Final = "add exp(sink of the head) to the sum of each row's exponentials, and nothing else"


_sunk: Final = fixing(_FIX, primary=_SINKS, where=has_sinks)


def _share(weights: Tensor) -> Tensor:
    return 1.0 - weights.sum(dim=-1, keepdim=True)


def _valued(value_of: Callable[[Tensor], Tensor]) -> golden.Edit:
    def output(output: Tensor, weights: Tensor, shared_value: Tensor) -> Tensor:
        return output + _share(weights) * value_of(shared_value)

    return Edit("output", change=output, when=_has_keys)


def _has_keys(sizes: golden.Sizes) -> bool:
    return sizes.key_length > 0


def _move_behind_sink(weights: Tensor) -> Tensor:
    return torch.cat([_share(weights), weights[..., :-1]], dim=-1)


def _move_before_sink(weights: Tensor) -> Tensor:
    return torch.cat([weights[..., 1:], _share(weights)], dim=-1)


SINKS: Final[tuple[NamedMistake, ...]] = (
    *_sunk("sinks-ignored")(
        "the sinks are ignored",
        Edit("given_sinks", lambda: None),
    ),
    *_sunk("sink-of-first-head")(
        "the sink of the first head is used for all",
        edits_by("those of the first head", "given_sinks"),
    ),
    *_sunk("sinks-reversed")(
        "sinks are given to the heads in the opposite order",
        edits_by("those of the head counted from the end", "given_sinks"),
    ),
    *_sunk("sink-scaled")(
        "the sink is scaled like a dot product",
        edits_by("multiplied by the scale", "given_sinks"),
    ),
    *_sunk("sink-negated")(
        "the sink has the other sign",
        edits_by("negated", "given_sinks"),
    ),
    *_sunk("sinks-zero")(
        "every sink is zero, whatever was handed over: a one joins each sum",
        edits_by("left at zero", "given_sinks"),
    ),
    *_sunk("sink-not-exponentiated")(
        "the sink itself, not its exponential, joins the sum",
        Edit("given_sinks", change=lambda sinks: sinks.abs().log()),
    ),
    *_sunk("sink-with-value")(
        "the weight of the sink goes to a value",
        _valued(lambda value: value.mean(dim=2, keepdim=True)),
        _valued(lambda value: value[:, :, :1]),
    ),
    *named("null-key-missing", _NULL)(
        "the null key is left out: the weights of a row sum to one",
        "add the exponential of minus the largest logit to the sum of each row's exponentials",
        {"base": _WITH_NULL, "changes": {"null_key": False}},
    ),
    *named("null-key-behind-the-maximum", _NULL)(
        "a one joins the sum of exponentials that are taken less the largest logit",
        "add the exponential of minus the largest logit, or count zero among the logits",
        {
            "base": _WITH_NULL,
            "edits": (
                Edit("sinks", lambda: None),
                Edit("total", lambda exponentials: exponentials.sum(dim=-1, keepdim=True) + 1.0),
            ),
        },
    ),
    *named("sink-dropped-at-the-wrong-end", _SINKS, where=has_sinks)(
        "the weight at the other end is dropped, not that of the sink: each value gets a "
        "neighbour's weight",
        "drop the column of the sink: the last one where it was put behind the keys",
        *(
            Edit("weights", change=change, when=_has_keys)
            for change in (_move_before_sink, _move_behind_sink)
        ),
    ),
)
