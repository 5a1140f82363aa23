"""Additive masks, linear biases and rotary positions lost, changed, or read otherwise."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final

import torch
from torch import Tensor

from ..._golden import golden
from ...problems.inputs import Inputs
from ._steps import (
    admitted_by_mask,
    admitted_by_structure,
    capped_scores,
    changed,
    has_bias,
    has_cache,
    relogited,
    unmasked_logits,
    weighing,
)
from .fills import filled, increased, operated
from .named_mistake import (
    CoreChange,
    DeclaredCall,
    Heads,
    HeadsChange,
    InputsChange,
    NamedMistake,
    named,
)

_BIAS: Final = "mask.bias-counts"


def _rebiased(change: Callable[[Tensor], Tensor]) -> InputsChange:
    def inputs_for(call: DeclaredCall) -> Inputs | None:
        bias = call.inputs.bias
        return None if bias is None else call.inputs.replace(bias=change(bias.double()))

    return inputs_for


def _plus_infinities_too(
    change: Callable[[Tensor], Tensor], *, last: bool = False
) -> dict[str, Any]:
    """The steps of a change of the bias that makes plus of minus infinity: such rows are NaN.

    Where it comes ``last``, those of keys are, too, that causality or a window has hidden already.
    """
    return {
        "inputs": _rebiased(change),
        "core": operated("mask", increased(math.inf) if last else filled(math.inf), last=last),
        "where": has_bias,
    }


def _bias_of_first(axis: int, *, hidden_too: bool) -> InputsChange:
    """With the values at hidden keys, or zeros there, as where minus infinity was taken out."""

    def inputs_for(call: DeclaredCall) -> Inputs | None:
        bias, keep = call.inputs.bias, call.inputs.keep
        if bias is None or bias.shape[axis] == 1:
            return None
        if keep is not None and not hidden_too:
            bias = bias.masked_fill(~keep, 0.0)
        return call.inputs.replace(bias=bias.narrow(axis, 0, 1))

    return inputs_for


def _as_boolean(hidden: Callable[[Tensor, Tensor], Tensor]) -> InputsChange:
    """The additive mask is cast to bool: ``hidden`` gets its table and its finite values."""

    def inputs_for(call: DeclaredCall) -> Inputs | None:
        inputs = call.inputs
        if inputs.mask_form != "bias":
            return None
        admitted = admitted_by_mask(call)
        bias = torch.zeros(admitted.shape) if inputs.bias is None else inputs.bias
        return inputs.replace(keep=~hidden(admitted, bias), bias=None)

    return inputs_for


def _multiplied_by_bias(call: DeclaredCall, attention: golden.Attention) -> golden.Attention | None:
    if call.inputs.mask_form != "bias":
        return None
    bias = call.inputs.bias
    bias = torch.zeros(1, dtype=torch.float64) if bias is None else bias.double()
    logits = (capped_scores(attention) * bias).masked_fill(~attention.allowed, -math.inf)
    return relogited(attention, logits)


def _bias_after_softmax(call: DeclaredCall, attention: golden.Attention) -> golden.Attention | None:
    bias = call.inputs.bias
    if bias is None:
        return None
    logits = (unmasked_logits(attention) - bias).masked_fill(~attention.allowed, -math.inf)
    return weighing(attention, golden.softmax(logits) + bias * attention.allowed)


def _all_scaled(*, triangle: bool) -> CoreChange:
    """The bias before the scale, minus infinities too: a scale that is not positive breaks them.

    With the ``triangle`` those of the causal flag as well.
    """

    def core(call: DeclaredCall, attention: golden.Attention) -> golden.Attention | None:
        inputs = call.inputs
        given = has_bias(inputs) or (triangle and inputs.causal)
        if not given or attention.softcap is not None or attention.alibi is not None:
            return None
        bias = torch.zeros(1, dtype=torch.float64) if inputs.bias is None else inputs.bias.double()
        bias = bias.masked_fill(~admitted_by_mask(call), -math.inf)
        hidden = ~admitted_by_structure(call)
        bias = bias.masked_fill(hidden, -math.inf) if triangle else bias
        logits = attention.scale * (attention.query @ attention.key.mT + bias)
        logits = logits if triangle else logits.masked_fill(hidden, -math.inf)
        empty = torch.isneginf(logits).all(dim=-1, keepdim=True)
        return weighing(attention, torch.where(empty, attention.weights, torch.softmax(logits, -1)))

    return core


BIASES: Final[tuple[NamedMistake, ...]] = (
    *named("bias-before-scale", _BIAS)(
        "the bias is added before the scaling and is scaled too",
        "scale the scores first, then add the bias",
        {"core": _all_scaled(triangle=False), "where": has_bias},
        {
            "core": _all_scaled(triangle=True),
            "where": lambda inputs: has_bias(inputs) or inputs.causal,
        },
    ),
    *named("bias-ignored", _BIAS)(
        "the finite values of the bias are ignored",
        "add it to the scaled scores",
        {"inputs": changed(lambda inputs: inputs.bias is not None, bias=None)},
        {"inputs": changed(has_bias, bias=None, keep=None)},
    ),
    *named("bias-subtracted", _BIAS)(
        "the bias is subtracted",
        "add it",
        {"inputs": _rebiased(lambda bias: -bias)},
        _plus_infinities_too(lambda bias: -bias),
        _plus_infinities_too(lambda bias: -bias, last=True),
    ),
    *named("bias-doubled", _BIAS)(
        "the bias is added twice",
        "add it once",
        {"inputs": _rebiased(lambda bias: 2.0 * bias)},
    ),
    *named("bias-halved", _BIAS)(
        "half of the bias is added",
        "add it as it is",
        {"inputs": _rebiased(lambda bias: 0.5 * bias)},
    ),
    *named("bias-in-binary-units", _BIAS)(
        "the scores are rescaled for powers of two and the bias is not",
        "multiply the bias by log2(e), too",
        {"inputs": _rebiased(lambda bias: bias * math.log(2.0))},
        {"inputs": _rebiased(lambda bias: bias / math.log(2.0))},
    ),
    *named("bias-clamped", _BIAS)(
        "a bias above zero is clamped to zero",
        "add it as it is",
        {"inputs": _rebiased(lambda bias: bias.clamp_max(0.0))},
    ),
    *named("bias-without-sign", _BIAS)(
        "the sign of the bias is lost",
        "add it as it is",
        {"inputs": _rebiased(torch.abs)},
        _plus_infinities_too(torch.abs),
        {"inputs": _rebiased(lambda bias: -bias.abs())},
    ),
    *(
        mistake
        for axis, name in enumerate(("item", "head", "query"))
        for mistake in named(f"bias-of-first-{name}", _BIAS, special_of=f"mask-of-first-{name}")(
            f"the finite values of the bias of the first {name} are used for all",
            "broadcast the bias along its own axes",
            {"inputs": _bias_of_first(axis, hidden_too=True)},
            {"inputs": _bias_of_first(axis, hidden_too=False)},
        )
    ),
    *named("bias-multiplied", _BIAS, where=has_bias)(
        "the scores are multiplied by the bias",
        "add it",
        {"core": _multiplied_by_bias},
    ),
    *named("bias-after-softmax", _BIAS, where=lambda inputs: inputs.bias is not None)(
        "the bias is added to the weights, after the softmax",
        "add it to the scaled scores",
        {"core": _bias_after_softmax},
    ),
    *named("bias-taken-for-boolean", "mask.bias")(
        "the additive mask is cast to a boolean one: its numbers are lost",
        "add a floating-point mask to the scaled scores",
        {"inputs": _as_boolean(lambda kept, bias: ~kept | (bias != 0.0))},
        {"inputs": _as_boolean(lambda kept, bias: kept & (bias == 0.0))},
        {"inputs": _as_boolean(lambda kept, bias: ~kept | (bias < 0.0))},
    ),
)


_ROTARY: Final = "position.rotary"
_ALIBI: Final = "bias.alibi"
_TURN: Final = "turn query and key by position times base^(-2i/R), each at its own position"
_SLOPES: Final = "take slope times distance off the scaled scores"
# The rotations at which such a mistake is acted out, and the biases.
_HALVES: Final = {"rotary": "halves"}
_INTERLEAVED: Final = {"rotary": "interleaved"}
_LINEAR: Final = {"alibi": True}


def _turns(point: golden.Semantics) -> bool:
    return point.rotary != "none"


def _places(query: Tensor, key: Tensor, point: golden.Semantics) -> tuple[Tensor, Tensor]:
    lengths = query.shape[-2], key.shape[-2]
    return golden.query_positions(*lengths, point), torch.arange(lengths[1])


def _turned(
    query: Callable[[Tensor], Tensor] | None = None,
    key: Callable[[Tensor], Tensor] | None = None,
    value: Callable[[Tensor], Tensor] | None = None,
) -> HeadsChange:
    """Heads that are turned by so much more before they are turned as declared.

    Each function gets the positions of its tokens.
    """

    def heads(call: DeclaredCall, before: Heads) -> Heads:
        here, there = _places(before[0], before[1], call.semantics)
        changes = zip(before, (query, key, value), (here, there, there), strict=True)
        one, two, three = (
            tokens if more is None else golden.rotate_heads(tokens, more(place), call.semantics)
            for tokens, more, place in changes
        )
        return one, two, three

    return heads


def _from_the_other_end(call: DeclaredCall, before: Heads) -> Heads:
    """Queries stand where the other alignment has them."""
    query, key, value = before
    shift = key.shape[-2] - query.shape[-2]
    shift = -shift if call.semantics.causal_alignment == "bottom-right" else shift
    moved = torch.full((query.shape[-2],), float(shift))
    return golden.rotate_heads(query, moved, call.semantics), key, value


def _turned_with_cache(
    key: Callable[[Tensor, int], Tensor], query: Callable[[Tensor, int], Tensor] | None = None
) -> dict[str, Any]:
    """Keys, and queries if so, that are turned by more where some of the keys are cached.

    Each function gets positions and the number of cached keys.
    """

    def heads(call: DeclaredCall, before: Heads) -> Heads | None:
        past = call.inputs.past
        if not past:
            return None
        more = None if query is None else lambda place: query(place, past)
        return _turned(query=more, key=lambda place: key(place, past))(call, before)

    return {"heads": heads, "where": has_cache}


def _of_new(place: Tensor, past: int) -> Tensor:
    """From the right positions of new tokens to those that are counted from zero."""
    return torch.where(place >= past, -past, 0)


def _linear(change: Callable[[DeclaredCall, Tensor], Tensor]) -> InputsChange:
    """Another bias by distance: what it lacks to the declared one joins the bias of the call."""

    def inputs_for(call: DeclaredCall) -> Inputs | None:
        inputs, sizes = call.inputs, call.inputs.geometry
        lengths = sizes.query_length, sizes.key_length
        places = golden.query_positions(*lengths, call.semantics)
        right = golden.alibi_bias(sizes.num_heads, places, sizes.key_length)
        more = change(call, right) - right
        return inputs.replace(bias=more if inputs.bias is None else inputs.bias.double() + more)

    return inputs_for


def _of_slopes(slopes: Callable[[int], Tensor]) -> Callable[[DeclaredCall, Tensor], Tensor]:
    def change(call: DeclaredCall, right: Tensor) -> Tensor:
        heads = call.inputs.geometry.num_heads
        return right * (slopes(heads) / golden.alibi_slopes(heads))[:, None, None]

    return change


def _one_sequence(heads: int) -> Tensor:
    return 2.0 ** (-8.0 * torch.arange(1, heads + 1, dtype=torch.float64) / heads)


def _from_the_first_query(call: DeclaredCall, _right: Tensor) -> Tensor:
    sizes = call.inputs.geometry
    places = torch.arange(sizes.query_length)
    return golden.alibi_bias(sizes.num_heads, places, sizes.key_length)


def _signed(call: DeclaredCall, right: Tensor) -> Tensor:
    sizes = call.inputs.geometry
    places = golden.query_positions(sizes.query_length, sizes.key_length, call.semantics)
    return torch.where(torch.arange(sizes.key_length) > places[:, None], -right, right)


def _rotary(name: str, text: str, *ways: dict[str, Any], fix: str = _TURN) -> list[NamedMistake]:
    """A mistake that either pairing may make; acted out with halves."""
    shared = {"base": _HALVES, "fits": _turns}
    return named(name, _ROTARY)(
        text,
        fix,
        *({**shared, **way} for way in ways),
    )


def _alibi(name: str, text: str, *ways: dict[str, Any], fix: str = _SLOPES) -> list[NamedMistake]:
    return named(name, _ALIBI)(
        text,
        fix,
        *({"base": _LINEAR, **way} for way in ways),
    )


POSITIONS: Final[tuple[NamedMistake, ...]] = (
    *named("rotary-pairing", _ROTARY)(
        "other channels are turned together: halves for neighbours, or the reverse",
        "pair channel i with i + R/2 (halves) or channel 2i with 2i + 1, as declared",
        {"base": _HALVES, "changes": {"rotary": "interleaved"}},
        {"base": _INTERLEAVED, "changes": {"rotary": "halves"}},
    ),
    *_rotary(
        "rotary-base",
        "the base of the rotary frequencies is another",
        *({"changes": {"rotary_base": base}} for base in (1000.0, 500000.0, 1000000.0)),
        fix="turn pair i of R channels by position times base^(-2i/R), with the declared base",
    ),
    *named("rotary-undeclared", "numerics.golden")(
        "queries and keys are turned by their positions, which is not declared",
        "declare it",
        *(
            {
                "base": {"rotary": "none"},
                "changes": {"rotary": pairs},
                "fix": f'declare it: semantics=conformance.Semantics(rotary="{pairs}"); of a graph '
                "rotary under [semantics] in its sidecar. Or turn nothing",
            }
            for pairs in ("halves", "interleaved")
        ),
    ),
    *_rotary("rotary-missing", "queries and keys are not turned", {"changes": {"rotary": "none"}}),
    *_rotary(
        "rotary-query-only",
        "queries are turned and keys are not",
        {"heads": _turned(key=lambda place: -place)},
        fix="turn the keys as well, each by its own position",
    ),
    *_rotary(
        "rotary-key-only",
        "keys are turned and queries are not",
        {"heads": _turned(query=lambda place: -place)},
        fix="turn the queries as well, each by its own position",
    ),
    *_rotary(
        "rotary-backwards",
        "queries and keys are turned in opposite directions",
        {"heads": _turned(key=lambda place: -2 * place)},
        {"heads": _turned(query=lambda place: -2 * place)},
        fix="turn queries and keys by the same sign: a cos - b sin, b cos + a sin for both",
    ),
    *_rotary(
        "rotary-twice",
        "queries and keys are turned twice",
        {"heads": _turned(query=lambda place: place, key=lambda place: place)},
        fix="turn queries and keys once: keys that come turned from a cache are not turned again",
    ),
    *_rotary(
        "rotary-value-too",
        "values are turned like keys",
        {"heads": _turned(value=lambda place: place)},
        fix="turn queries and keys alone, and leave the values as they are",
    ),
    *_rotary(
        "rotary-off-by-one",
        "positions of queries and keys are counted from different numbers",
        {"heads": _turned(key=torch.ones_like)},
        {"heads": _turned(query=torch.ones_like)},
        fix="count the positions of queries and of keys from the same number",
    ),
    *_rotary(
        "rotary-offset",
        "queries are counted from the other end of the keys, as if nothing were cached",
        {"heads": _from_the_other_end},
        fix="give query i of Lq the position i + Lk - Lq among Lk keys where the alignment is "
        "declared bottom-right, else i",
    ),
    *_rotary(
        "rotary-new-tokens-from-zero",
        "with a cache the positions of new queries and keys are counted from 0",
        _turned_with_cache(_of_new, _of_new),
        fix="add the number of cached keys to the positions of new queries and keys",
    ),
    *_rotary(
        "rotary-new-keys-from-zero",
        "with a cache the positions of the new keys are counted from 0, those of queries are not",
        _turned_with_cache(_of_new),
        fix="add the number of cached keys to the positions of the new keys as well",
    ),
    *_rotary(
        "rotary-cache-not-turned",
        "the cached keys are not turned",
        _turned_with_cache(lambda place, past: torch.where(place < past, -place, 0)),
        fix="turn the cached keys as well, by positions from 0 on",
    ),
    *_rotary(
        "rotary-cache-turned-twice",
        "the cached keys are turned twice",
        _turned_with_cache(lambda place, past: torch.where(place < past, place, 0)),
        fix="turn each key once: those that are cached turned are not turned again",
    ),
    *named("rotary-fraction", "position.rotary-partial")(
        "all channels are turned, not the declared fraction",
        "leave the channels beyond the fraction as they are",
        {
            "base": {"rotary": "interleaved", "rotary_fraction": 0.5},
            "fits": lambda point: point.rotary != "none" and point.rotary_fraction < 1.0,
            "changes": {"rotary_fraction": 1.0},
        },
    ),
    *named("alibi-undeclared", "numerics.golden")(
        "slope times distance is taken off the logits (ALiBi), which is not declared",
        "declare it: semantics=conformance.Semantics(alibi=True); of a graph alibi under "
        "[semantics] in its sidecar. Or add no bias",
        *(
            {"base": {"alibi": False}, "changes": {"alibi": True}, **slopes}
            for slopes in ({}, {"inputs": _linear(_of_slopes(_one_sequence))})
        ),
    ),
    *_alibi("alibi-missing", "the linear biases are left out", {"changes": {"alibi": False}}),
    *_alibi(
        "alibi-one-sequence",
        "slopes follow one geometric sequence though the heads are no power of two",
        {"inputs": _linear(_of_slopes(_one_sequence))},
        fix="take the slopes of the largest power of two below the number of heads, and then every "
        "second slope of twice that power",
    ),
    *_alibi(
        "alibi-reversed",
        "slopes are given to the heads in the opposite order",
        {"inputs": _linear(_of_slopes(lambda heads: golden.alibi_slopes(heads).flip(0)))},
        fix="give the first head the largest slope",
    ),
    *_alibi(
        "alibi-sign",
        "slope times distance is added",
        {"inputs": _linear(lambda _call, right: -right)},
    ),
    *_alibi(
        "alibi-signed",
        "the distance has a sign: later keys gain",
        {"inputs": _linear(_signed)},
    ),
    *_alibi(
        "alibi-scaled",
        "the linear biases join before the scale",
        {"inputs": _linear(lambda call, right: call.scale * right)},
    ),
    *_alibi(
        "alibi-offset",
        "distances are counted as if the first query stood at the first key",
        {"inputs": _linear(_from_the_first_query)},
        fix="count a query's place from the last key: add the number of keys less that of queries",
    ),
)
