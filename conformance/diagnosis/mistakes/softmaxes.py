"""Softmaxes, softcaps and sinks: made twice, in another place, of another shape, or lost."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any, Final

import torch
from torch import Tensor

from ..._golden import golden
from ...problems.inputs import Inputs
from ._steps import (
    BLOCKS,
    admitted_by_mask,
    admitted_by_structure,
    changed,
    emptied,
    has_bias,
    has_sinks,
    has_softcap,
    logits_with_sinks,
    plain_scores,
    present,
    relogited,
    reweighed,
    row_largest,
    weighing,
)
from .named_mistake import CoreChange, DeclaredCall, InputsChange, NamedMistake, named

_GOLDEN: Final = "numerics.golden"
# Sums so many times the smallest normal number have few digits.
FAINT: Final = 1e6
_CONVEX: Final = "numerics.convex"


def faint(total: Tensor) -> Tensor:
    """Sums that are not zero, and have few digits in their dtype."""
    return (total > 0.0) & (total < torch.finfo(total.dtype).smallest_normal * FAINT)


def _twice(logits: Tensor) -> Tensor:
    once = torch.softmax(logits, dim=-1)
    return torch.softmax(once.masked_fill(torch.isneginf(logits), -math.inf), dim=-1)


def _twice_of_zeros(kept: Callable[[DeclaredCall], Tensor]) -> CoreChange:
    """The second one of weights that are zero for hidden keys, in rows without others as well."""

    def core(call: DeclaredCall, attention: golden.Attention) -> golden.Attention:
        once = attention.weights.masked_fill(attention.empty[..., None], 0.0)
        return weighing(attention, torch.softmax(once, -1).masked_fill(~kept(call), 0.0))

    return core


def _but_for_bias(call: DeclaredCall) -> Tensor:
    """The keys that are left but for minus infinities of an additive mask."""
    if has_bias(call.inputs):
        return admitted_by_structure(call)
    return call.inputs.allowed(call.semantics)


def _every_key(call: DeclaredCall) -> Tensor:
    return torch.ones_like(call.inputs.allowed(call.semantics))


def _in_working_dtype(weights_of: Callable[[Tensor], Tensor], *, wide: bool = False) -> CoreChange:
    """Exponentials where the range of the working dtype decides: they overflow or vanish.

    With ``wide`` it is float32 at least, as within a fused kernel.
    """

    def core(call: DeclaredCall, attention: golden.Attention) -> golden.Attention:
        logits, given = _filled(call, attention, logits_with_sinks(attention), wide=wide)
        weights = weights_of(logits).double()[..., : attention.logits.shape[-1]]
        return weighing(attention, torch.where(given, attention.weights, weights))

    return core


def _filled(
    call: DeclaredCall, attention: golden.Attention, logits: Tensor, *, wide: bool = False
) -> tuple[Tensor, Tensor]:
    """The logits in the working dtype, and the rows without keys that no softmax decides.

    What returns the mean of all values there hides keys by a finite number, as low as any: only a
    softmax that subtracts it makes the mean of it.
    """
    working = call.inputs.query.dtype
    working = torch.promote_types(working, torch.float32) if wide else working
    empty = torch.isneginf(attention.logits).all(dim=-1, keepdim=True)
    if call.semantics.empty_rows != "mean-of-all" or attention.sinks is not None:
        return logits.to(working), empty
    filled = logits.masked_fill(empty, torch.finfo(working).min)
    return filled.to(working), torch.zeros_like(empty)


def _less(
    largest: Callable[[Tensor], Tensor | float], *, guarded: bool = False, wide: bool = False
) -> CoreChange:
    """Exponentials of logits less a number; a guarded sum of zero does not divide."""

    def weights(logits: Tensor) -> Tensor:
        exponentials = torch.exp(logits - largest(logits))
        total = exponentials.sum(dim=-1, keepdim=True)
        return exponentials / (torch.where(total == 0.0, 1.0, total) if guarded else total)

    return _in_working_dtype(weights, wide=wide)


# What is subtracted from the logits of each row: of a call, its attention and its logits.
Shift = Callable[[DeclaredCall, golden.Attention, Tensor], Tensor]


def shifted(
    shift: Shift,
    divisor: Callable[[Tensor], Tensor],
    *,
    wide: bool,
) -> Callable[[DeclaredCall, golden.Attention], golden.Attention]:
    """Exponentials of logits less a number of each row, over what is made of their sum.

    Rows whose exponentials have lost their digits, and have not vanished, are open.
    """

    def core(call: DeclaredCall, attention: golden.Attention) -> golden.Attention:
        logits, given = _filled(call, attention, logits_with_sinks(attention), wide=wide)
        exponentials = torch.exp(logits - shift(call, attention, logits).to(logits.dtype))
        total = exponentials.sum(dim=-1, keepdim=True)
        weights = (exponentials / divisor(total)).double()[..., : attention.logits.shape[-1]]
        weights = torch.where(given, attention.weights, weights)
        few_digits = faint(total) & ~given
        return emptied(weighing(attention, weights), few_digits.squeeze(-1))

    return core


def _less_at_last(
    largest: Callable[[Tensor], Tensor | float], *, guarded: bool = False
) -> CoreChange:
    """With the division after the weighted sum: tiny exponentials lose other digits then."""

    def core(call: DeclaredCall, attention: golden.Attention) -> golden.Attention:
        working = call.inputs.query.dtype
        logits, given = _filled(call, attention, logits_with_sinks(attention))
        value = attention.value.to(working)
        exponentials = torch.exp(logits - largest(logits))
        total = exponentials.sum(dim=-1, keepdim=True)
        total = torch.where(total == 0.0, 1.0, total) if guarded else total
        output = exponentials[..., : value.shape[2]] @ value / total
        output = torch.where(given, attention.output, output.double())
        return dataclasses.replace(attention, output=output)

    return core


def _every_division(largest: Callable[[Tensor], Tensor | float]) -> list[dict[str, Any]]:
    kinds, guards = (_less, _less_at_last), (False, True)
    own = [{"core": kind(largest, guarded=guarded)} for kind in kinds for guarded in guards]
    fused = (_less(largest, guarded=guarded, wide=True) for guarded in guards)
    return [*own, *({"core": one, "where": _is_half, "needs": "half"} for one in fused)]


def _is_half(inputs: Inputs) -> bool:
    return inputs.query.dtype.itemsize < torch.float32.itemsize


def _largest_of_head(logits: Tensor) -> Tensor:
    return logits.amax(dim=(-2, -1), keepdim=True)


def _not_rescaled(block: int, *, sums_too: bool) -> CoreChange:
    """Blocks of keys whose running maximum grows, and what was added up before is not rescaled."""

    def core(_call: DeclaredCall, attention: golden.Attention) -> golden.Attention | None:
        logits = attention.logits
        if logits.shape[-1] <= block:
            return None
        ends = (torch.arange(logits.shape[-1]) // block + 1) * block - 1
        running = logits.cummax(dim=-1).values[..., ends.clamp_max(logits.shape[-1] - 1)]
        running = torch.where(torch.isneginf(running), 0.0, running)
        exponentials = torch.exp(logits - running)
        final = torch.exp(logits - row_largest(logits))
        total = (exponentials if sums_too else final).sum(dim=-1, keepdim=True)
        if attention.sinks is not None:
            total = total + torch.exp(attention.sinks[:, None, None] - row_largest(logits))
        weights = exponentials / torch.where(total == 0.0, 1.0, total)
        empty = torch.isneginf(logits).all(dim=-1, keepdim=True)
        return weighing(attention, torch.where(empty, attention.weights, weights))

    return core


def _joint(axis: int) -> CoreChange:
    """One softmax over an axis and all behind it together."""

    def core(_call: DeclaredCall, attention: golden.Attention) -> golden.Attention:
        ones = (1,) * (-axis - 1)  # the axes that are one with the last
        flat = attention.logits.flatten(axis).unflatten(-1, (*ones, -1))
        return weighing(attention, golden.softmax(flat).reshape(attention.logits.shape))

    return core


SOFTMAXES: Final[tuple[NamedMistake, ...]] = (
    *named("softmax-twice", _GOLDEN)(
        "the softmax is applied to weights that are a softmax already",
        "apply it once",
        {"core": reweighed(_twice)},
        {"core": reweighed(lambda logits: torch.softmax(torch.softmax(logits, -1), -1))},
        {"core": _twice_of_zeros(_every_key)},
        {"core": _twice_of_zeros(_but_for_bias)},
    ),
    *named("softmax-over-queries-and-keys", "numerics.constant-value")(
        "one softmax runs over queries and keys together",
        "run it over the keys of each query",
        {"core": _joint(-2)},
    ),
    *named("softmax-over-all-but-batch", "numerics.constant-value")(
        "one softmax runs over heads, queries and keys together",
        "run it over the keys of each query: before version 13 of its operators ONNX's Softmax "
        "takes all axes from the first on, unless axis=-1 or the last axis is named",
        {"core": _joint(-3)},
    ),
    *named("softmax-log", _CONVEX)(
        "the logarithm of the softmax weighs the values",
        "use softmax, not log_softmax",
        {"core": reweighed(lambda logits: present(torch.log_softmax(logits, -1)))},
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
        {"core": _less(_largest_of_head)},
        {"core": _less(_largest_of_head, guarded=True)},
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
            {"core": _not_rescaled(block, sums_too=sums_too)}
            for sums_too in (True, False)
            for block in BLOCKS
        ),
    ),
)


def _squashed_whole(scores: Tensor) -> Tensor:
    return torch.tanh(scores)


def _clamped(scores: Tensor, softcap: float) -> Tensor:
    return scores.clamp(-softcap, softcap)


def _capped_before_scale(products: Tensor, scale: float, softcap: float) -> Tensor:
    return scale * softcap * torch.tanh(products / softcap)


def _capped_after_bias(*, hides: bool) -> CoreChange:
    """With the keys that the bias hides left hidden, or at the logit -c that the cap gives them."""

    def core(call: DeclaredCall, attention: golden.Attention) -> golden.Attention | None:
        cap = attention.softcap
        if cap is None or not has_bias(call.inputs):
            return None
        bias = torch.zeros(1, dtype=torch.float64) if attention.bias is None else attention.bias
        finite = bias.masked_fill(torch.isneginf(bias), 0.0)
        logits = cap * torch.tanh((plain_scores(attention) + finite) / cap)
        hidden = ~attention.allowed
        if not hides:
            hidden = ~admitted_by_structure(call).expand(logits.shape)
            logits = torch.where(admitted_by_mask(call), logits, -cap)
        return relogited(attention, logits.masked_fill(hidden, -math.inf))

    return core


SOFTCAPS: Final[tuple[NamedMistake, ...]] = (
    *named("softcap-ignored", "numerics.golden")(
        "the softcap is ignored",
        "cap the scaled scores: c * tanh(scores / c)",
        {"inputs": changed(has_softcap, softcap=None)},
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
        {"core": _capped_after_bias(hides=True)},
        {"core": _capped_after_bias(hides=False)},
    ),
    *named("softcap-not-multiplied", "numerics.golden", where=has_softcap)(
        "tanh(scores / c) is not multiplied by c",
        "cap the scaled scores: c * tanh(scores / c)",
        {"edits": (golden.Edit("capped", lambda squashed: squashed),)},
    ),
    *named("softcap-not-divided", "numerics.golden", where=has_softcap)(
        "the scores are not divided by c before tanh",
        "cap the scaled scores: c * tanh(scores / c)",
        {"edits": (golden.Edit("squashed", _squashed_whole),)},
    ),
    *named("softcap-before-scale", "numerics.golden", where=has_softcap)(
        "the softcap is applied before the scale",
        "scale the scores first, then cap them",
        {"edits": (golden.Edit("capped", _capped_before_scale),)},
    ),
    *named("softcap-clamps", "numerics.golden", where=has_softcap)(
        "the scores are clamped to the softcap",
        "cap the scaled scores smoothly: c * tanh(scores / c)",
        {
            "edits": (
                golden.Edit("capped", lambda scores, softcap: scores.clamp(-softcap, softcap)),
            )
        },
    ),
)


_SINKS: Final = "sinks.golden"
_FIX: Final = "add exp(sink of the head) to the sum of each row's exponentials, and nothing else"


def _sunk(change: Callable[[DeclaredCall, Tensor], Tensor]) -> InputsChange:
    def inputs_for(call: DeclaredCall) -> Inputs | None:
        sinks = call.inputs.sinks
        if sinks is None:
            return None
        return call.inputs.replace(sinks=change(call, sinks.double()))

    return inputs_for


def _valued(value_of: Callable[[Tensor], Tensor]) -> CoreChange:
    """The sink's weight goes to a value ``[B, H, 1, Dv]`` made of the others."""

    def core(call: DeclaredCall, attention: golden.Attention) -> golden.Attention | None:
        if call.inputs.sinks is None or attention.value.shape[-2] == 0:
            return None
        share = 1.0 - attention.weights.sum(dim=-1, keepdim=True)
        output = attention.output + share * value_of(attention.value)
        return dataclasses.replace(attention, output=output)

    return core


def _without_a_key(*, sinks_first: bool) -> CoreChange:
    """The weight of a key is dropped where that of the sink should be: all others move by one."""

    def core(call: DeclaredCall, attention: golden.Attention) -> golden.Attention | None:
        if call.inputs.sinks is None or attention.value.shape[-2] == 0:
            return None
        weights = attention.weights
        share = 1.0 - weights.sum(dim=-1, keepdim=True)
        if sinks_first:
            return weighing(attention, torch.cat([share, weights[..., :-1]], dim=-1))
        return weighing(attention, torch.cat([weights[..., 1:], share], dim=-1))

    return core


SINKS: Final[tuple[NamedMistake, ...]] = (
    *named("sinks-ignored", _SINKS)(
        "the sinks are ignored",
        _FIX,
        {"inputs": changed(has_sinks, sinks=None)},
    ),
    *named("sink-of-first-head", _SINKS)(
        "the sink of the first head is used for all",
        _FIX,
        {"inputs": _sunk(lambda _call, sinks: sinks[:1].expand(sinks.shape))},
    ),
    *named("sinks-reversed", _SINKS)(
        "sinks are given to the heads in the opposite order",
        _FIX,
        {"inputs": _sunk(lambda _call, sinks: sinks.flip(0))},
    ),
    *named("sink-scaled", _SINKS)(
        "the sink is scaled like a dot product",
        _FIX,
        {"inputs": _sunk(lambda call, sinks: call.scale * sinks)},
    ),
    *named("sink-negated", _SINKS)(
        "the sink has the other sign",
        _FIX,
        {"inputs": _sunk(lambda _call, sinks: -sinks)},
    ),
    *named("sinks-zero", _SINKS)(
        "every sink is zero, whatever was handed over: a one joins each sum",
        _FIX,
        {"inputs": _sunk(lambda _call, sinks: torch.zeros_like(sinks))},
    ),
    *named("sink-not-exponentiated", _SINKS)(
        "the sink itself, not its exponential, joins the sum",
        _FIX,
        {"inputs": _sunk(lambda _call, sinks: sinks.abs().log())},
    ),
    *named("sink-with-value", _SINKS, where=has_sinks)(
        "the weight of the sink goes to a value",
        _FIX,
        {"core": _valued(lambda value: value.mean(dim=2, keepdim=True))},
        {"core": _valued(lambda value: value[:, :, :1])},
    ),
    *named("sink-dropped-at-the-wrong-end", _SINKS, where=has_sinks)(
        "the weight at the other end is dropped, not that of the sink: each value gets a "
        "neighbour's weight",
        "drop the column of the sink: the last one where it was put behind the keys",
        {"core": _without_a_key(sinks_first=False)},
        {"core": _without_a_key(sinks_first=True)},
    ),
)
