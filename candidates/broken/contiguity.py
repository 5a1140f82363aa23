"""Mistakes with memory: inputs that are views are read as if they were not."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from ..eager import Answer, Call, EagerCore
from ._kit import core

Reader = Callable[[Tensor], Tensor]


def memory_of(tensor: Tensor) -> Tensor:
    """Everything that lies in the memory behind a view, as a flat tensor."""
    size = tensor.untyped_storage().nbytes() // tensor.element_size()
    return tensor.as_strided((size,), (1,), 0)


def read(tensor: Tensor, strides: Sequence[int], offset: int) -> Tensor:
    """Read a tensor's shape from its memory with other strides, around the end if need be."""
    memory = memory_of(tensor)
    places = torch.full(tensor.shape, offset)
    for axis, (size, stride) in enumerate(zip(tensor.shape, strides, strict=True)):
        steps = [1] * tensor.dim()
        steps[axis] = size
        places = places + (torch.arange(size) * stride).reshape(steps)
    return memory[places % max(memory.numel(), 1)]


def packed(shape: Sequence[int]) -> list[int]:
    """The strides of a contiguous tensor."""
    strides = [1]
    for size in reversed(shape[1:]):
        strides.insert(0, strides[0] * size)
    return strides


class Rereads(EagerCore):
    """A core that reads its inputs from memory in a way of its own."""

    def attend(self, call: Call) -> Answer:
        """Read query, key and value, then attend."""
        return super().attend(
            call.replace(
                query=self.reread(call.query),
                key=self.reread(call.key),
                value=self.reread(call.value),
            )
        )

    def reread(self, tensor: Tensor) -> Tensor:
        """What is found where the tensor is thought to lie."""
        raise NotImplementedError


@core("shape.strided", "shape.expanded")
class ContiguityAssumed(Rereads):
    """Inputs are read as if they were contiguous: views give the wrong elements."""

    def reread(self, tensor: Tensor) -> Tensor:
        return read(tensor, packed(tensor.shape), int(tensor.storage_offset()))


@core("shape.strided", strides="contiguous")
class ContiguityDeclaredNotChecked(Rereads):
    """Only contiguous inputs are promised, but views are not refused: they are read wrongly."""

    def reread(self, tensor: Tensor) -> Tensor:
        return read(tensor, packed(tensor.shape), int(tensor.storage_offset()))


@core("shape.strided")
class LastStrideAssumedOne(Rereads):
    """Channels are read as neighbours in memory, which they are not in a transposed view."""

    def reread(self, tensor: Tensor) -> Tensor:
        return read(tensor, [*tensor.stride()[:-1], 1], int(tensor.storage_offset()))


@core("shape.strided")
class OffsetIgnored(Rereads):
    """A view is read from the start of its memory instead of its own first element."""

    def reread(self, tensor: Tensor) -> Tensor:
        return read(tensor, tensor.stride(), 0)


@core("shape.expanded")
class ZeroStrideTakenForUnset(Rereads):
    """A stride of zero is taken for one that was not given: expanded inputs are read as packed."""

    def reread(self, tensor: Tensor) -> Tensor:
        pairs = zip(tensor.stride(), packed(tensor.shape), strict=True)
        return read(
            tensor, [own or default for own, default in pairs], int(tensor.storage_offset())
        )


@core("shape.strided", "shape.expanded")
class ViewNeedsContiguity(Rereads):
    """Heads are folded into the batch by ``view``, which raises on inputs that are views."""

    def reread(self, tensor: Tensor) -> Tensor:
        return tensor.view(-1).view(tensor.shape)


@core("shape.expanded")
class ExpandedInputsRefused(Rereads):
    """The inputs are copied with the strides they came with, which raises for expanded ones."""

    def reread(self, tensor: Tensor) -> Tensor:
        return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype).copy_(tensor)


@core("shape.strided")
class ValuesReadWithKeyStrides(EagerCore):
    """Values are read with the strides of the keys, which had the same shape so far."""

    def attend(self, call: Call) -> Answer:
        if call.value.shape == call.key.shape:
            value = read(call.value, call.key.stride(), int(call.value.storage_offset()))
            call = call.replace(value=value)
        return super().attend(call)


@core("mask.strided", masks=["keep"])
class MaskReadAsContiguous(EagerCore):
    """Masks are read as if they were contiguous: expanded and transposed ones give other rows."""

    def attend(self, call: Call) -> Answer:
        if call.keep is not None:
            strides, offset = packed(call.keep.shape), int(call.keep.storage_offset())
            call = call.replace(keep=read(call.keep, strides, offset))
        return super().attend(call)


@core("mask.strided", masks=["bias"])
class BiasNeedsContiguity(EagerCore):
    """A bias is flattened by ``view``, which raises for one that is expanded or transposed."""

    def attend(self, call: Call) -> Answer:
        if call.bias is not None:
            call = call.replace(bias=call.bias.view(-1).view(call.bias.shape))
        return super().attend(call)


@core("shape.bounds")
class ReadsPastTheEnd(EagerCore):
    """Memory behind the last element is read too, and weighed by zero: NaN there comes through."""

    def attend(self, call: Call) -> Answer:
        behind = memory_of(call.value)[self.last(call.value) + 1 :][:3]
        return super().attend(call.replace(value=call.value + 0.0 * behind.sum()))

    def last(self, tensor: Tensor) -> int:
        """Where the last element of a tensor lies in its memory."""
        reach = zip(tensor.shape, tensor.stride(), strict=True)
        return int(tensor.storage_offset()) + sum((size - 1) * stride for size, stride in reach)


@core("state.answer-is-fresh")
class AnswerIsTheValues(EagerCore):
    """With one key the answer is a view of the caller's values, not a copy."""

    def attend(self, call: Call) -> Answer:
        answer = super().attend(call)
        if isinstance(answer, Tensor) and call.key_length == 1 and self.allowed(call) is None:
            shared = call.value.shape[1] == call.query.shape[1]
            return call.value.expand(answer.shape) if shared else answer
        return answer
