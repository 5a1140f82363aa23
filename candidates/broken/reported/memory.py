"""Reported mistakes of memory: strides that are not asked for, and what one call leaves behind."""

from __future__ import annotations

from typing import Any, Final

from torch import Tensor

from ...eager import Answer, Call, EagerCore
from .._kit import core
from ..contiguity import packed, read
from ._steps import Caching

PLAIN: Final[dict[str, Any]] = {"masks": [], "features": ["scale", "gqa"]}


@core("shape.strided", **PLAIN)
class ContiguousOnlyWhenCompiled(EagerCore):
    """Queries and keys are made contiguous where a kernel is compiled, and not when it is found."""

    link = "https://github.com/Dao-AILab/flash-attention/issues/2886"

    def __init__(self) -> None:
        super().__init__()
        self.compiled: set[tuple[object, ...]] = set()

    def attend(self, call: Call) -> Answer:
        group = call.query.shape[1] // max(call.key.shape[1], 1)
        kernel = (call.query.dtype, call.query.shape[-1], call.value.shape[-1], call.causal, group)
        if kernel in self.compiled:
            call = call.replace(query=self.plain(call.query), key=self.plain(call.key))
        self.compiled.add(kernel)
        return super().attend(call)

    def plain(self, tensor: Tensor) -> Tensor:
        """A tensor whose channels are neighbours, read as if all of it were contiguous."""
        if tensor.is_contiguous() or tensor.stride(-1) != 1:
            return tensor
        return read(tensor, packed(tensor.shape), int(tensor.storage_offset()))


@core("shape.strided", **PLAIN)
class ValuesTakenForContiguous(EagerCore):
    """Queries and keys are read by their strides, values as if they were contiguous."""

    link = "https://github.com/flagos-ai/FlagGems/issues/5896"

    def attend(self, call: Call) -> Answer:
        value = call.value
        if not value.is_contiguous():
            value = read(value, packed(value.shape), int(value.storage_offset()))
        return super().attend(call.replace(value=value))


@core("state.call-order", masks=["keep"], features=["scale", "gqa", "kv_cache"])
class OffsetKeptAfterCachedCall(Caching):
    """Where a cache ended is kept, and calls without one count their queries from there."""

    link = "https://github.com/rasbt/LLMs-from-scratch/pull/1048"
    position = 0
    cached = False

    def attend(self, call: Call) -> Answer:
        self.cached = call.past_key is not None
        answer = super().attend(call)
        if call.past_key is not None:
            self.position = call.past_key.shape[2] + call.key.shape[2]
        return answer

    def ahead(self, call: Call) -> Tensor:
        ahead = super().ahead(call)
        return ahead if self.cached else ahead - self.position
