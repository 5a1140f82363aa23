"""Windows, causality and masks where keys were cached, or one query is decoded."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import torch
from torch import Tensor
from torch.nn import functional

from ...eager import Answer, Call
from .._kit import core
from ._steps import SERVING, WINDOWED, Caching, Joined, one_query, past

Window = tuple[int, int]
MASKED: Final[dict[str, Any]] = {**WINDOWED, "masks": ["drop"], "features": ["scale", "window"]}


@core("mask.causal-combined", "numerics.options", **SERVING)
class CachedKeysSkipped(Caching):
    """The loop over the keys starts at the first query's own: causal calls see no cached key."""

    link = "https://github.com/openai/gpt-oss/pull/196"

    def tables(self, call: Call) -> Iterator[Tensor]:
        yield from super().tables(call)
        if call.causal and past(call):
            yield torch.arange(call.key_length) >= past(call)


class Rewindows(Caching):
    """Reads another window than it is given."""

    def within_window(self, call: Call, window: Window) -> Tensor:
        left, right = window
        return super().within_window(call, (self.left(call, left) if left > 0 else left, right))

    def left(self, call: Call, left: int) -> int:
        """What becomes of a positive number of keys to the left."""
        raise NotImplementedError


@core("window.edge", "window.golden", features=["scale", "gqa", "window"])
class LeftEdgeOfWindowExcluded(Rewindows):
    """The key at the left edge of a window is shut out, as cuDNN counts."""

    link = "https://github.com/NVIDIA/TransformerEngine/issues/1197"

    def left(self, call: Call, left: int) -> int:
        del call
        return left - 1


@core("cache.golden", **WINDOWED)
class WindowShortWhileDecoding(Rewindows):
    """The buffer of a decoding step has no room for the query's own key: the oldest is dropped."""

    link = "https://github.com/sgl-project/sglang/pull/32087"

    def left(self, call: Call, left: int) -> int:
        return left - 1 if one_query(call) and past(call) else left


@core("mask.golden", "numerics.options", **WINDOWED)
class WindowWideWhileExtending(Rewindows):
    """Several queries after a cache attend one key more than the window shows."""

    link = "https://github.com/sgl-project/sglang/pull/34273"

    def left(self, call: Call, left: int) -> int:
        return left if one_query(call) or not past(call) else left + 1


@core("numerics.options", **WINDOWED)
class WindowLostWhileDecoding(Caching):
    """One query after a cache attends all of it: the window is not handed on."""

    link = "https://github.com/karpathy/nanochat/issues/452"

    def within_window(self, call: Call, window: Window) -> Tensor:
        if one_query(call) and past(call):
            window = (-1, window[1])
        return super().within_window(call, window)


@core("mask.golden", "numerics.options", **MASKED)
class WindowInsteadOfMask(Caching):
    """A window builds its own mask and discards the one that is given."""

    link = "https://github.com/NVIDIA/Megatron-LM/issues/7039"

    def tables(self, call: Call) -> Iterator[Tensor]:
        yield from super().tables(call if call.window is None else call.replace(drop=None))


@core("numerics.options", "mask.empty-row", **{**WINDOWED, "masks": ["keep"]})
class MaskCountsRowsFromTheChunk(Caching):
    """With a mask, the causal rule counts queries from the first of the chunk, not of all keys."""

    link = "https://github.com/vllm-project/vllm/pull/47332"

    def tables(self, call: Call) -> Iterator[Tensor]:
        if call.keep is None or not call.causal:
            yield from super().tables(call)
            return
        yield from super().tables(call.replace(causal=False))
        yield torch.ones(call.query_length, call.key_length, dtype=torch.bool).tril()


@core("numerics.options", "mask.golden", **{**WINDOWED, "masks": ["keep"]})
class MaskLosesTheWindow(Caching):
    """With a mask, it alone decides beside causality: the window is no longer enforced."""

    link = "https://github.com/vllm-project/vllm/issues/47300"

    def tables(self, call: Call) -> Iterator[Tensor]:
        yield from super().tables(call if call.keep is None else call.replace(window=None))


@core("cache.golden", **{**SERVING, "masks": []})
class UnwrittenCacheAttended(Caching):
    """A step of decoding attends the whole buffer of the cache, its unwritten zeros too."""

    link = "https://github.com/meta-pytorch/gpt-fast/issues/233"

    def join_cache(self, call: Call) -> Joined:
        joined = super().join_cache(call)
        if not joined.past or not one_query(joined) or joined.causal:
            return joined
        unwritten = -joined.key_length % 16
        room = {
            name: functional.pad(getattr(joined, name), (0, 0, 0, unwritten))
            for name in ("key", "value")
        }
        return Joined(**{**vars(joined), **room})


def slots(call: Call) -> int:
    """How many keys a ring as long as the window holds; none where there is no such ring."""
    if call.window is None or call.window[0] < 0 or not call.causal:
        return 0
    return call.window[0] + 1


@core("numerics.options", **{**WINDOWED, "masks": []})
class LongPrefillOverwritesRing(Caching):
    """New tokens beyond a ring as long as the window overwrite keys that others still need.

    The mask keeps counting places as if the first ones were there.
    """

    link = "https://github.com/Lightning-AI/litgpt/issues/2182"

    cached = False

    def attend(self, call: Call) -> Answer:
        self.cached = call.past_key is not None
        return super().attend(call)

    def allowed(self, call: Call) -> Tensor | None:
        ring = slots(call)
        if not self.cached or not ring or call.query_length <= ring:
            return super().allowed(call)
        keys = torch.arange(call.key_length)
        queries = torch.arange(call.query_length) + past(call)
        return (keys >= call.key_length - ring) & (keys % ring <= queries[:, None])


@core("mask.causal-combined", "numerics.options", **{**WINDOWED, "masks": []})
class PrefillBehindCacheCutToWindow(Caching):
    """Several queries after a cache, more than the window is long, attend its last keys alone."""

    link = "https://github.com/lablup/mlxcel/issues/413"

    def tables(self, call: Call) -> Iterator[Tensor]:
        yield from super().tables(call)
        width = slots(call)
        if past(call) and width and call.query_length > width:
            yield torch.arange(call.key_length) >= call.key_length - width


@core("cache.golden", **{**SERVING, "masks": []})
class NewKeyNotYetVisible(Caching):
    """A step with a cache attends what the cache shows, and its own key is shown after the step."""

    link = "https://github.com/harvard-edge/cs249r_book/pull/1953"

    def tables(self, call: Call) -> Iterator[Tensor]:
        yield from super().tables(call)
        if past(call) and one_query(call):
            yield torch.arange(call.key_length) < past(call)


@core("cache.golden", "numerics.options", **SERVING)
class NewestKeyEscapesMask(Caching):
    """One query after a cache attends its own key, the last, though the mask hides it."""

    link = "https://github.com/microsoft/onnxruntime/pull/22567"

    def allowed(self, call: Call) -> Tensor | None:
        allowed = super().allowed(call)
        if allowed is None or not one_query(call) or not past(call):
            return allowed
        own = torch.arange(call.key_length) == call.key_length - 1
        return allowed | own
