"""Learned arguments of a call: lost, exchanged, misplaced, or without their gradient."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final

import torch
from torch import Tensor

from ..._golden import golden
from ...problems.inputs import Inputs
from .named_mistake import Edits, NamedMistake, changed, edits_by, fixing, named

Edit = golden.Edit
_WEIGHT: Final = "learned.norm-weight"
_TEMPERATURE: Final = "learned.temperature"
_SLOPES: Final = "learned.slopes"
_MEMORY: Final = "learned.memory"
_GRADIENT: Final = "gradients.learned"
_RMS: Final = {"qk_norm": "rms"}
_LINEAR: Final = {"alibi": True}
_WEIGHTS: Final = ("query_weight", "key_weight")


def _takes(name: str) -> Callable[[Inputs], bool]:
    return lambda inputs: inputs.learned is not None and name in inputs.learned.values


def _normalises(point: golden.Semantics) -> bool:
    return point.qk_norm != "none"


def _weigh_by_other(role: str, other: str) -> golden.Edit:
    """Heads that are multiplied by the weight of the other side."""
    return Edit(f"weighed_{role}", golden.Rewired(golden.weigh, (f"normalised_{role}", other)))


def _weigh_before_norm(role: str) -> Edits:
    """Heads that are multiplied by their weight, and then normalised."""

    def rule(given: Tensor, weight: Tensor | None, point: golden.Semantics) -> Tensor:
        return golden.normalise_heads(golden.weigh(given, weight), point)

    normalised = f"normalised_{role}"
    reads = (f"given_{role}", f"{role}_weight", "point")
    return (
        Edit(normalised, golden.Rewired(rule, reads)),
        Edit(f"weighed_{role}", golden.Rewired(torch.clone, (normalised,))),
    )


def _has_cap(softcap: float | None) -> bool:
    return softcap is not None


def _temper_capped(capped: Tensor, temperature: Tensor) -> Tensor:
    return golden.temper(capped, temperature)


_UNTEMPERED: Final = Edit("tempered_query", lambda weighed_query: weighed_query)
_weighed: Final = fixing(
    "multiply what the norm returns by query_norm_weight for queries and key_norm_weight for keys",
    primary=_WEIGHT,
    base=_RMS,
    fits=_normalises,
    where=_takes("query_norm_weight"),
)
_tempered: Final = fixing(
    "multiply the scaled products of head h by temperature[h], before cap, bias and mask",
    primary=_TEMPERATURE,
    where=_takes("temperature"),
)
_OF_BUCKETS: Final = ("relative_table", "point")


def _turned(queries: Tensor, keys: Tensor, table: Tensor, point: golden.Semantics) -> Tensor:
    """Buckets by the places from key to query."""
    behind = queries[..., None] - keys[..., None, :]
    return golden.relative_buckets(behind, table.shape[-2], point)


_by_table: Final = fixing(
    "add relative_table[bucket, h] of the places from query to key to the scaled and capped scores",
    primary="learned.relative-table",
    base={"relative": "clipped"},
    fits=lambda point: point.relative != "none",
    where=_takes("relative_table"),
)
_remembered: Final = fixing(
    "append bias_k and bias_v of each key/value head behind the keys of every item, and a column "
    "that hides nothing to every mask",
    primary=_MEMORY,
    where=_takes("bias_k"),
)
_sloped: Final = fixing(
    "take alibi_slopes[h], or alibi_slopes[b, h], times the distance off the scaled scores",
    primary=_SLOPES,
    base=_LINEAR,
    where=_takes("alibi_slopes"),
)
_hidden: Final = partial(golden.append_column, entry=False)
_OF_TABLE: Final = ("own_admitted", "scores_shape", "bias_k")
LEARNED: Final[tuple[NamedMistake, ...]] = (
    *_weighed("norm-weight-ignored")(
        "normalised queries and keys are not multiplied by their weights",
        tuple(Edit(stage, lambda: None) for stage in _WEIGHTS),
        *(
            {
                "edits": (Edit(f"{role}_weight", lambda: None),),
                "sentence": f"normalised {words} are not multiplied by their weight",
            }
            for role, words in (("query", "queries"), ("key", "keys"))
        ),
    ),
    *_weighed("norm-weight-of-the-other-side")(
        "the norm weights of queries and keys are mistaken for each other",
        {  # what is not turned has the same products
            "base": {**_RMS, "rotary": "halves"},
            "fits": lambda point: _normalises(point) and point.rotary != "none",
            "edits": (
                _weigh_by_other("query", "key_weight"),
                _weigh_by_other("key", "query_weight"),
            ),
        },
        {
            "edits": (_weigh_by_other("key", "query_weight"),),
            "sentence": "keys are multiplied by the norm weight of the queries",
        },
        {
            "edits": (_weigh_by_other("query", "key_weight"),),
            "sentence": "queries are multiplied by the norm weight of the keys",
        },
    ),
    *_weighed("norm-weight-added-to-one")(
        "normalised heads are multiplied by one plus the norm weight",
        changed(lambda weight: 1.0 + weight, *_WEIGHTS),
    ),
    *_weighed("norm-weight-less-one")(
        "normalised heads are multiplied by the norm weight less one",
        changed(lambda weight: weight - 1.0, *_WEIGHTS),
    ),
    *_weighed("norm-weight-before-the-norm")(
        "heads are multiplied by the norm weight before they are normalised",
        (*_weigh_before_norm("query"), *_weigh_before_norm("key")),
    ),
    *named("norm-weight-of-the-first-head", _WEIGHT, where=_takes("query_norm_weight"))(
        "the norm weights of the first head are those of every head",
        "multiply head h by the weights h*D to (h + 1)*D",
        {
            "base": {**_RMS, "qk_norm_over": "all-heads"},
            "fits": lambda point: _normalises(point) and point.qk_norm_over == "all-heads",
            "edits": changed(lambda weight: weight[..., :1, :], *_WEIGHTS),
        },
    ),
    *_tempered("temperature-ignored")(
        "the scores are not multiplied by a temperature",
        _UNTEMPERED,
    ),
    *_tempered("temperature-divides")(
        "the scores are divided by the temperature",
        changed(torch.reciprocal, "temperature"),
    ),
    *_tempered("temperature-exponentiated")(
        "the scores are multiplied by the exponential of the temperature",
        changed(torch.exp, "temperature"),
    ),
    *_tempered("temperature-twice")(
        "the scores are multiplied by the temperature twice, once for queries and once for keys",
        changed(torch.square, "temperature"),
    ),
    *_tempered("temperature-of-the-first-head")(
        "the temperature of the first head is used for all",
        edits_by("those of the first head", "temperature"),
    ),
    *_tempered("temperatures-reversed")(
        "temperatures are given to the heads in the opposite order",
        edits_by("those of the head counted from the end", "temperature"),
    ),
    *_tempered("temperature-behind-the-cap")(
        "the capped scores are multiplied by the temperature, not the scores before the cap",
        (
            Edit("tempered_query", lambda weighed_query: weighed_query, when=_has_cap),
            Edit("capped", change=_temper_capped, when=_has_cap),
        ),
    ),
    *_sloped("slopes-of-the-formula")(
        "the slopes are those of the formula, whatever was handed over",
        Edit("slopes", lambda sizes: golden.alibi_slopes(sizes.num_heads).unsqueeze(0)),
        edits_by(
            "made with slopes 2 ** (-8 (h + 1) / n) for every number n of heads", "distance_bias"
        ),
    ),
    *_sloped("slopes-of-the-first-item")(
        "the slopes of the first item are used for all",
        changed(lambda slopes: slopes[:1], "slopes"),
    ),
    *_sloped("slope-of-the-first-head")(
        "the slope of the first head is used for all",
        changed(lambda slopes: slopes[:, :1].expand_as(slopes), "slopes"),
    ),
    *_sloped("slopes-reversed")(
        "the slopes are given to the heads in the opposite order",
        changed(lambda slopes: slopes.flip(-1), "slopes"),
    ),
    *_by_table("relative-table-ignored")(
        "distances do not count, whatever the relative table",
        changed(torch.zeros_like, "relative_table"),
    ),
    *_by_table("relative-table-of-the-other-direction")(
        "the relative table is read by the places from key to query",
        Edit("buckets", golden.Rewired(_turned, ("query_places", "key_places", *_OF_BUCKETS))),
    ),
    *_by_table("relative-table-one-bucket-off")(
        "the relative table is read one bucket off",
        changed(lambda table: table.roll(1, dims=-2), "relative_table"),
        changed(lambda table: table.roll(-1, dims=-2), "relative_table"),
    ),
    *_by_table("relative-table-of-the-first-head")(
        "the first column of the relative table is that of every head",
        changed(lambda table: table[..., :1].expand_as(table), "relative_table"),
    ),
    *_by_table("relative-table-heads-reversed")(
        "the columns of the relative table are given to the heads in the opposite order",
        changed(lambda table: table.flip(-1), "relative_table"),
    ),
    *_by_table("relative-table-scaled")(
        "the entries of the relative table are scaled as the products are",
        Edit("relative_table", change=lambda relative_table, scale: relative_table * scale),
    ),
    *_by_table("relative-table-of-other-buckets")(
        "distances are sorted into buckets by another rule",
        {"base": {"relative": "t5"}, "changes": {"relative": "t5-causal"}},
        {"base": {"relative": "t5-causal"}, "changes": {"relative": "t5"}},
    ),
    *_by_table("relative-table-from-the-first-key")(
        "the queries are counted from the first key, whatever comes before them",
        Edit("query_places", lambda given_query: torch.arange(given_query.shape[-2])),
    ),
    *_remembered("memory-not-attended")(
        "bias_k is not attended: the weights go to the keys of the call alone",
        Edit("admitted", golden.Rewired(_hidden, _OF_TABLE)),
    ),
    *_remembered("memory-hidden-by-masks")(
        "bias_k is hidden where the call has a mask",
        Edit(
            "admitted",
            golden.Rewired(_hidden, _OF_TABLE),
            when=lambda keep, lengths, given_bias: (
                keep is not None or lengths is not None or given_bias is not None
            ),
        ),
        Edit("admitted", golden.Rewired(_hidden, _OF_TABLE), when=lambda causal: causal),
    ),
    *_remembered("memory-without-value")(
        "the value of bias_k is zeros, as that of a null key",
        changed(torch.zeros_like, "bias_v"),
    ),
    *_remembered("memory-without-key")(
        "the key beside the value bias_v is zeros",
        changed(torch.zeros_like, "bias_k"),
    ),
    *_remembered("memory-unscaled")(
        "the product with bias_k is not scaled, as those with other keys are",
        Edit("bias_k", change=lambda bias_k, scale: bias_k / (scale or 1.0)),
    ),
    *_remembered("memory-of-the-first-head")(
        "bias_k and bias_v of the first key/value head are those of every head",
        changed(lambda memory: memory[..., :1, :].expand_as(memory), "bias_k", "bias_v"),
    ),
    *_remembered("memory-before-the-keys")(
        "bias_k stands before the keys of the call, and masks have its column behind them",
        (
            Edit("admitted", change=lambda admitted: admitted.roll(-1, dims=-1)),
            Edit(
                "bias",
                change=lambda bias: bias.roll(-1, dims=-1),
                when=lambda counted_bias: counted_bias is not None,
            ),
        ),
    ),
)


def _first_weight_gradient(part: str) -> Callable[..., Any]:
    """The gradient of a weight that every head shares, from the first item or head alone."""

    def rule(gradient: Tensor, heads: Tensor, weight: Tensor | None) -> Tensor | None:
        if weight is None or weight.shape[-1] != heads.shape[-1]:
            return golden.sum_to_weight(gradient, heads, weight)
        chosen = (slice(0, 1),) if part == "item" else (slice(None), slice(0, 1))
        return golden.sum_to_weight(gradient[chosen], heads[chosen], weight)

    return rule


def _first_table_gradient(
    logit_gradient: Tensor, bias_slope: Tensor, buckets: Tensor | None, relative_table: Tensor
) -> Tensor | None:
    """The gradient of a relative table from the first item alone."""
    if buckets is not None and buckets.dim() > len("QK"):
        buckets = buckets[:1]
    return golden.sum_to_table((logit_gradient * bias_slope)[:1], buckets, relative_table)


_BEHIND: Final = {"query": "weighed_query_gradient", "key": "turned_key_gradient"}


def _weights_by(rule: Callable[..., Any]) -> Edits:
    return tuple(
        Edit(
            f"{role}_norm_weight_gradient",
            golden.Rewired(rule, (behind, f"normalised_{role}", f"{role}_norm_weight")),
        )
        for role, behind in _BEHIND.items()
    )


def _backward(name: str, argument: str, **more: Any) -> Any:
    bases = {
        "query_norm_weight": _RMS,
        "alibi_slopes": _LINEAR,
        "relative_table": {"relative": "clipped"},
    }
    head = named(name, _GRADIENT, base=bases.get(argument, {}), where=_takes(argument), **more)
    return lambda sentence, fix, *ways: head(sentence, fix, *({"backward": way} for way in ways))


_CUT: Final = "do not detach it, and return its gradient from the backward pass"
_ADD_UP: Final = "add up the contributions of all items, tokens and heads that share it"
LEARNED_BACKWARD: Final[tuple[NamedMistake, ...]] = (
    *_backward("gradient-of-slopes-cut", "alibi_slopes")(
        "no gradient reaches the slopes",
        _CUT,
        changed(torch.zeros_like, "alibi_slopes_gradient"),
    ),
    *_backward("gradient-of-temperature-cut", "temperature")(
        "no gradient reaches the temperatures",
        _CUT,
        changed(torch.zeros_like, "temperature_gradient"),
    ),
    *_backward("gradient-of-norm-weight-cut", "query_norm_weight")(
        "no gradient reaches the norm weights",
        _CUT,
        changed(torch.zeros_like, "query_norm_weight_gradient", "key_norm_weight_gradient"),
        changed(torch.zeros_like, "query_norm_weight_gradient"),
        changed(torch.zeros_like, "key_norm_weight_gradient"),
    ),
    *_backward("gradient-of-norm-weight-of-one-head", "query_norm_weight")(
        "the gradient of a norm weight is that of the first head alone",
        _ADD_UP,
        _weights_by(_first_weight_gradient("head")),
    ),
    *_backward("gradient-of-norm-weight-of-one-item", "query_norm_weight")(
        "the gradient of a norm weight is that of the first item alone",
        _ADD_UP,
        _weights_by(_first_weight_gradient("item")),
    ),
    *_backward("gradient-of-norm-weight-behind-it", "query_norm_weight")(
        "the gradient of the normalised heads lacks their weight",
        "multiply what flows back by the norm weight, before it flows through the norm",
        (
            Edit(
                "normalised_query_gradient", lambda weighed_query_gradient: weighed_query_gradient
            ),
            Edit("normalised_key_gradient", lambda turned_key_gradient: turned_key_gradient),
        ),
    ),
    *_backward("gradient-of-temperature-of-one-item", "temperature")(
        "the gradient of a temperature is that of the first item alone",
        _ADD_UP,
        (
            Edit(
                "temperature_gradient",
                lambda turned_query_gradient, weighed_query, temperature: golden.sum_to_temperature(
                    turned_query_gradient[:1], weighed_query[:1], temperature
                ),
            ),
        ),
    ),
    *_backward("gradient-of-relative-table-cut", "relative_table")(
        "no gradient reaches the relative table",
        _CUT,
        changed(torch.zeros_like, "relative_table_gradient"),
    ),
    *_backward("gradient-of-relative-table-of-one-item", "relative_table")(
        "the gradient of the relative table is that of the first item alone",
        _ADD_UP,
        (Edit("relative_table_gradient", _first_table_gradient),),
    ),
    *_backward("gradient-of-memory-cut", "bias_k")(
        "no gradient reaches bias_k and bias_v",
        _CUT,
        changed(torch.zeros_like, "bias_k_gradient", "bias_v_gradient"),
        changed(torch.zeros_like, "bias_k_gradient"),
        changed(torch.zeros_like, "bias_v_gradient"),
    ),
    *_backward("gradient-of-memory-of-one-item", "bias_k")(
        "the gradients of bias_k and bias_v are those of the first item alone",
        _ADD_UP,
        (
            Edit(
                "bias_k_gradient",
                lambda key_gradient, bias_k: golden.sum_to_memory(key_gradient[:1], bias_k),
            ),
            Edit(
                "bias_v_gradient",
                lambda value_gradient, bias_v: golden.sum_to_memory(value_gradient[:1], bias_v),
            ),
        ),
    ),
    *_backward("gradient-of-slopes-negated", "alibi_slopes")(
        "the gradient of the slopes has the wrong sign",
        "slope times distance is taken off: the gradient is minus the sum of dL times distance",
        changed(torch.neg, "alibi_slopes_gradient"),
    ),
)
