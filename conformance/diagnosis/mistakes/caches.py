"""Caches lost or put elsewhere, and what a call gives, lost because something else is given."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Final

import torch
from torch import Tensor

from ..._golden import golden
from ...problems.caching import without_cache
from ...problems.inputs import Inputs
from ._steps import (
    but_for_bias,
    changed,
    has_bias,
    has_cache,
    has_causal,
    has_mask,
    has_scale,
    has_softcap,
    has_window,
)
from .named_mistake import DeclaredCall, Heads, InputsChange, NamedMistake, Where, named
from .weighing import hiding

_JOIN: Final = "concatenate: the cached keys and values, then the new ones"
_BEHIND: Final = "count places from the first cached key: the first new token stands behind them"


def _with_keys(order: Callable[[int, int], Tensor]) -> InputsChange:
    """Keys and values in another order, by the numbers of cached and of all keys."""

    def inputs_for(call: DeclaredCall) -> Inputs | None:
        inputs = call.inputs
        if not inputs.past:
            return None
        index = order(inputs.past, inputs.geometry.key_length)
        return inputs.replace(
            key=inputs.key.index_select(-2, index), value=inputs.value.index_select(-2, index)
        )

    return inputs_for


def _with_mask(change: Callable[[Tensor, int], Tensor]) -> InputsChange:
    """Another mask where there is a cache; what it hides of a bias is kept by ``keep``."""

    def inputs_for(call: DeclaredCall) -> Inputs | None:
        inputs = call.inputs
        if not inputs.past or inputs.keep is None:
            return None
        bias = inputs.bias
        return inputs.replace(
            keep=change(inputs.keep, inputs.past),
            bias=None if bias is None else change(bias, inputs.past),
        )

    return inputs_for


def _without_cache(where: Where) -> InputsChange:
    def inputs_for(call: DeclaredCall) -> Inputs | None:
        inputs = call.inputs
        return without_cache(inputs) if inputs.past and where(inputs) else None

    return inputs_for


def _every_cached(mask: Tensor, past: int) -> Tensor:
    """Every cached key seen as it is: kept, or with a bias of nothing."""
    return torch.cat([_nothing(mask, past), mask[..., past:]], dim=-1)


def _columns_from_the_first(mask: Tensor, past: int) -> Tensor:
    """The first columns for the new keys, none for the cached ones."""
    new = mask.shape[-1] - past
    return torch.cat([_nothing(mask, past), mask[..., :new]], dim=-1)


def _nothing(mask: Tensor, count: int) -> Tensor:
    columns = mask[..., :count]
    return torch.ones_like(columns) if mask.dtype == torch.bool else torch.zeros_like(columns)


def _of_first_item(mask: Tensor, past: int) -> Tensor:
    first = mask[:1, ..., :past].expand(*mask.shape[:-1], past)
    return torch.cat([first, mask[..., past:]], dim=-1)


def _new_keys_left(start: int, stop: int | None) -> InputsChange:
    """Of the new keys only some are seen, beside all that are cached."""

    def inputs_for(call: DeclaredCall) -> Inputs | None:
        inputs = call.inputs
        count, past = inputs.geometry.key_length, inputs.past
        if not past or count - past == 1:
            return None
        admitted = torch.arange(count) < past
        admitted[past:][start:stop] = True
        kept = admitted.reshape(1, 1, 1, -1)
        return inputs.replace(keep=kept if inputs.keep is None else inputs.keep & kept)

    return inputs_for


def _cache_in_turns(call: DeclaredCall, before: Heads) -> Heads | None:
    sizes, past = call.inputs.geometry, call.inputs.past
    if not past or sizes.num_heads == sizes.num_kv_heads:
        return None
    group = sizes.num_heads // sizes.num_kv_heads

    def dealt(heads: Tensor) -> Tensor:
        tiled = heads[:, :, :past].repeat(1, group, 1, 1)
        return torch.cat([tiled, heads[:, :, past:].repeat_interleave(group, dim=1)], dim=2)

    return before[0], dealt(before[1]), dealt(before[2])


def _window_of_new_keys(call: DeclaredCall) -> Inputs | None:
    """The window hides new keys alone: every cached one is seen."""
    inputs = call.inputs
    if not inputs.past or inputs.window is None:
        return None
    sizes = inputs.geometry
    seen = golden.structural_mask(
        sizes.query_length,
        sizes.key_length,
        causal=False,
        window=inputs.window,
        semantics=call.semantics,
    ).clone()
    seen[:, : inputs.past] = True
    return hiding(inputs.replace(window=None), seen)


CACHES: Final[tuple[NamedMistake, ...]] = (
    *named("cache-ignored", "cache.golden")(
        "the cached keys and values are ignored: only the new ones are attended",
        _JOIN,
        {"inputs": _without_cache(has_cache)},
    ),
    *named("window-of-new-keys-alone", "cache.golden")(
        "the window hides none of the cached keys",
        "count places from the first cached key, and hide each key outside of the window",
        {"inputs": _window_of_new_keys},
    ),
    *named("cache-behind-new-keys", "cache.golden")(
        "the cached keys and values are put behind the new ones",
        _JOIN,
        {
            "inputs": _with_keys(
                lambda past, count: torch.cat([torch.arange(past, count), torch.arange(past)])
            )
        },
    ),
    *named("cache-reversed", "cache.golden")(
        "the cached keys and values are read from the last one to the first",
        _JOIN,
        {
            "inputs": _with_keys(
                lambda past, count: torch.cat(
                    [torch.arange(past).flip(0), torch.arange(past, count)]
                )
            )
        },
    ),
    *named("cache-last-slot-overwritten", "cache.golden")(
        "the last cached key is overwritten by the first new one",
        "write new tokens into the slots behind those that are in use",
        {
            "inputs": _with_keys(
                lambda past, count: torch.arange(count) + (torch.arange(count) == past - 1).long()
            )
        },
        {
            "inputs": _with_keys(
                lambda past, count: torch.arange(count) - (torch.arange(count) == past).long()
            )
        },
    ),
    *named(
        "cache-offset-ignored",
        "cache.position-offset",
        where=has_cache,
        special_of="causal-top-left",
    )(
        "with a cache the first query is taken to stand at the first cached key",
        _BEHIND,
        {"changes": {"causal_alignment": "top-left"}},
    ),
    *named(
        "cache-offset-one-too-many",
        "cache.position-offset",
        where=has_cache,
        special_of="causal-sees-next",
    )(
        "with a cache each query sees the key after its own, too",
        _BEHIND,
        {"changes": {"causal_offset": 1}},
    ),
    *named(
        "cache-offset-one-too-few",
        "cache.position-offset",
        where=has_cache,
        special_of="causal-hides-own",
    )(
        "with a cache no query sees its own key",
        _BEHIND,
        {"changes": {"causal_offset": -1}},
    ),
    *named("cache-of-one-new-key", "cache.decode-equals-full")(
        "of several new keys only one is put behind the cached ones",
        "put all new keys behind the cached ones, however many there are",
        {"inputs": _new_keys_left(-1, None)},
        {"inputs": _new_keys_left(0, 1)},
    ),
    *named("cache-not-masked", "cache.golden")(
        "the mask acts on the new keys alone: every cached key is attended",
        "masks have a column for each cached key and each new one",
        {"inputs": _with_mask(_every_cached)},
        {"inputs": _with_mask(_columns_from_the_first)},
    ),
    *named("cache-mask-of-first-item", "cache.decode-equals-full", special_of="mask-of-first-item")(
        "which cached keys are attended is looked up for the first batch item only",
        "items have caches of several lengths: each has a mask of its own",
        {"inputs": _with_mask(_of_first_item)},
    ),
    *named("cache-heads-tiled", "groups.golden")(
        "shared heads of the cache are dealt out in turns, those of new tokens to neighbours",
        "join cached and new heads first, then repeat each of them: repeat_interleave",
        {"heads": _cache_in_turns},
    ),
)


def _has_boolean_mask(inputs: Inputs) -> bool:
    return inputs.masked and inputs.mask_form != "bias"


def _has_lengths(inputs: Inputs) -> bool:
    return inputs.mask_form == "lengths"


# What a call may pass: in words, where it is, and the inputs without it.
_OPTIONS: Final[dict[str, tuple[str, Where, dict[str, object]]]] = {
    "mask": ("the mask", _has_boolean_mask, {"keep": None, "bias": None}),
    "bias": ("the bias", has_bias, {"bias": None}),
    "lengths": ("lengths", _has_lengths, {"keep": None}),
    "causal": ("the causal flag", has_causal, {"causal": False}),
    "window": ("the window", has_window, {"window": None}),
    "softcap": ("the softcap", has_softcap, {"softcap": None}),
    "scale-argument": ("the scale that the call gives", has_scale, {"scale": None}),
}
_MASKS: Final = {"mask", "bias", "lengths"}


def _both(one: Where, two: Where) -> Where:
    return lambda inputs: one(inputs) and two(inputs)


def _lost_to_options() -> Iterator[NamedMistake]:
    """An option that is dropped on the path that another one takes."""
    for name, other in itertools.permutations(_OPTIONS, 2):
        if {name, other} <= _MASKS or other == "scale-argument":
            continue
        (words, present, absent), (winner, taken, _) = _OPTIONS[name], _OPTIONS[other]
        ways = [(present, taken, absent)]
        if name == "bias":
            ways.append((present, taken, {"keep": None, "bias": None}))
        if name == "mask":
            ways.append((has_mask, taken, absent))
        if other == "mask":
            ways.append((present, has_mask, absent))
        both = {name, other} == {"mask", "causal"}
        primary = "mask.causal-and-mask" if both else "numerics.options"
        mask_lost = both and name == "mask"
        yield from named(f"{name}-lost-to-{other}", primary, special_of=f"{name}-ignored")(
            f"{words} is dropped where {winner} is given too",
            "apply both",
            *({"inputs": changed(_both(one, two), **gone)} for one, two, gone in ways),
            *([but_for_bias(changed(_both(has_mask, taken), **absent))] if mask_lost else []),
        )


# Most visible where every call has the one and some have the other.
_LOST_TO_CACHE: Final = {"causal": "cache.decode-equals-full", "bias": "mask.bias"}


def _lost_to_cache() -> Iterator[NamedMistake]:
    """What is dropped where a part of the keys is cached, and the cache dropped for the rest."""
    for name, (words, present, absent) in _OPTIONS.items():
        primary = _LOST_TO_CACHE.get(name, "cache.golden")
        yield from named(f"{name}-lost-to-cache", primary, special_of=f"{name}-ignored")(
            f"{words} is dropped where a cache is given too",
            "apply both",
            {"inputs": changed(_both(present, has_cache), **absent)},
        )
        short = words.removesuffix(" that the call gives")
        yield from named(f"cache-lost-to-{name}", "cache.golden", special_of="cache-ignored")(
            f"the cache is dropped where {short} is given too",
            "apply both",
            {"inputs": _without_cache(present)},
        )


LOST_OPTIONS: Final[tuple[NamedMistake, ...]] = (*_lost_to_options(), *_lost_to_cache())
