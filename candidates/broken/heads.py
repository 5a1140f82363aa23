"""Mistakes with heads and batch items of a core: which meets which."""

from __future__ import annotations

import torch
from torch import Tensor

from ..eager import Answer, Call, EagerCore
from ._kit import core


@core("groups.order", "groups.golden", "groups.equals-repeated", "numerics.golden")
class GroupsTiled(EagerCore):
    """Shared key/value heads are dealt out in turns, where each serves neighbouring query heads."""

    def share(self, heads: Tensor, num_heads: int) -> Tensor:
        return heads.repeat(1, num_heads // heads.shape[1], 1, 1)


@core("equivariance.heads", "numerics.golden")
class FirstHeadsKeys(EagerCore):
    """All heads use the keys of the first one."""

    def scores(self, call: Call, key: Tensor) -> Tensor:
        return super().scores(call, key[:, :1])


@core("equivariance.heads", "numerics.golden")
class ScaleGrowsInLoop(EagerCore):
    """The queries are scaled inside the loop over heads, so that each head is scaled once more."""

    def scores(self, call: Call, key: Tensor) -> Tensor:
        times = torch.arange(call.query.shape[1], dtype=call.query.dtype).reshape(-1, 1, 1)
        return super().scores(call, key) * self.scale(call) ** times


@core("equivariance.heads", "numerics.golden")
class ValuesOfNextHead(EagerCore):
    """Each head averages the values of the head after it."""

    def mix(self, weights: Tensor, value: Tensor) -> Tensor:
        return super().mix(weights, value.roll(-1, dims=1))


@core("numerics.golden")
class HeadsAveraged(EagerCore):
    """All heads use the average of their weights."""

    def mix(self, weights: Tensor, value: Tensor) -> Tensor:
        return super().mix(weights.mean(dim=1, keepdim=True), value)


@core("equivariance.batch", "numerics.golden", "equivariance.batch-independent")
class FirstItemsKeys(EagerCore):
    """All batch items attend to the keys of the first one."""

    def scores(self, call: Call, key: Tensor) -> Tensor:
        return super().scores(call, key[:1])


@core("equivariance.batch", "numerics.golden", "equivariance.batch-independent")
class BatchReversed(EagerCore):
    """The values of the batch items are read in reverse order."""

    def mix(self, weights: Tensor, value: Tensor) -> Tensor:
        return super().mix(weights, value.flip(0))


@core("equivariance.batch-independent", "numerics.golden")
class QueriesCentredOverBatch(EagerCore):
    """The queries are centred over the batch first, as a batch normalisation does."""

    def scores(self, call: Call, key: Tensor) -> Tensor:
        centred = call.query - call.query.mean(dim=0, keepdim=True)
        return super().scores(call.replace(query=centred), key)


@core("equivariance.batch-independent", "mask.golden", "mask.per-item")
class PaddingOfAllItems(EagerCore):
    """A key that is ignored in one batch item is ignored in all of them, to cut the padding off."""

    def allowed(self, call: Call) -> Tensor | None:
        allowed = super().allowed(call)
        if allowed is None or allowed.dim() < call.query.dim() or not allowed.numel():
            return allowed
        return allowed.all(dim=0, keepdim=True)


@core("shape.weights")
class WeightsAveraged(EagerCore):
    """The returned weights are averaged over the heads, though each head's were asked for."""

    def attend(self, call: Call) -> Answer:
        answer = super().attend(call)
        return (answer[0], answer[1].mean(dim=1)) if isinstance(answer, tuple) else answer


@core("shape.weights")
class WeightsBeforeSoftmax(EagerCore):
    """The returned weights are the logits from before the softmax."""

    def attend(self, call: Call) -> Answer:
        answer = super().attend(call)
        if not isinstance(answer, tuple):
            return answer
        return answer[0], self.logits(call, self.share(call.key, call.query.shape[1]))


@core("shape.weights")
class WeightsWithoutMask(EagerCore):
    """The returned weights ignore the mask that the output respects."""

    def attend(self, call: Call) -> Answer:
        answer = super().attend(call)
        if not isinstance(answer, tuple):
            return answer
        return answer[0], self.softmax(self.logits(call, self.share(call.key, call.query.shape[1])))


@core("shape.weights")
class WeightsTransposed(EagerCore):
    """The returned weights have keys and queries swapped."""

    def attend(self, call: Call) -> Answer:
        answer = super().attend(call)
        return (answer[0], answer[1].mT) if isinstance(answer, tuple) else answer


@core("shape.weights")
class AnotherOutputWithWeights(EagerCore):
    """Asking for the weights takes another path, which forgets the scale."""

    def scale(self, call: Call) -> float:
        return 1.0 if call.return_weights else super().scale(call)
