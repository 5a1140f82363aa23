"""Mistakes of modules with a cache of their own: read, written, placed or shared wrongly."""

from __future__ import annotations

from typing import Any, Final

import torch
from torch import Tensor

from conformance import Cache

from ..module_caches import (
    CAUSAL,
    HALVES,
    LLAMA,
    OBJECT,
    ByCachePosition,
    ByObject,
    ByTuples,
    DynamicCache,
    InBuffers,
    Pair,
    turned,
)
from ._kit import module

PLAIN: Final[dict[str, Any]] = {**CAUSAL, "cache": OBJECT}
ROTARY: Final[dict[str, Any]] = {**HALVES, "cache": OBJECT}
TUPLES: Final[dict[str, Any]] = {**CAUSAL, "cache": Cache(parameter="layer_past")}
ALSO: Final = ("cache.golden", "cache.position-offset", "cache.decode-equals-full")


@module(*ALSO, **PLAIN)
class OwnCacheForgotten(ByObject):
    """New keys and values are written into the cache, and no earlier ones are read from it."""

    def joined(self, cache: DynamicCache, key: Tensor, value: Tensor) -> Pair:
        cache.update(key, value, self.layer_idx)
        return key, value

    def allowed(self, new: int, total: int) -> Tensor:
        return super().allowed(new, min(new, total))


@module(*ALSO, **PLAIN)
class OwnCacheBehindNewTokens(ByObject):
    """A module puts its cached keys and values behind the new ones."""

    def joined(self, cache: DynamicCache, key: Tensor, value: Tensor) -> Pair:
        past = cache.get_seq_length()
        both = super().joined(cache, key, value)
        return both[0].roll(-past, dims=2), both[1].roll(-past, dims=2)


@module("cache.position-offset", "cache.golden", "cache.decode-equals-full", **PLAIN)
class OwnCacheCausalFromFirstKey(ByObject):
    """The causal mask is that of as many queries and keys: the first new token sees one key."""

    def allowed(self, new: int, total: int) -> Tensor:
        return torch.ones(new, total, dtype=torch.bool).tril()


@module("cache.position-offset", "cache.golden", "cache.decode-equals-full", **PLAIN)
class OwnCacheNotCausal(ByObject):
    """Behind a cache nothing is hidden, as if each call brought a single token."""

    def allowed(self, new: int, total: int) -> Tensor:
        allowed = super().allowed(new, total)
        return allowed if new == total else torch.ones_like(allowed)


class ReadOtherwise(ByObject):
    """Reads another cache than it has written."""

    def joined(self, cache: DynamicCache, key: Tensor, value: Tensor) -> Pair:
        past = cache.get_seq_length()
        key, value = super().joined(cache, key, value)
        return self.read(key, past), self.read(value, past)

    def read(self, joined: Tensor, past: int) -> Tensor:
        """What is read as keys, or values, the first ``past`` of which are cached."""
        raise NotImplementedError


@module(*ALSO, **PLAIN)
class OwnCacheOfFirstItem(ReadOtherwise):
    """The cache of the first item is read for all items."""

    def read(self, joined: Tensor, past: int) -> Tensor:
        first = torch.arange(joined.shape[0]) * 0
        return torch.cat([joined[first, :, :past], joined[:, :, past:]], dim=2)


@module(*ALSO, **PLAIN)
class OwnCacheOfNextItem(ReadOtherwise):
    """Each item reads the cache of the item behind it."""

    def read(self, joined: Tensor, past: int) -> Tensor:
        return torch.cat([joined[:, :, :past].roll(-1, dims=0), joined[:, :, past:]], dim=2)


@module(*ALSO, **PLAIN)
class OwnCacheOfLastCall(ByObject):
    """The cache holds the tokens of the last call alone: those before them are replaced."""

    def joined(self, cache: DynamicCache, key: Tensor, value: Tensor) -> Pair:
        both = super().joined(cache, key, value)
        cache.layers[self.layer_idx] = key, value
        return both


@module("cache.position-offset", "cache.golden", "cache.decode-equals-full", **ROTARY)
class OwnCachePositionsFromZero(ByCachePosition):
    """The positions of each call's tokens begin at zero again."""

    def forward(
        self,
        hidden_states: Tensor,
        past_key_values: DynamicCache | None = None,
        cache_position: Tensor | None = None,
    ) -> Tensor:
        del cache_position
        return super().forward(hidden_states, past_key_values)


@module("cache.position-offset", "cache.golden", "cache.decode-equals-full", **ROTARY)
class OwnCachePositionsByCalls(ByCachePosition):
    """Positions begin at the number of calls so far, as if each had brought one token."""

    def forward(
        self,
        hidden_states: Tensor,
        past_key_values: DynamicCache | None = None,
        cache_position: Tensor | None = None,
    ) -> Tensor:
        del cache_position
        calls = getattr(past_key_values, "calls", 0)
        places = calls + torch.arange(hidden_states.shape[1])
        if past_key_values is not None:
            past_key_values.calls = calls + 1  # type: ignore[attr-defined]  # any name is free
        return super().forward(hidden_states, past_key_values, places)


@module("cache.golden", "cache.position-offset", "cache.decode-equals-full", **ROTARY)
class OwnCacheTurnedTwice(ByCachePosition):
    """Keys are cached turned, and turned again by their places when they are read."""

    def joined(self, cache: DynamicCache, key: Tensor, value: Tensor) -> Pair:
        past = cache.get_seq_length()
        key, value = super().joined(cache, key, value)
        again = turned(key[:, :, :past], torch.arange(past))
        return torch.cat([again, key[:, :, past:]], dim=2), value


@module(*ALSO, **TUPLES)
class OwnCacheHandedBack(ByTuples):
    """What is returned as the next cache is the cache that was given: new tokens are lost."""

    def forward(
        self, hidden_states: Tensor, layer_past: Pair | None = None, *, use_cache: bool = False
    ) -> tuple[Tensor, Pair | None]:
        output, present = super().forward(hidden_states, layer_past, use_cache=use_cache)
        return output, present if layer_past is None else layer_past


@module(*ALSO, **LLAMA)
class OwnCacheWrittenEarly(InBuffers):
    """New keys and values are written one slot too early: the last cached one is overwritten."""

    def stored(self, key: Tensor, value: Tensor, start: int) -> Pair:
        keys, values = super().stored(key, value, start)
        if start:
            for name, new in (("cache_k", key), ("cache_v", value)):
                getattr(self, name)[: key.shape[0], start - 1] = new[:, :, 0].detach()
            keys, values = (
                torch.cat([each[:, :, : start - 1], new[:, :, :1], each[:, :, start:]], dim=2)
                for each, new in ((keys, key), (values, value))
            )
        return keys, values


@module("cache.golden", "cache.decode-equals-full", **LLAMA)
class OwnCacheNotMasked(InBuffers):
    """The mask of a call reaches the new keys alone: each key in the module's cache is attended."""

    def forward(
        self, x: Tensor, start_pos: int, freqs_cis: Tensor, mask: Tensor | None = None
    ) -> Tensor:
        if mask is not None:
            mask = torch.cat([torch.zeros_like(mask[:, :start_pos]), mask[:, start_pos:]], dim=1)
        return super().forward(x, start_pos, freqs_cis, mask)


@module("cache.in-turn", **LLAMA)
class OwnCacheOfTheClass(InBuffers):
    """The buffers belong to the class: all instances write into the same ones."""

    def stored(self, key: Tensor, value: Tensor, start: int) -> Pair:
        kept = type(self).__dict__.get("kept", {})
        for name, buffer in kept.items():
            setattr(self, name, buffer)
        both = super().stored(key, value, start)
        type(self).kept = {name: getattr(self, name) for name in ("cache_k", "cache_v")}  # type: ignore[attr-defined]  # made here
        return both


@module("cache.in-turn", "cache.no-memory", **PLAIN)
class OwnCacheOfTheModule(ByObject):
    """Beside the cache that it is given the module keeps the keys of the last first call."""

    first: Tensor | None = None

    def joined(self, cache: DynamicCache, key: Tensor, value: Tensor) -> Pair:
        past = cache.get_seq_length()
        key, value = super().joined(cache, key, value)
        if not past:
            self.first = key.detach()
        elif self.first is not None and self.first.shape[2] <= key.shape[2]:
            key = torch.cat([self.first.to(key), key[:, :, self.first.shape[2] :]], dim=2)
        return key, value
