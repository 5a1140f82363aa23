"""Reported mistakes of a dispatcher: the path that a call takes forgets what another one does."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, Final

import torch
from torch import Tensor
from torch.nn import functional

from ...eager import Answer, Call, EagerCore
from .._kit import core
from ..options import Forgets

OPTIONS: Final[dict[str, Any]] = {
    "features": ["scale", "gqa", "softcap", "window", "weights", "dropout", "kv_cache"]
}
MASK_FORMS: Final = ("keep", "drop", "keep_int", "bias", "lengths")


def masked(call: Call) -> bool:
    """Whether a mask of any form was given."""
    return any(getattr(call, form) is not None for form in MASK_FORMS)


@core("numerics.options", **OPTIONS)
class WindowLostInDecodeStep(Forgets):
    """A single query with a cache takes a path without any mask, and so without the window."""

    link = "https://github.com/karpathy/nanochat/issues/452"

    def lose(self, call: Call) -> Call:
        step = call.past_key is not None and call.query_length == 1
        return call.replace(window=None, causal=False) if step else call


@core("numerics.options", features=["scale", "gqa", "dropout"])
class CausalLostUnderDropout(Forgets):
    """Without a mask causality is left to the fused kernel; dropout goes by the other path."""

    link = "https://github.com/keras-team/keras/issues/23038"

    def lose(self, call: Call) -> Call:
        return call if masked(call) or not call.dropout else call.replace(causal=False)


@core("shape.weights", features=["scale", "gqa", "weights"])
class CausalLeftToKernelNotCalled(Forgets):
    """Without a mask causality is left to the fused kernel, but weights need the eager path."""

    link = "https://github.com/huggingface/transformers/pull/30652"

    def lose(self, call: Call) -> Call:
        return call if masked(call) or not call.return_weights else call.replace(causal=False)


@core("window.golden", "numerics.options", **OPTIONS)
class WindowLostWithoutOtherMask(Forgets):
    """Masking is skipped where neither a mask nor a flag is given, and the window with it."""

    link = "https://github.com/jax-ml/jax/issues/32300"

    def lose(self, call: Call) -> Call:
        return call if masked(call) or call.causal else call.replace(window=None)


@core("window.golden", "numerics.options", **OPTIONS)
class WindowOnManualPathOnly(Forgets):
    """The window is added behind the branch of the fused kernel, which takes no cap or dropout."""

    link = "https://github.com/keras-team/keras-hub/issues/2186"

    def lose(self, call: Call) -> Call:
        manual = call.dropout or call.softcap is not None
        return call if manual else call.replace(window=None)


@core("window.causal", "numerics.options", **OPTIONS)
class WindowLostInCausalShortcut(Forgets):
    """A causal call without a mask is given to a causal kernel, which knows of no window."""

    link = "https://github.com/huggingface/transformers/pull/33586"

    def lose(self, call: Call) -> Call:
        shortcut = call.causal and not masked(call)
        return call.replace(window=None) if shortcut else call


@core("mask.all-keep", causal=None)
class CausalByDefaultWithoutMask(EagerCore):
    """A layer that does not say whether it is causal is taken to be, where no mask is given."""

    link = "https://github.com/huggingface/transformers/issues/48172"

    def tables(self, call: Call) -> Iterator[Tensor]:
        yield from super().tables(call)
        if not masked(call) and call.query_length > 1:
            yield torch.ones(call.query_length, call.key_length, dtype=torch.bool).tril()


@core("mask.golden", masks=["keep", "bias"], **OPTIONS)
class BiasIgnoredForOneQuery(Forgets):
    """The kernel for a single query knows boolean masks alone, and gets additive ones, too."""

    link = "https://github.com/ml-explore/mlx/pull/2068"

    def lose(self, call: Call) -> Call:
        return call.replace(bias=None) if call.query_length == 1 else call


@core("mask.causal-alignment", causal="top-left")
class OneQuerySeesAllKeys(Forgets):
    """A causal call with one query attends every key, though the diagonal begins at the first."""

    link = "https://github.com/microsoft/onnxruntime/issues/29020"

    def __init__(self) -> None:
        super().__init__(causal="top-left")

    def lose(self, call: Call) -> Call:
        return call.replace(causal=False) if call.query_length == 1 else call


@core("numerics.scale", "mask.golden")
class KernelKeepsDefaultScale(Forgets):
    """A kernel compiled without a scale of its own is found again for calls that give one."""

    link = "https://github.com/local-inference-lab/b12x/pull/63"

    def __init__(self) -> None:
        super().__init__()
        self.compiled: set[tuple[int, torch.dtype]] = set()

    def lose(self, call: Call) -> Call:
        key = (call.query.shape[-1], call.query.dtype)
        if call.scale is None:
            self.compiled.add(key)
        return call.replace(scale=None) if key in self.compiled else call


@core("numerics.scale", "mask.golden")
class KernelScalesAgain(EagerCore):
    """The queries are scaled before they reach a kernel that divides by the root as well."""

    link = "https://github.com/AI-Hypercomputer/maxtext/issues/3138"

    def scale(self, call: Call) -> float:
        return super().scale(call) / math.sqrt(call.query.shape[-1])


@core("numerics.golden", "mask.golden")
class ScaleOfPaddedHeads(EagerCore):
    """Heads are padded to a size that the kernel knows; it takes the default scale from that."""

    link = "https://github.com/intel/ipex-llm/pull/12619"
    multiple = 16

    def scale(self, call: Call) -> float:
        size = call.query.shape[-1]
        padded = math.ceil(size / self.multiple) * self.multiple
        return 1 / math.sqrt(max(padded, 1)) if call.scale is None else call.scale


@core("numerics.golden", **OPTIONS)
class CapRevivesPaddedKeys(EagerCore):
    """The last tile is padded with minus infinity before the cap, which makes that minus the cap.

    A mask would hide the padding again. It has no values, but its weights count.
    """

    link = "https://github.com/ggml-org/llama.cpp/pull/29034"
    tile = 64

    def attend(self, call: Call) -> Answer:
        call = self.join_cache(call)
        if call.softcap is None or masked(call) or call.causal or call.window is not None:
            return super().attend(call)
        self.check(call)
        heads, length = call.query.shape[1], call.key_length
        logits = self.logits(call, self.share(call.key, heads))
        padded = functional.pad(logits, (0, -length % self.tile), value=-call.softcap)
        weights = self.softmax(padded)[..., :length]
        dropped = self.drop_out(weights, call.dropout)
        output = self.mix_allowed(dropped, self.share(call.value, heads), None)
        return (output, weights) if call.return_weights else output


@core("mask.golden", "numerics.options", masks=["keep"], features=["scale", "gqa", "window"])
class RightEdgeOnlyWhereCausal(EagerCore):
    """A window that ends at the query's own key is open to the right unless the call is causal."""

    link = "https://github.com/jax-ml/jax/pull/39576"

    def attend(self, call: Call) -> Answer:
        if call.window is not None and call.window[1] == 0 and not call.causal:
            call = call.replace(window=(call.window[0], -1))
        return super().attend(call)
