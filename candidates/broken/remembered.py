"""Mistakes with what is remembered from one call to the next, looked up by too little."""

from __future__ import annotations

import torch
from torch import Tensor

from ..eager import Answer, Call, EagerCore
from ._kit import core
from .state import shapes_of

Key = tuple[object, ...]


def contents(*tensors: Tensor | None) -> Key:
    """The numbers of some tensors, as they lie in memory."""
    return tuple(
        None if tensor is None else tensor.contiguous().numpy().tobytes() for tensor in tensors
    )


class Remembers(EagerCore):
    """A core that returns an earlier answer when it takes the question for the same."""

    def __init__(self) -> None:
        super().__init__()
        self.known: dict[Key, Answer] = {}

    def attend(self, call: Call) -> Answer:
        """Look the call up, or answer it."""
        found = self.known.setdefault(self.key_of(call), super().attend(call))
        if isinstance(found, tuple):
            return found[0].clone(), found[1].clone()
        return found.clone()

    def key_of(self, call: Call) -> Key:
        """What the answer is looked up by."""
        masks = contents(call.keep, call.drop, call.keep_int, call.bias, call.lengths)
        return (*shapes_of(call), *masks)


@core("state.no-memory")
class AnswersCachedByQuery(Remembers):
    """An answer is returned again for an equal query, though keys and values are others."""

    def key_of(self, call: Call) -> Key:
        return (*super().key_of(call), *contents(call.query))


@core("state.no-memory")
class AnswersCachedByQueryAndValue(Remembers):
    """An answer is returned again for an equal query and value, though the keys are others."""

    def key_of(self, call: Call) -> Key:
        return (*super().key_of(call), *contents(call.query, call.value))


@core("state.no-memory", "equivariance.tokens")
class AnswersCachedBySum(Remembers):
    """Questions are told apart by the sums of their tensors, which reordering does not change."""

    def key_of(self, call: Call) -> Key:
        tensors = (call.query, call.key, call.value)
        sums = (round(float(tensor.double().sum()), 6) for tensor in tensors)
        return (*super().key_of(call), *sums)


@core("state.no-memory")
class AnswersCachedByFirstToken(Remembers):
    """Questions are told apart by their first token alone."""

    def key_of(self, call: Call) -> Key:
        tensors = (call.query, call.key, call.value)
        return (*super().key_of(call), *contents(*(tensor[:, :, :1] for tensor in tensors)))


@core("state.no-memory", masks=["keep"])
class MaskNotLookedUp(Remembers):
    """An answer is returned again for the same tokens, though the mask is another."""

    def key_of(self, call: Call) -> Key:
        return (*shapes_of(call), *contents(call.query, call.key, call.value))


@core("state.call-order", masks=["keep"])
class MaskKeptForLater(EagerCore):
    """A mask is kept, and later calls that it fits and that bring none of their own obey it."""

    def __init__(self) -> None:
        super().__init__()
        self.kept: Tensor | None = None

    def attend(self, call: Call) -> Answer:
        if call.keep is not None:
            self.kept = call.keep.clone()
        elif self.kept is not None and self.fits(self.kept, call):
            call = call.replace(keep=self.kept)
        return super().attend(call)

    def fits(self, keep: Tensor, call: Call) -> bool:
        """Whether a mask broadcasts to the scores of a call."""
        wanted = (*call.query.shape[:3], call.key_length)
        if keep.shape[-1] != call.key_length:
            return False
        return all(size in (1, own) for size, own in zip(keep.shape, wanted, strict=True))


@core("numerics.scale", "numerics.golden")
class ScaleOfFirstHeadSize(EagerCore):
    """The scale is worked out from the head size of the very first call and kept."""

    def __init__(self) -> None:
        super().__init__()
        self.first: float | None = None

    def scale(self, call: Call) -> float:
        if call.scale is not None:
            return call.scale
        if self.first is None:
            self.first = super().scale(call)
        return self.first


@core("state.call-order", "state.repeatable")
class EveryTenthCallCoarse(EagerCore):
    """Every tenth call is answered coarsely, as if the device had been busy."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def mix(self, weights: Tensor, value: Tensor) -> Tensor:
        self.calls += 1
        output = super().mix(weights, value)
        return output if self.calls % 10 else output.to(torch.bfloat16).to(output.dtype)
