"""Caches lost or put elsewhere, and what a call gives, lost because something else is given."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import torch
from torch import Tensor

from ...problems.caching import without_cache
from ...problems.inputs import Inputs
from ._steps import changed, has_bias, has_cache, has_causal, has_softcap, has_window
from .named import Asked, Heads, NamedMistake, Question, mistakes

_JOIN: Final = "concatenate: the cached keys and values, then the new ones"
_BEHIND: Final = "count places from the first cached key: the first new token stands behind them"


def _with_keys(order: Callable[[int, int], Tensor]) -> Question:
    """Keys and values in another order, by the numbers of cached and of all keys."""

    def question(asked: Asked) -> Inputs | None:
        inputs = asked.inputs
        if not inputs.past:
            return None
        index = order(inputs.past, inputs.geometry.key_length)
        return inputs.replace(
            key=inputs.key.index_select(-2, index), value=inputs.value.index_select(-2, index)
        )

    return question


def _with_mask(change: Callable[[Tensor, int], Tensor]) -> Question:
    """Another mask where there is a cache; what it hides of a bias is kept by ``keep``."""

    def question(asked: Asked) -> Inputs | None:
        inputs = asked.inputs
        if not inputs.past or inputs.keep is None:
            return None
        bias = inputs.bias
        return inputs.replace(
            keep=change(inputs.keep, inputs.past),
            bias=None if bias is None else change(bias, inputs.past),
        )

    return question


def _lost(asked: Asked) -> Inputs | None:
    return without_cache(asked.inputs) if asked.inputs.past else None


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


def _new_keys_left(start: int, stop: int | None) -> Question:
    """Of the new keys only some are seen, beside all that are cached."""

    def question(asked: Asked) -> Inputs | None:
        inputs = asked.inputs
        count, past = inputs.geometry.key_length, inputs.past
        if not past or count - past == 1:
            return None
        seen = torch.arange(count) < past
        seen[past:][start:stop] = True
        kept = seen.reshape(1, 1, 1, -1)
        return inputs.replace(keep=kept if inputs.keep is None else inputs.keep & kept)

    return question


def _cache_in_turns(asked: Asked, given: Heads) -> Heads | None:
    sizes, past = asked.inputs.geometry, asked.inputs.past
    if not past or sizes.num_heads == sizes.num_kv_heads:
        return None
    group = sizes.num_heads // sizes.num_kv_heads

    def dealt(heads: Tensor) -> Tensor:
        tiled = heads[:, :, :past].repeat(1, group, 1, 1)
        return torch.cat([tiled, heads[:, :, past:].repeat_interleave(group, dim=1)], dim=2)

    return given[0], dealt(given[1]), dealt(given[2])


CACHES: Final[tuple[NamedMistake, ...]] = (
    *mistakes(
        "cache-ignored",
        "cache.golden",
        "the cached keys and values are ignored: only the new ones are attended",
        _JOIN,
        {"question": _lost},
    ),
    *mistakes(
        "cache-behind-new-keys",
        "cache.golden",
        "the cached keys and values are put behind the new ones",
        _JOIN,
        {
            "question": _with_keys(
                lambda past, count: torch.cat([torch.arange(past, count), torch.arange(past)])
            )
        },
    ),
    *mistakes(
        "cache-reversed",
        "cache.golden",
        "the cached keys and values are read from the last one to the first",
        _JOIN,
        {
            "question": _with_keys(
                lambda past, count: torch.cat(
                    [torch.arange(past).flip(0), torch.arange(past, count)]
                )
            )
        },
    ),
    *mistakes(
        "cache-last-slot-overwritten",
        "cache.golden",
        "the last cached key is overwritten by the first new one",
        "write new tokens into the slots behind those that are in use",
        {
            "question": _with_keys(
                lambda past, count: torch.arange(count) + (torch.arange(count) == past - 1).long()
            )
        },
        {
            "question": _with_keys(
                lambda past, count: torch.arange(count) - (torch.arange(count) == past).long()
            )
        },
    ),
    *mistakes(
        "cache-offset-ignored",
        "cache.position-offset",
        "with a cache the first query is taken to stand at the first cached key",
        _BEHIND,
        {"changes": {"causal_alignment": "top-left"}},
        where=has_cache,
        special_of="causal-top-left",
    ),
    *mistakes(
        "cache-offset-one-too-many",
        "cache.position-offset",
        "with a cache each query sees the key after its own, too",
        _BEHIND,
        {"changes": {"causal_offset": 1}},
        where=has_cache,
        special_of="causal-sees-next",
    ),
    *mistakes(
        "cache-offset-one-too-few",
        "cache.position-offset",
        "with a cache no query sees its own key",
        _BEHIND,
        {"changes": {"causal_offset": -1}},
        where=has_cache,
        special_of="causal-hides-own",
    ),
    *mistakes(
        "cache-of-one-new-key",
        "cache.decode-equals-full",
        "of several new keys only one is put behind the cached ones",
        "put all new keys behind the cached ones, however many there are",
        {"question": _new_keys_left(-1, None)},
        {"question": _new_keys_left(0, 1)},
    ),
    *mistakes(
        "cache-not-masked",
        "cache.golden",
        "the mask acts on the new keys alone: every cached key is attended",
        "masks have a column for each cached key and each new one",
        {"question": _with_mask(_every_cached)},
        {"question": _with_mask(_columns_from_the_first)},
    ),
    *mistakes(
        "cache-mask-of-first-item",
        "cache.decode-equals-full",
        "which cached keys are attended is looked up for the first batch item only",
        "items have caches of several lengths: each has a mask of its own",
        {"question": _with_mask(_of_first_item)},
        special_of="mask-of-first-item",
    ),
    *mistakes(
        "cache-heads-tiled",
        "groups.golden",
        "shared heads of the cache are dealt out in turns, those of new tokens to neighbours",
        "join cached and new heads first, then repeat each of them: repeat_interleave",
        {"heads": _cache_in_turns},
    ),
)


def _masked(inputs: Inputs) -> bool:
    return inputs.masked


_FEATURES: Final[dict[str, tuple[str, Callable[[Inputs], bool], dict[str, object]]]] = {
    "mask": (
        "the mask",
        lambda inputs: inputs.masked and inputs.mask_form != "bias",
        {"keep": None, "bias": None},
    ),
    "bias": ("the bias", has_bias, {"bias": None}),
    "lengths": (
        "lengths",
        lambda inputs: inputs.mask_form == "lengths",
        {"keep": None},
    ),
    "causal": ("the causal flag", has_causal, {"causal": False}),
    "window": ("the window", has_window, {"window": None}),
    "softcap": ("the softcap", has_softcap, {"softcap": None}),
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
                {"question": changed(_both(present, taken), **absent)},
                *(
                    [{"question": changed(_both(present, taken), keep=None, bias=None)}]
                    if name == "bias"
                    else []
                ),
                *(
                    [{"question": changed(_both(_masked, taken), **absent)}]
                    if name == "mask"
                    else []
                ),
                *(
                    [{"question": changed(_both(present, _masked), **absent)}]
                    if other == "mask"
                    else []
                ),
                special_of=_SPECIALS[name],
            )
    return found


def _both(one: Callable[[Inputs], bool], two: Callable[[Inputs], bool]) -> Callable[..., bool]:
    return lambda inputs: one(inputs) and two(inputs)


# Seen best where every call has the one and some have the other.
_LOST_TO_CACHE: Final = {"causal": "cache.decode-equals-full", "bias": "mask.bias"}


def _lost_to_cache() -> list[NamedMistake]:
    """What is dropped where a part of the keys is cached, and the cache dropped for the rest."""
    found: list[NamedMistake] = []
    for name, (spoken, present, absent) in _FEATURES.items():
        found += mistakes(
            f"{name}-lost-to-cache",
            _LOST_TO_CACHE.get(name, "cache.golden"),
            f"{spoken} is dropped where a cache is given too",
            "apply both",
            {"question": changed(_both(present, has_cache), **absent)},
            special_of=_SPECIALS[name],
        )
        told = spoken.removesuffix(" that the call gives")
        found += mistakes(
            f"cache-lost-to-{name}",
            "cache.golden",
            f"the cache is dropped where {told} is given too",
            "apply both",
            {"question": _without_cache(present)},
            special_of="cache-ignored",
        )
    return found


def _without_cache(where: Callable[[Inputs], bool]) -> Question:
    def question(asked: Asked) -> Inputs | None:
        inputs = asked.inputs
        return without_cache(inputs) if inputs.past and where(inputs) else None

    return question


LOST_OPTIONS: Final[tuple[NamedMistake, ...]] = (*_lost_features(), *_lost_to_cache())
