"""Mistakes with a cache of keys and values: what of it is read, where it stands, who writes it."""

from __future__ import annotations

from typing import Any, Final

import torch
from torch import Tensor

from ..eager import Answer, Call, EagerCore
from ._kit import CORE, core

CACHED: Final[dict[str, Any]] = {"features": [*CORE["features"], "window", "kv_cache"]}
ALSO: Final = ("cache.golden", "cache.decode-equals-full", "numerics.options")


def held(call: Call) -> int:
    """How many tokens the cache of a call holds."""
    return 0 if call.past_key is None else call.past_key.shape[2]


class OtherCache(EagerCore):
    """A core that joins another cache than it is given."""

    def join_cache(self, call: Call) -> Call:
        """The call with the cache as it is read, joined to the new tokens."""
        if call.past_key is None or call.past_value is None:
            return call
        past = self.read(call.past_key, call.key), self.read(call.past_value, call.value)
        return super().join_cache(call.replace(past_key=past[0], past_value=past[1]))

    def read(self, past: Tensor, new: Tensor) -> Tensor:
        """What is taken for the cached tokens ``[B, Hkv, P, D]``."""
        raise NotImplementedError


@core(*ALSO, **CACHED)
class CacheIgnored(EagerCore):
    """The cached keys and values are accepted and left out, the mask is cut to the new ones."""

    def join_cache(self, call: Call) -> Call:
        past = held(call)
        tables = {
            name: mask if mask is None else mask[..., past:]
            for name in ("keep", "drop", "keep_int", "bias")
            for mask in [getattr(call, name)]
        }
        lengths = None if call.lengths is None else (call.lengths - past).clamp(min=0)
        return call.replace(past_key=None, past_value=None, lengths=lengths, **tables)


@core(*ALSO, "cache.position-offset", **CACHED)
class CacheBehindNewTokens(EagerCore):
    """The cached keys and values are put behind the new ones."""

    def join_cache(self, call: Call) -> Call:
        if call.past_key is None or call.past_value is None:
            return call
        joined = call.replace(key=call.past_key, value=call.past_value)
        return super().join_cache(joined.replace(past_key=call.key, past_value=call.value))


@core(*ALSO, **CACHED)
class CacheReversed(OtherCache):
    """The cache is read from its last token to its first one."""

    def read(self, past: Tensor, new: Tensor) -> Tensor:
        del new
        return past.flip(2)


@core(*ALSO, **CACHED)
class LastSlotOverwritten(OtherCache):
    """The slot before the next free one is written: the last cached token is lost at each step."""

    def read(self, past: Tensor, new: Tensor) -> Tensor:
        return torch.cat([past[:, :, :-1], new[:, :, :1]], dim=2)


@core("groups.golden", *ALSO, **CACHED)
class CacheDealtInTurns(EagerCore):
    """Shared heads of the cache are dealt out in turns, those of new tokens to neighbours."""

    def join_cache(self, call: Call) -> Call:
        heads, kv_heads = call.query.shape[1], call.key.shape[1]
        if call.past_key is None or call.past_value is None or heads == kv_heads:
            return super().join_cache(call)
        tiled = {
            "past_key": call.past_key.repeat(1, heads // kv_heads, 1, 1),
            "past_value": call.past_value.repeat(1, heads // kv_heads, 1, 1),
        }
        own = {"key": self.share(call.key, heads), "value": self.share(call.value, heads)}
        return super().join_cache(call.replace(**tiled, **own))


class Behind(EagerCore):
    """A core that remembers, for the length of one call, how many tokens are cached."""

    def attend(self, call: Call) -> Answer:
        """Attend, knowing the length of the cache."""
        self.past = held(call)
        return super().attend(call)


@core("cache.position-offset", *ALSO, **CACHED)
class CausalFromFirstCached(Behind):
    """With a cache the first query is taken to stand at the first cached key."""

    def ahead(self, call: Call) -> Tensor:
        ahead = super().ahead(call)
        return ahead + call.key_length - call.query_length if self.past else ahead


@core("cache.position-offset", *ALSO, **CACHED)
class CausalOneBehindCache(Behind):
    """The new tokens are taken to stand one place further on: each sees the one after it."""

    def ahead(self, call: Call) -> Tensor:
        return super().ahead(call) - (1 if self.past else 0)


@core("cache.decode-equals-full", "cache.golden", "cache.position-offset", **CACHED)
class ChunkNotCausal(Behind):
    """With a cache the causal flag is dropped, as if each call brought a single new token."""

    def attend(self, call: Call) -> Answer:
        return super().attend(call.replace(causal=call.causal and not held(call)))


@core(*ALSO, **CACHED)
class MaskOfNewTokensOnly(Behind):
    """The mask acts on the new keys alone: every cached key is attended."""

    def allowed(self, call: Call) -> Tensor | None:
        allowed = super().allowed(call)
        if allowed is None or not self.past:
            return allowed
        cached = torch.arange(call.key_length) < self.past
        return allowed | cached


@core("cache.decode-equals-full", "cache.golden", **CACHED)
class CacheMaskOfFirstItem(Behind):
    """Which slots of the cache are in use is looked up for the first item of a batch only."""

    def allowed(self, call: Call) -> Tensor | None:
        allowed = super().allowed(call)
        if allowed is None or not self.past or allowed.dim() < call.query.dim():
            return allowed
        first = allowed[:1, ..., : self.past].expand(*allowed.shape[:-1], self.past)
        return torch.cat([first, allowed[..., self.past :]], dim=-1)


def slots(past: Tensor, count: int) -> Tensor:
    """The first slots of the memory that a cache is a view of, as many as there are."""
    step, size = past.stride(2), past.element_size()
    used = past.storage_offset() + sum(
        stride * (length - 1)
        for axis, (stride, length) in enumerate(zip(past.stride(), past.shape, strict=True))
        if axis != 2  # noqa: PLR2004 (the axis of tokens)
    )
    most = (past.untyped_storage().nbytes() // size - used - 1) // max(step, 1) + 1
    shape = (*past.shape[:2], min(count, most), past.shape[3])
    return past.as_strided(shape, past.stride(), past.storage_offset())


@core("cache.untouched-tail", **CACHED)
class TailRead(OtherCache):
    """Caches are read in steps of two slots, the slot behind an odd number of tokens with them."""

    def read(self, past: Tensor, new: Tensor) -> Tensor:
        del new
        whole = slots(past, past.shape[2] + past.shape[2] % 2)
        if whole.shape[2] == past.shape[2]:
            return past
        return torch.cat([past[:, :, :-1], (past[:, :, -1:] + 0.0 * whole[:, :, -1:])], dim=2)


@core("cache.untouched-tail", **CACHED)
class NewTokensWrittenBehindCache(OtherCache):
    """The new keys and values are written into the memory behind the cache of the call."""

    def read(self, past: Tensor, new: Tensor) -> Tensor:
        room = slots(past, past.shape[2] + new.shape[2])[:, :, past.shape[2] :]
        room.copy_(new[:, :, : room.shape[2]])
        return past


@core("cache.untouched-tail", "state.inputs-unchanged", **CACHED)
class CacheScaledInPlace(OtherCache):
    """Cached keys and values are scaled in place for the products, and scaled back in a copy."""

    def read(self, past: Tensor, new: Tensor) -> Tensor:
        del new
        return past.mul_(2.0) / 2.0


@core("cache.no-memory", **CACHED)
class CacheRememberedByShape(EagerCore):
    """The joined keys and values of a call are taken again for the next call of those shapes."""

    def __init__(self) -> None:
        super().__init__()
        self.joined: dict[tuple[tuple[int, ...], ...], Call] = {}

    def join_cache(self, call: Call) -> Call:
        if call.past_key is None:
            return call
        asked = (call.past_key, call.key, call.value)
        shapes = tuple((*tensor.shape, tensor.data_ptr()) for tensor in asked)
        joined = self.joined.setdefault(shapes, super().join_cache(call))
        return call.replace(key=joined.key, value=joined.value, past_key=None, past_value=None)


@core("cache.empty-past", **CACHED)
class EmptyCacheRefused(EagerCore):
    """A cache without any token is refused: there is no last token to stand behind."""

    def join_cache(self, call: Call) -> Call:
        if call.past_key is not None and not held(call):
            msg = "the cache is empty"
            raise ValueError(msg)
        return super().join_cache(call)
