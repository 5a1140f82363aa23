"""Reported mistakes of steps with a cache: windows, offsets and masks beside earlier keys."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any, Final

import torch
from torch import Tensor

from ...eager import Answer, Call, EagerCore
from .._kit import core
from .paths import OPTIONS

CACHED: Final[dict[str, Any]] = {"masks": ["keep", "bias"], **OPTIONS}
KEY_MASKS: Final[dict[str, Any]] = {"masks": ["keep"], "mask_shapes": ["B11K"], **OPTIONS}


@dataclass(frozen=True, kw_only=True)
class Joined(Call):
    """A call whose cached keys, ``past`` of them, have joined the new ones."""

    past: int = 0


class Decoder(EagerCore):
    """A core whose later steps know how many keys were cached."""

    def join_cache(self, call: Call) -> Call:
        """The joined call; it may be joined again."""
        if isinstance(call, Joined):
            return call
        past = 0 if call.past_key is None else call.past_key.shape[2]
        joined = super().join_cache(call)
        given = {field.name: getattr(joined, field.name) for field in fields(joined)}
        return Joined(**given, past=past)

    def past(self, call: Call) -> int:
        """How many of a joined call's keys were cached."""
        return call.past if isinstance(call, Joined) else 0


def cut(call: Call, length: int) -> Call:
    """The call with masks for its first keys alone."""
    masks = {form: getattr(call, form) for form in ("keep", "bias")}
    return call.replace(**{f: m[..., :length] for f, m in masks.items() if m is not None})


@core("cache.golden", "cache.decode-equals-full", **CACHED)
class StepIsCausalFromTheFirstKey(Decoder):
    """The causal flag still holds in a step with a cache, whose one query counts as the first."""

    link = "https://github.com/google/flax/issues/5591"

    def tables(self, call: Call) -> Iterator[Tensor]:
        step = self.past(call) > 0 and call.query_length == 1
        yield from super().tables(call.replace(causal=call.causal and not step))
        if step and call.causal:
            yield torch.arange(call.key_length) <= 0


@core("window.golden", "mask.golden", **CACHED)
class WindowCountedAmongNewTokens(Decoder):
    """The near side of a window is counted from a query's place among the new tokens."""

    link = "https://github.com/trymirai/lalamo/pull/200"

    def within_window(self, call: Call, window: tuple[int, int]) -> Tensor:
        left, right = window
        within = super().within_window(call, (-1, right))
        if left < 0:
            return within
        shift = 0 if self.past(call) else call.key_length - call.query_length
        queries = torch.arange(call.query_length) + shift
        return within & (torch.arange(call.key_length) - queries[:, None] >= -left)


@core("numerics.options", **CACHED)
class OldestKeyLostWhenWindowFills(Decoder):
    """The step that fills a cache as long as the window rolls it already.

    The oldest key is lost, and an empty slot stands before the new key.
    """

    link = "https://github.com/huggingface/transformers/issues/37574"

    def attend(self, call: Call) -> Answer:
        call = self.join_cache(call)
        window = call.window or (-1, -1)
        step = self.past(call) > 0 and call.query_length == 1
        if not (step and call.key_length == window[0] + 1):
            return super().attend(call)
        key, value = (self.rolled(cached) for cached in (call.key, call.value))
        return super().attend(call.replace(key=key, value=value))

    def rolled(self, cached: Tensor) -> Tensor:
        """All but the first, a slot of zeros before the last."""
        empty = torch.zeros_like(cached[:, :, :1])
        return torch.cat([cached[:, :, 1:-1], empty, cached[:, :, -1:]], dim=2)


@core("cache.golden", "mask.golden", **CACHED)
class CacheUnusedAndMaskCut(EagerCore):
    """The cache is not used; a mask for more keys than there are is silently cut to fit."""

    link = "https://github.com/huggingface/transformers/pull/42188"

    def attend(self, call: Call) -> Answer:
        if call.past_key is None:
            return super().attend(call)
        alone = call.replace(past_key=None, past_value=None)
        return super().attend(cut(alone, call.key_length))


@core("numerics.options", "mask.golden", **KEY_MASKS)
class WindowShiftsPadding(Decoder):
    """With more keys than the window the padding mask is cut to its last columns, the keys not.

    So those columns decide on the first keys, and the keys behind them count as padding.
    """

    link = "https://github.com/huggingface/transformers/pull/34093"

    def attend(self, call: Call) -> Answer:
        call = self.join_cache(call)
        width = (call.window or (-1, -1))[0] + 1
        if call.keep is None or not 0 < width < call.key_length:
            return super().attend(call)
        rest = torch.zeros_like(call.keep[..., width:])
        return super().attend(call.replace(keep=torch.cat([call.keep[..., -width:], rest], -1)))


@core("cache.golden", "numerics.options", **CACHED)
class EqualLengthsTakenForCache(EagerCore):
    """Cached keys as many as the new ones are taken for those keys, computed before."""

    link = "https://github.com/huggingface/peft/issues/565"

    def attend(self, call: Call) -> Answer:
        past_key, past_value = call.past_key, call.past_value
        if past_key is None or past_value is None or past_key.shape[2] != call.key_length:
            return super().attend(call)
        alone = call.replace(key=past_key, value=past_value, past_key=None, past_value=None)
        return super().attend(cut(alone, call.key_length))
