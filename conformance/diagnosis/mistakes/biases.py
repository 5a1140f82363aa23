"""Additive masks, linear biases and rotary positions lost, changed or misread."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, Final

import torch
from torch import Tensor

from ..._golden import golden
from ...problems.inputs import Inputs
from ._steps import has_bias, has_cache, reweighed
from .fills import filled, increased, treated
from .named_mistake import Edits, NamedMistake, edits_by, fixing, named

Edit = golden.Edit
_BIAS: Final = "mask.bias-counts"
_ONCE: Final = "add it once"
_AS_IT_IS: Final = "add it as it is"
_TO_SCORES: Final = "add it to the scaled scores"
_bias: Final = partial(named, primary=_BIAS)


def _rebiased(change: Callable[..., Tensor]) -> golden.Edit:
    return Edit("given_bias", change=change)


def _plus_infinities_too(words: str, *, last: bool = False) -> dict[str, Any]:
    """Change the bias and its minus infinities, which become plus infinities: such rows are NaN.

    With ``last``, keys that causality or a window already hides are included.
    """
    infinite = treated("mask", (increased if last else filled)(math.inf), last=last)
    return {"edits": (*edits_by(words, "given_bias"), *infinite), "where": has_bias}


def _negated_size(bias: Tensor) -> Tensor:
    return -bias.abs()


def _bias_of_first(axis: int, *, hidden_too: bool) -> golden.Edit:
    """Take the first bias along an axis, with its values at hidden keys or with zeros.

    Zeros arise where minus infinity was taken out.
    """

    def change(bias: Tensor, keep: Tensor | None) -> Tensor:
        if bias.shape[axis] == 1:
            return bias
        if keep is not None and not hidden_too:
            bias = bias.masked_fill(~keep, 0.0)
        return bias.narrow(axis, 0, 1)

    return _rebiased(change)


def _cast_to_boolean(hidden: Callable[[Tensor, Tensor], Tensor]) -> Edits:
    """Cast the additive mask to bool; ``hidden`` gets the table and the finite values."""

    def keep(inputs: Inputs) -> Tensor:
        kept = torch.ones(1, 1, 1, 1, dtype=torch.bool) if inputs.keep is None else inputs.keep
        return ~hidden(kept, torch.zeros(1) if inputs.bias is None else inputs.bias)

    return Edit("keep", keep), Edit("given_bias", lambda: None)


def _all_scaled(*, triangle: bool) -> Edits:
    """Scale the bias with its minus infinities, which a scale of zero or below breaks.

    With ``triangle``, the minus infinities of the causal flag are scaled as well.
    """

    def logits(
        products: Tensor, scale: float, bias: Tensor | None, by_mask: Tensor, structure: Tensor
    ) -> Tensor:
        inner = by_mask & structure if triangle else by_mask
        biased = products if bias is None else products + bias
        scaled = scale * biased.masked_fill(~inner, -math.inf)
        return scaled if triangle else scaled.masked_fill(~structure, -math.inf)

    def is_plain(softcap: float | None, distance_bias: Tensor | None) -> bool:
        return softcap is None and distance_bias is None

    return Edit("logits", logits, when=is_plain), reweighed(
        lambda logits: torch.softmax(logits, -1)
    )


BIASES: Final[tuple[NamedMistake, ...]] = (
    *_bias("bias-before-scale")(
        "the bias is added before the scaling and is scaled too",
        "scale the scores first, then add the bias",
        {"edits": _all_scaled(triangle=False), "where": has_bias},
        {
            "edits": _all_scaled(triangle=True),
            "where": lambda inputs: has_bias(inputs) or inputs.causal,
        },
    ),
    *_bias("bias-ignored")(
        "the finite values of the bias are ignored",
        _TO_SCORES,
        Edit("given_bias", lambda: None),
        {
            "edits": (Edit("given_bias", lambda: None), Edit("keep", lambda: None)),
            "where": has_bias,
        },
    ),
    *_bias("bias-subtracted")(
        "the bias is subtracted",
        "add it",
        edits_by("negated", "given_bias"),
        _plus_infinities_too("negated"),
        _plus_infinities_too("negated", last=True),
    ),
    *_bias("bias-doubled")(
        "the bias is added twice",
        _ONCE,
        edits_by("doubled", "given_bias"),
    ),
    *_bias("bias-halved")(
        "half of the bias is added",
        _AS_IT_IS,
        edits_by("halved", "given_bias"),
    ),
    *_bias("bias-in-binary-units")(
        "the scores are rescaled for powers of two and the bias is not",
        "multiply the bias by log2(e), too",
        edits_by("multiplied by ln(2)", "given_bias"),
        edits_by("multiplied by log2(e)", "given_bias"),
    ),
    *_bias("bias-clamped")(
        "a bias above zero is clamped to zero",
        _AS_IT_IS,
        edits_by("with zeros for what is positive", "given_bias"),
    ),
    *_bias("bias-without-sign")(
        "the sign of the bias is lost",
        _AS_IT_IS,
        edits_by("without their sign", "given_bias"),
        _plus_infinities_too("without their sign"),
        _rebiased(_negated_size),
    ),
    *(
        mistake
        for axis, name in enumerate(("item", "head", "query"))
        for mistake in named(
            f"bias-of-first-{name}", "mask.bias", special_of=f"mask-of-first-{name}"
        )(
            f"the finite values of the bias of the first {name} are used for all",
            "broadcast the bias along its own axes",
            _bias_of_first(axis, hidden_too=True),
            _bias_of_first(axis, hidden_too=False),
        )
    ),
    *_bias("bias-multiplied", where=has_bias)(
        "the scores are multiplied by the bias",
        "add it",
        Edit(
            "biased",
            lambda modified, bias: torch.zeros_like(modified) if bias is None else modified * bias,
        ),
    ),
    *_bias("bias-after-softmax", where=lambda inputs: inputs.bias is not None)(
        "the bias is added to the weights, after the softmax",
        _TO_SCORES,
        (
            Edit("biased", change=lambda biased, bias: biased - bias),
            Edit("weights", lambda shares, bias, allowed: shares + bias * allowed),
        ),
    ),
    *named("bias-taken-for-boolean", "mask.bias", where=has_bias)(
        "the additive mask is cast to a boolean one: its numbers are lost",
        "add a floating-point mask to the scaled scores",
        _cast_to_boolean(lambda kept, bias: ~kept | (bias != 0.0)),
        _cast_to_boolean(lambda kept, bias: kept & (bias == 0.0)),
        _cast_to_boolean(lambda kept, bias: ~kept | (bias < 0.0)),
    ),
)


_ROTARY: Final = "position.rotary"
_ALIBI: Final = "bias.alibi"
_TURN: Final = "turn query and key by position times base^(-2i/R), each at its own position"
_SLOPES: Final = "take slope times distance off the scaled scores"
# The rotations and biases with which mistakes are acted out.
_HALVES: Final = {"rotary": "halves"}
_INTERLEAVED: Final = {"rotary": "interleaved"}
_LINEAR: Final = {"alibi": True}


def _turns(point: golden.Semantics) -> bool:
    return point.rotary != "none"


# Behind a rotation, in front of it, and the places and angles that it is made with.
_OF_QUERIES: Final = ("query", "normalised_query", "query_places", "query_angles")
_OF_KEYS: Final = ("turned_key", "normalised_key", "key_places", "key_angles")
_Places = Callable[[Tensor, Inputs], Tensor]


def _turn_later(side: tuple[str, ...], more: _Places) -> golden.Edit:
    """Heads that are turned as if they stood so many places later."""

    def angles(places: Tensor, frequencies: Tensor, tables: Tensor | None, inputs: Inputs) -> Any:
        return golden.angles_at(places + more(places, inputs), frequencies, tables)

    reads = (side[2], "frequencies", "rotary_tables", "inputs")
    return Edit(side[3], golden.Rewired(angles, reads))


def _left(side: tuple[str, ...]) -> golden.Edit:
    """Heads that are not turned."""
    return Edit(side[0], golden.Rewired(torch.clone, (side[1],)))


def _backwards(side: tuple[str, ...]) -> golden.Edit:
    return Edit(side[3], change=torch.neg)


def _turned_more(stage: str, side: tuple[str, ...]) -> golden.Edit:
    """Heads that are turned, as those of a side are, by their places.

    Tables of a call are those of its own tokens, not of the cached ones.
    """

    def change(
        heads: Tensor, places: Tensor, tables: Tensor | None, inputs: Inputs, point: Any
    ) -> Tensor:
        turned = golden.rotate_heads(heads, places, point, tables)
        if tables is None:
            return turned
        return torch.where((places < inputs.past)[:, None], heads, turned)

    reads = ("", side[2], "rotary_tables", "inputs", "point")
    return Edit(stage, change=golden.Rewired(change, reads))


def _one_later(places: Tensor, _inputs: Inputs) -> Tensor:
    return torch.ones_like(places)


def _count_from_other_end(places: Tensor, inputs: Inputs) -> Tensor:
    """Queries stand where the other alignment has them."""
    shift = inputs.geometry.key_length - inputs.geometry.query_length
    shift = -shift if inputs.point.causal_alignment == "bottom-right" else shift
    return torch.full_like(places, shift)


def _new_from_zero(places: Tensor, inputs: Inputs) -> Tensor:
    """From the right positions of new tokens to those that are counted from zero."""
    return torch.where(places >= inputs.past, -inputs.past, 0)


def _counts_new_tokens(inputs: Inputs) -> bool:
    return has_cache(inputs) and inputs.positions is None


def _cached(sign: int) -> golden.Edit:
    """Cached keys that are turned by their places once more, or back."""

    def more(at: Tensor, inputs: Inputs) -> Tensor:
        return torch.where(torch.arange(at.shape[-1]) < inputs.past, sign * at, 0)

    return _turn_later(_OF_KEYS, more)


def _linear(other: Callable[..., Tensor]) -> golden.Edit:
    def bias(
        inputs: Inputs,
        sizes: golden.Sizes,
        query_places: Tensor,
        key_places: Tensor,
        scale: float,
        slopes: Tensor | None,
    ) -> Tensor:
        right = golden.alibi_bias(sizes.num_heads, query_places, key_places, slopes)
        ahead = key_places[..., None, :] - query_places[..., None]
        more = other(right, sizes, ahead, scale, slopes) - right
        return more if inputs.bias is None else inputs.bias.double() + more

    return Edit("given_bias", bias)


def _change_slopes(change: Callable[[Tensor], Tensor]) -> golden.Edit:
    def other(_right: Tensor, sizes: golden.Sizes, ahead: Tensor, *others: Any) -> Tensor:
        given = others[-1]
        own = golden.alibi_slopes(sizes.num_heads).unsqueeze(0) if given is None else given
        return -change(own)[..., None, None] * ahead.abs().double()

    return _linear(other)


def _has_formula_slopes(inputs: Inputs) -> bool:
    return inputs.learned is None or "alibi_slopes" not in inputs.learned.values


def _one_sequence(slopes: Tensor) -> Tensor:
    heads = slopes.shape[-1]
    return 2.0 ** (-8.0 * torch.arange(1, heads + 1, dtype=torch.float64) / heads)[None]


def _count_from_first_query(
    _right: Tensor, sizes: golden.Sizes, _ahead: Tensor, _scale: float, slopes: Tensor | None
) -> Tensor:
    places = torch.arange(sizes.query_length)
    return golden.alibi_bias(sizes.num_heads, places, sizes.key_length, slopes)


def _signed(right: Tensor, _sizes: golden.Sizes, ahead: Tensor, *_others: Any) -> Tensor:
    return torch.where(ahead > 0, -right, right)


# Mistakes of both pairings, acted out with halves.
_rotary: Final = fixing(_TURN, primary=_ROTARY, base=_HALVES, fits=_turns)
_alibi: Final = fixing(_SLOPES, primary=_ALIBI, base=_LINEAR)
POSITIONS: Final[tuple[NamedMistake, ...]] = (
    *named("rotary-pairing", _ROTARY)(
        "other channels are turned together: halves for neighbours, or the reverse",
        "pair channel i with i + R/2 (halves) or channel 2i with 2i + 1, as declared",
        {"base": _HALVES, "changes": {"rotary": "interleaved"}},
        {"base": _INTERLEAVED, "changes": {"rotary": "halves"}},
    ),
    *_rotary(
        "rotary-base",
        fix="turn pair i of R channels by position times base^(-2i/R), with the declared base",
    )(
        "the base of the rotary frequencies is another",
        *({"changes": {"rotary_base": base}} for base in (1000.0, 500000.0, 1000000.0)),
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
    *_rotary("rotary-missing")(
        "queries and keys are not turned",
        {"changes": {"rotary": "none"}},
    ),
    *_rotary("rotary-query-only", fix="turn the keys as well, each by its own position")(
        "queries are turned and keys are not",
        _left(_OF_KEYS),
    ),
    *_rotary("rotary-key-only", fix="turn the queries as well, each by its own position")(
        "keys are turned and queries are not",
        _left(_OF_QUERIES),
    ),
    *_rotary(
        "rotary-backwards",
        fix="turn queries and keys by the same sign: a cos - b sin, b cos + a sin for both",
    )(
        "queries and keys are turned in opposite directions",
        _backwards(_OF_KEYS),
        _backwards(_OF_QUERIES),
    ),
    *named("rotary-scaling-missing", "position.scaling")(
        "the frequencies of the rotary positions are not scaled",
        "scale them as declared, once, where they are made",
        {
            "base": {"rotary": "halves", "rotary_scaling": ("linear", 4.0)},
            "fits": lambda point: _turns(point) and point.rotary_scaling is not None,
            "changes": {"rotary_scaling": None},
        },
    ),
    *named("rotary-amplitude-missing", "position.scaling")(
        "cosines and sines are not multiplied by the declared amplitude",
        "multiply cosines and sines by it: it is squared in the scores",
        {
            "base": {"rotary": "halves", "rotary_amplitude": 1.25},
            "fits": lambda point: _turns(point) and point.rotary_amplitude != 1.0,
            "changes": {"rotary_amplitude": 1.0},
        },
    ),
    *_rotary(
        "rotary-twice",
        fix="turn queries and keys once: keys that come turned from a cache are not turned again",
    )(
        "queries and keys are turned twice",
        (_turned_more("query", _OF_QUERIES), _turned_more("turned_key", _OF_KEYS)),
    ),
    *_rotary(
        "rotary-value-too", fix="turn queries and keys alone, and leave the values as they are"
    )(
        "values are turned like keys",
        _turned_more("value_heads", _OF_KEYS),
    ),
    *_rotary(
        "rotary-off-by-one", fix="count the positions of queries and of keys from the same number"
    )(
        "positions of queries and keys are counted from different numbers",
        _turn_later(_OF_KEYS, _one_later),
        _turn_later(_OF_QUERIES, _one_later),
    ),
    *_rotary(
        "rotary-offset",
        fix="give query i of Lq the position i + Lk - Lq among Lk keys where the alignment is "
        "declared bottom-right, else i",
    )(
        "queries are counted from the other end of the keys, as if nothing were cached",
        _turn_later(_OF_QUERIES, _count_from_other_end),
    ),
    *_rotary(
        "rotary-new-tokens-from-zero",
        where=_counts_new_tokens,
        fix="add the number of cached keys to the positions of new queries and keys",
    )(
        "with a cache the positions of new queries and keys are counted from 0",
        (_turn_later(_OF_QUERIES, _new_from_zero), _turn_later(_OF_KEYS, _new_from_zero)),
    ),
    *_rotary(
        "rotary-new-keys-from-zero",
        where=_counts_new_tokens,
        fix="add the number of cached keys to the positions of the new keys as well",
    )(
        "with a cache the positions of the new keys are counted from 0, those of queries are not",
        _turn_later(_OF_KEYS, _new_from_zero),
    ),
    *_rotary(
        "rotary-cache-not-turned",
        where=has_cache,
        fix="turn the cached keys as well, by positions from 0 on",
    )(
        "the cached keys are not turned",
        _cached(-1),
    ),
    *_rotary(
        "rotary-cache-turned-twice",
        where=has_cache,
        fix="turn each key once: those that are cached turned are not turned again",
    )(
        "the cached keys are turned twice",
        _cached(1),
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
            for slopes in ({}, {"edits": (_change_slopes(_one_sequence),)})
        ),
    ),
    *_alibi("alibi-missing")(
        "the linear biases are left out",
        {"changes": {"alibi": False}},
    ),
    *_alibi(
        "alibi-one-sequence",
        where=_has_formula_slopes,
        fix="take the slopes of the largest power of two below the number of heads, and then every "
        "second slope of twice that power",
    )(
        "slopes follow one geometric sequence though the heads are no power of two",
        _change_slopes(_one_sequence),
    ),
    *_alibi(
        "alibi-reversed", where=_has_formula_slopes, fix="give the first head the largest slope"
    )(
        "slopes are given to the heads in the opposite order",
        _change_slopes(lambda slopes: slopes.flip(-1)),
    ),
    *_alibi("alibi-sign")(
        "slope times distance is added",
        _linear(lambda right, *_others: -right),
    ),
    *_alibi("alibi-signed")(
        "the distance has a sign: later keys gain",
        _linear(_signed),
    ),
    *_alibi("alibi-scaled")(
        "the linear biases join before the scale",
        _linear(lambda right, _sizes, _ahead, scale, _slopes: scale * right),
    ),
    *_alibi(
        "alibi-offset",
        fix="count a query's place from the last key: add the number of keys less that of queries",
    )(
        "distances are counted as if the first query stood at the first key",
        _linear(_count_from_first_query),
    ),
)
