"""Mistakes with what a candidate keeps, changes or forgets between calls."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import torch
from torch import Tensor
from torch.nn import functional

from ..eager import Answer, Call, EagerCore
from ._kit import core

Shapes = tuple[object, ...]


def shapes_of(call: Call) -> Shapes:
    """The shapes and settings of a call, everything but the numbers."""
    names = ("keep", "drop", "keep_int", "bias", "lengths")
    masks = [getattr(call, name) for name in names]
    given = (None if mask is None else mask.shape for mask in masks)
    settings = (call.causal, call.scale, call.dropout, call.return_weights, call.query.dtype)
    return (call.query.shape, call.key.shape, call.value.shape, *given, *settings)


@core("state.inputs-unchanged", "shape.expanded")
class QueryScaledInPlace(EagerCore):
    """The caller's query tensor is scaled in place."""

    def scores(self, call: Call, key: Tensor) -> Tensor:
        call.query.mul_(self.scale(call))
        return call.query @ key.mT


@core("state.inputs-unchanged")
class ValueZeroedInPlace(EagerCore):
    """The caller's values are set to zero where the mask ignores them."""

    def attend(self, call: Call) -> Answer:
        allowed = self.allowed(call)
        if allowed is not None and call.value.shape[1] == call.query.shape[1]:
            ignored = ~allowed.any(dim=-2).unsqueeze(-1)
            call.value.copy_(call.value.masked_fill(ignored, 0.0))
        return super().attend(call)


@core("state.inputs-unchanged", masks=["keep"])
class CausalCutIntoMask(EagerCore):
    """The causal triangle is cut into the caller's own mask."""

    def attend(self, call: Call) -> Answer:
        if call.keep is not None and call.causal and call.keep.shape[-2] == call.query_length:
            call.keep.logical_and_(self.ahead(call) <= 0)
        return super().attend(call)


@core("state.inputs-unchanged", masks=["bias"])
class BiasFilledInPlace(EagerCore):
    """The minus infinities of the caller's bias are replaced by a large number, in place."""

    def add_bias(self, scores: Tensor, bias: Tensor) -> Tensor:
        if 0 in bias.stride():  # torch refuses, or warns about, writing to what is expanded
            bias = bias.clone()
        return scores + bias.masked_fill_(bias.isneginf(), torch.finfo(bias.dtype).min)


@core("state.no-memory")
class AnswersCachedByShape(EagerCore):
    """The answer to the first call of a shape is returned for every later call of that shape."""

    def __init__(self) -> None:
        super().__init__()
        self.known: dict[Shapes, Answer] = {}

    def attend(self, call: Call) -> Answer:
        shapes = shapes_of(call)
        if shapes not in self.known:
            self.known[shapes] = super().attend(call)
        return self.known[shapes]


@core("state.no-memory")
class AnswersCachedByAddress(EagerCore):
    """An answer is returned again when tensors of the same shapes lie at the same addresses."""

    def __init__(self) -> None:
        super().__init__()
        self.known: dict[Shapes, Answer] = {}

    def attend(self, call: Call) -> Answer:
        addresses = (tensor.data_ptr() for tensor in (call.query, call.key, call.value))
        place = (*shapes_of(call), *addresses)
        if place not in self.known:
            self.known[place] = super().attend(call)
        return self.known[place]


@core("state.no-memory", "mask.per-item")
class MaskCachedByShape(EagerCore):
    """The mask of the first call of a shape is used for every later call of that shape."""

    def __init__(self) -> None:
        super().__init__()
        self.known: dict[Shapes, Tensor | None] = {}

    def allowed(self, call: Call) -> Tensor | None:
        return self.known.setdefault(shapes_of(call), super().allowed(call))


@core("state.no-memory")
class KeysOfEarlierCalls(EagerCore):
    """Keys of the call before are attended too when shapes agree: a cache that is never cleared."""

    def __init__(self) -> None:
        super().__init__()
        self.cached: dict[Shapes, tuple[Tensor, Tensor]] = {}

    def attend(self, call: Call) -> Answer:
        shapes = shapes_of(call)
        before, self.cached[shapes] = self.cached.get(shapes), (call.key, call.value)
        if before is None or self.allowed(call) is not None or call.bias is not None:
            return super().attend(call)
        answer = super().attend(
            call.replace(
                key=torch.cat([before[0], call.key], dim=2),
                value=torch.cat([before[1], call.value], dim=2),
            )
        )
        if isinstance(answer, tuple):
            return answer[0], answer[1][..., call.key_length :]
        return answer


@core("state.repeatable", "state.no-memory", "state.bitwise-repeatable")
class ScaleDrifts(EagerCore):
    """The scale is multiplied into a stored number, so that it differs from call to call."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def scale(self, call: Call) -> float:
        self.calls += 1
        return super().scale(call) * (1 + 0.1 * (self.calls % 7))


@core("state.repeatable", "state.bitwise-repeatable", "numerics.golden")
class KeysSampled(EagerCore):
    """Each call attends to a random half of the keys, to save time."""

    def weights(self, logits: Tensor, allowed: Tensor | None) -> Tensor:
        sampled = torch.rand(logits.shape[-1]) < 0.5  # noqa: PLR2004 (the half of the docstring)
        return super().weights(logits, sampled if allowed is None else allowed & sampled)


@core("state.repeatable", "state.bitwise-repeatable")
class DropoutLeftOn(EagerCore):
    """A tenth of the weights is dropped in every call, asked for or not."""

    def attend(self, call: Call) -> Answer:
        return super().attend(call if call.dropout else call.replace(dropout=0.1))


@core("state.repeatable", "state.bitwise-repeatable")
class OutputDropoutLeftOn(EagerCore):
    """The output goes through dropout in every call, as if it were training."""

    def mix(self, weights: Tensor, value: Tensor) -> Tensor:
        return functional.dropout(super().mix(weights, value), 0.25, training=True)


@core("state.bitwise-repeatable")
class SummedInRandomOrder(EagerCore):
    """The keys are summed in an order that differs from call to call, and so does the last bit."""

    def mix(self, weights: Tensor, value: Tensor) -> Tensor:
        order = torch.randperm(value.shape[2])
        products = weights[..., order].unsqueeze(-1) * value[:, :, order].unsqueeze(2)
        total = weights.new_zeros((*weights.shape[:-1], value.shape[-1]))
        for product in products.unbind(dim=3):
            total = total + product
        return total


@core("state.answer-kept")
class AnswerBufferReused(EagerCore):
    """Answers of one shape are all written into one buffer, unless a gradient is recorded."""

    def __init__(self) -> None:
        super().__init__()
        self.buffers: dict[tuple[object, ...], Tensor] = {}

    def attend(self, call: Call) -> Answer:
        fresh = super().attend(call)
        if isinstance(fresh, tuple) or fresh.requires_grad:
            return fresh
        buffer = self.buffers.setdefault((fresh.shape, fresh.dtype), torch.empty_like(fresh))
        return buffer.copy_(fresh)


@core("state.inputs-unchanged", masks=["keep"], causal=None)
class EmptyRowsOpenedInPlace(EagerCore):
    """Rows of the caller's mask that have no key are filled, so that no softmax sees them."""

    def attend(self, call: Call) -> Answer:
        answer = super().attend(call)
        if call.keep is not None:
            call.keep.logical_or_(~call.keep.any(dim=-1, keepdim=True))
        return answer


@core("state.inputs-unchanged")
class QueryScaledInPlaceForWeights(EagerCore):
    """The path that returns the weights scales the caller's query in place."""

    def attend(self, call: Call) -> Answer:
        answer = super().attend(call)
        if call.return_weights:
            call.query.mul_(self.scale(call))
        return answer


@core("state.settings")
class SeedsEverybody(EagerCore):
    """Each call seeds the random numbers of the whole process."""

    def attend(self, call: Call) -> Answer:
        torch.manual_seed(0)
        return super().attend(call)


@core("state.threads")
class LastRowsLeftByThreads(EagerCore):
    """Rows are divided among the threads of the process, and what is left over stays zero."""

    def attend(self, call: Call) -> Answer:
        answer = super().attend(call)
        count = torch.get_num_threads()
        if count == 1 or not isinstance(answer, Tensor):
            return answer
        done = torch.arange(call.query_length) < call.query_length // count * count
        return answer * done[:, None]


@core("state.threads")
class AccumulatorSharedByThreads(EagerCore):
    """Threads add up the halves of each row in one place, which the others overwrite meanwhile."""

    def attend(self, call: Call) -> Answer:
        answer = super().attend(call)
        count = torch.get_num_threads()
        if count == 1 or not isinstance(answer, Tensor):
            return answer
        flat = answer.detach().reshape(-1)
        shared = torch.zeros(1, dtype=answer.dtype)
        together, rows = Barrier(count), flat.clone()

        def work(number: int) -> None:
            for place in range(number, min(len(flat), 64) // count * count, count):
                together.wait()
                shared.copy_(flat[place])
                together.wait()
                rows[place] = shared[0]

        with ThreadPoolExecutor(count) as pool:
            list(pool.map(work, range(count)))
        return rows.reshape(answer.shape)
