"""Caches lost or misplaced, and arguments of a call lost because another is given."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Final

import torch
from torch import Tensor

from ..._golden import golden
from ...problems.caching import without_cache
from ...problems.inputs import Inputs
from ._steps import (
    has_bias,
    has_cache,
    has_causal,
    has_mask,
    has_scale,
    has_softcap,
    has_window,
)
from .named_mistake import (
    DeclaredCall,
    Edits,
    InputsChange,
    NamedMistake,
    Where,
    is_core,
    named,
)

Edit = golden.Edit
_JOIN: Final = "concatenate: the cached keys and values, then the new ones"
_BEHIND: Final = "count places from the first cached key: the first new token stands behind them"
_cache: Final = partial(named, primary="cache.golden", where=has_cache)


def _reorder_keys(order: Callable[[Tensor, int], Tensor]) -> Edits:
    def change(tokens: Tensor, inputs: Inputs) -> Tensor:
        index = order(torch.arange(tokens.shape[-2]), inputs.past)
        return tokens.index_select(-2, index)

    return (
        *(Edit(f"given_{role}", change=change, when=is_core) for role in ("key", "value")),
        *(Edit(f"{role}_tokens", change=change) for role in ("key", "value")),
    )


def _change_mask(change: Callable[[Tensor, int], Tensor]) -> Edits:
    """Use another mask if there is a cache; ``keep`` holds the hidden keys of a bias."""

    def changed(table: Tensor, inputs: Inputs) -> Tensor:
        return change(table, inputs.past)

    return tuple(
        Edit(name, change=changed, when=lambda inputs: inputs.keep is not None)
        for name in ("keep", "given_bias")
    )


def _first_item(tokens: Tensor, inputs: Inputs) -> Tensor:
    first = tokens[:1, ..., : inputs.past, :].expand(*tokens.shape[:-2], inputs.past, -1)
    return torch.cat([first, tokens[..., inputs.past :, :]], dim=-2)


def _leave_cache_out(where: Where) -> InputsChange:
    def inputs_for(call: DeclaredCall) -> Inputs | None:
        inputs = call.inputs
        return without_cache(inputs) if inputs.past and where(inputs) else None

    return inputs_for


def _every_cached(mask: Tensor, past: int) -> Tensor:
    return torch.cat([_nothing(mask, past), mask[..., past:]], dim=-1)


def _columns_from_the_first(mask: Tensor, past: int) -> Tensor:
    new = mask.shape[-1] - past
    return torch.cat([_nothing(mask, past), mask[..., :new]], dim=-1)


def _nothing(mask: Tensor, count: int) -> Tensor:
    columns = mask[..., :count]
    return torch.ones_like(columns) if mask.dtype == torch.bool else torch.zeros_like(columns)


def _first_cached_mask(mask: Tensor, past: int) -> Tensor:
    first = mask[:1, ..., :past].expand(*mask.shape[:-1], past)
    return torch.cat([first, mask[..., past:]], dim=-1)


def _new_key_left(place: int) -> golden.Edit:
    def change(admitted: Tensor, inputs: Inputs) -> Tensor:
        keys = torch.arange(admitted.shape[-1])
        return admitted & ((keys < inputs.past) | (keys == keys[inputs.past :][place]))

    return Edit("admitted", change=change)


def _cache_in_turns(heads: Tensor, sizes: golden.Sizes, inputs: Inputs) -> Tensor:
    past, group = inputs.past, sizes.num_heads // sizes.num_kv_heads
    tiled = heads[:, :, :past].repeat(1, group, 1, 1)
    return torch.cat([tiled, heads[:, :, past:].repeat_interleave(group, dim=1)], dim=2)


def _cached_seen(by_window: Tensor, inputs: Inputs) -> Tensor:
    return by_window | (torch.arange(by_window.shape[-1]) < inputs.past)


CACHES: Final[tuple[NamedMistake, ...]] = (
    *named("cache-ignored", "cache.golden")(
        "the cached keys and values are ignored: only the new ones are attended",
        _JOIN,
        {"inputs": _leave_cache_out(has_cache)},
    ),
    *_cache("window-of-new-keys-alone")(
        "the window hides none of the cached keys",
        "count places from the first cached key, and hide each key outside of the window",
        Edit("by_window", change=_cached_seen),
    ),
    *_cache("cache-behind-new-keys")(
        "the cached keys and values are put behind the new ones",
        _JOIN,
        _reorder_keys(lambda places, past: places.roll(-past)),
    ),
    *_cache("cache-reversed")(
        "the cached keys and values are read from the last one to the first",
        _JOIN,
        _reorder_keys(lambda places, past: torch.where(places < past, past - 1 - places, places)),
    ),
    *_cache("cache-of-first-item")(
        "the cache of the first item is read for all items",
        "each item of a batch has cached keys and values of its own",
        (
            *(Edit(f"given_{role}", change=_first_item, when=is_core) for role in ("key", "value")),
            *(Edit(f"{role}_tokens", change=_first_item) for role in ("key", "value")),
        ),
    ),
    *_cache("cache-last-slot-overwritten")(
        "the last cached key is overwritten by the first new one",
        "write new tokens into the slots behind those that are in use",
        _reorder_keys(lambda places, past: places + (places == past - 1).long()),
        _reorder_keys(lambda places, past: places - (places == past).long()),
    ),
    *(
        mistake
        for name, sentence, special_of, changes in (
            (
                "cache-offset-ignored",
                "with a cache the first query is taken to stand at the first cached key",
                "causal-top-left",
                {"causal_alignment": "top-left"},
            ),
            (
                "cache-offset-one-too-many",
                "with a cache each query sees the key after its own, too",
                "causal-sees-next",
                {"causal_offset": 1},
            ),
            (
                "cache-offset-one-too-few",
                "with a cache no query sees its own key",
                "causal-hides-own",
                {"causal_offset": -1},
            ),
        )
        for mistake in named(name, "cache.position-offset", where=has_cache, special_of=special_of)(
            sentence, _BEHIND, {"changes": changes}
        )
    ),
    *_cache("cache-of-one-new-key", primary="cache.decode-equals-full")(
        "of several new keys only one is put behind the cached ones",
        "put all new keys behind the cached ones, however many there are",
        _new_key_left(-1),
        _new_key_left(0),
    ),
    *_cache("cache-not-masked")(
        "the mask acts on the new keys alone: every cached key is attended",
        "masks have a column for each cached key and each new one",
        _change_mask(_every_cached),
        _change_mask(_columns_from_the_first),
    ),
    *named(
        "cache-mask-of-first-item",
        "cache.decode-equals-full",
        special_of="mask-of-first-item",
        where=has_cache,
    )(
        "which cached keys are attended is looked up for the first batch item only",
        "items have caches of several lengths: each has a mask of its own",
        _change_mask(_first_cached_mask),
    ),
    *named("cache-heads-tiled", "groups.golden", where=has_cache)(
        "shared heads of the cache are dealt out in turns, those of new tokens to neighbours",
        "join cached and new heads first, then repeat each of them: repeat_interleave",
        tuple(
            Edit(
                f"shared_{role}",
                golden.Rewired(_cache_in_turns, (heads, "sizes", "inputs")),
                when=lambda sizes: sizes.num_heads != sizes.num_kv_heads,
            )
            for role, heads in (("key", "joined_key"), ("value", "value_heads"))
        ),
    ),
)


def _has_boolean_mask(inputs: Inputs) -> bool:
    return inputs.masked and inputs.mask_form != "bias"


def _has_lengths(inputs: Inputs) -> bool:
    return inputs.mask_form == "lengths"


def _left_out(*names: str) -> Edits:
    return tuple(Edit(name, lambda: None) for name in names)


_WITHOUT_MASK: Final = _left_out("keep", "given_bias")
# Options of a call: the words, the calls with the option, and the edits that drop it.
_OPTIONS: Final[dict[str, tuple[str, Where, Edits]]] = {
    "mask": ("the mask", _has_boolean_mask, _WITHOUT_MASK),
    "bias": ("the bias", has_bias, _left_out("given_bias")),
    "lengths": ("lengths", _has_lengths, _left_out("keep")),
    "causal": ("the causal flag", has_causal, (Edit("causal", lambda: False),)),
    "window": ("the window", has_window, _left_out("window")),
    "softcap": ("the softcap", has_softcap, _left_out("softcap")),
    "scale-argument": ("the scale that the call gives", has_scale, _left_out("given_scale")),
}
_MASKS: Final = {"mask", "bias", "lengths"}


def _nan_where_hidden(output: Tensor, empty: Tensor, structure: Tensor, attended: Tensor) -> Tensor:
    lost = empty & (structure & ~attended).any(dim=-1)
    return output.masked_fill(lost.unsqueeze(-1), math.nan)


# Minus infinities of an additive mask still hide their keys, whatever else becomes of masks.
_MASK_BUT_FOR_BIAS: Final = (
    *(Edit(e.stage, e.rule, when=_has_boolean_mask) for e in _WITHOUT_MASK),
    Edit("output", change=_nan_where_hidden, when=has_bias),
)


def _both(one: Where, two: Where) -> Where:
    return lambda inputs: one(inputs) and two(inputs)


def _lost_to_options() -> Iterator[NamedMistake]:
    for name, other in itertools.permutations(_OPTIONS, 2):
        if {name, other} <= _MASKS or other == "scale-argument":
            continue
        (words, present, absent), (winner, taken, _) = _OPTIONS[name], _OPTIONS[other]
        ways: list[tuple[Where, Where, Sequence[golden.Edit]]] = [(present, taken, absent)]
        if name == "bias":
            ways.append((present, taken, _WITHOUT_MASK))
        if name == "mask":
            ways.append((has_mask, taken, absent))
        if other == "mask":
            ways.append((present, has_mask, absent))
        both = {name, other} == {"mask", "causal"}
        if both and name == "mask":
            ways.append((has_mask, taken, _MASK_BUT_FOR_BIAS))
        primary = "mask.causal-and-mask" if both else "numerics.options"
        yield from named(f"{name}-lost-to-{other}", primary, special_of=f"{name}-ignored")(
            f"{words} is dropped where {winner} is given too",
            "apply both",
            *({"edits": tuple(gone), "where": _both(one, two)} for one, two, gone in ways),
        )


# Most visible where every call has one option and a part of the calls the other.
_LOST_TO_CACHE: Final = {"causal": "cache.decode-equals-full", "bias": "mask.bias"}


def _lost_to_cache() -> Iterator[NamedMistake]:
    for name, (words, present, absent) in _OPTIONS.items():
        primary = _LOST_TO_CACHE.get(name, "cache.golden")
        yield from named(f"{name}-lost-to-cache", primary, special_of=f"{name}-ignored")(
            f"{words} is dropped where a cache is given too",
            "apply both",
            {"edits": absent, "where": _both(present, has_cache)},
        )
        short = words.removesuffix(" that the call gives")
        yield from named(f"cache-lost-to-{name}", "cache.golden", special_of="cache-ignored")(
            f"the cache is dropped where {short} is given too",
            "apply both",
            {"inputs": _leave_cache_out(present)},
        )


LOST_OPTIONS: Final[tuple[NamedMistake, ...]] = (*_lost_to_options(), *_lost_to_cache())
