"""Mistakes in the backward pass of the attention proper: the answers are right."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ..eager import Answer, Call, EagerCore
from ._backward import HandWritten, Steps
from ._kit import core

OPTIONS = ["scale", "gqa", "softcap", "window"]


class _Cut(EagerCore):
    """One input loses its history."""

    name = "query"

    def attend(self, call: Call) -> Answer:
        return super().attend(call.replace(**{self.name: getattr(call, self.name).detach()}))


@core("gradients.golden", "gradients.alone")
class QueryGradientCut(_Cut):
    """The query is detached, so that no gradient reaches it."""

    name = "query"


@core("gradients.golden", "gradients.alone")
class KeyGradientCut(_Cut):
    """The key is detached, so that no gradient reaches it."""

    name = "key"


@core("gradients.golden", "gradients.alone")
class ValueGradientCut(_Cut):
    """The value is detached, so that no gradient reaches it."""

    name = "value"


@core("gradients.golden")
class WeightsDetached(EagerCore):
    """The weights are detached, so that gradients flow to the values alone."""

    def mix(self, weights: Tensor, value: Tensor) -> Tensor:
        return super().mix(weights.detach(), value)


@core("gradients.golden")
class HistoryLostInGroups(EagerCore):
    """Where heads share keys and values the answer is computed without gradients."""

    def attend(self, call: Call) -> Answer:
        with torch.set_grad_enabled(call.query.shape[1] == call.key.shape[1]):
            return super().attend(call)


class _Scaled(HandWritten):
    """All gradients come out multiplied."""

    factor = 0.5

    def backward(self, call: Call, output: Tensor, gradient: Tensor) -> tuple[Tensor | None, ...]:
        return super().backward(call, output, gradient * self.factor)


@core("gradients.golden")
class GradientsHalved(_Scaled):
    """Every gradient is half of what it must be."""

    factor = 0.5


@core("gradients.golden")
class GradientsDoubled(_Scaled):
    """Every gradient is twice what it must be."""

    factor = 2.0


@core("gradients.golden")
class GradientsOfTheMean(HandWritten):
    """Gradients are divided by the number of items, as if the loss were a mean."""

    def backward(self, call: Call, output: Tensor, gradient: Tensor) -> tuple[Tensor | None, ...]:
        return super().backward(call, output, gradient / gradient.shape[0])


@core("gradients.golden")
class SoftmaxJacobianIgnored(HandWritten):
    """The backward pass of the softmax multiplies by the weights and subtracts no row term."""

    def row_term(self, steps: Steps, weights: Tensor, weight_gradient: Tensor) -> Tensor:
        del steps, weight_gradient
        return torch.zeros_like(weights[..., :1])


@core("gradients.golden")
class RowTermOfAnotherRow(HandWritten):
    """The row term of the softmax's backward pass is taken from the row before."""

    def row_term(self, steps: Steps, weights: Tensor, weight_gradient: Tensor) -> Tensor:
        return super().row_term(steps, weights, weight_gradient).roll(1, dims=2)


@core("gradients.golden")
class RowTermOfTheFirstHead(HandWritten):
    """Every head subtracts the row term of the first head."""

    def row_term(self, steps: Steps, weights: Tensor, weight_gradient: Tensor) -> Tensor:
        return super().row_term(steps, weights, weight_gradient)[:, :1]


@core("gradients.masked-zero", "gradients.golden")
class MaskForgottenBackward(HandWritten):
    """The backward pass recomputes the weights without looking at the mask."""

    def recomputed(self, steps: Steps) -> Tensor:
        logits = self.logits(steps.call, steps.key)
        if steps.allowed is None or steps.call.bias is not None:
            return super().recomputed(steps)
        structure = self.allowed(
            steps.call.replace(keep=None, drop=None, keep_int=None, lengths=None)
        )
        kept = self.mask(logits, steps.allowed).logsumexp(dim=-1, keepdim=True)
        weights = torch.exp(logits - torch.where(kept.isneginf(), torch.inf, kept))
        return weights if structure is None else weights.masked_fill(~structure, 0.0)


@core("gradients.causal", "gradients.golden")
class CausalForgottenBackward(HandWritten):
    """The backward pass recomputes the weights without the causal rule."""

    def recomputed(self, steps: Steps) -> Tensor:
        if not steps.call.causal:
            return super().recomputed(steps)
        call = steps.call.replace(causal=False)
        return self.weights(self.logits(call, steps.key), self.allowed(call))


@core("gradients.golden")
class CausalTopLeftBackward(HandWritten):
    """The backward pass aligns the causal diagonal with the first key instead of the last."""

    def recomputed(self, steps: Steps) -> Tensor:
        if not steps.call.causal:
            return super().recomputed(steps)
        other = EagerCore(causal="top-left").allowed(steps.call)
        return self.weights(self.logits(steps.call, steps.key), other)


@core("gradients.options", features=OPTIONS)
class WindowForgottenBackward(HandWritten):
    """The backward pass recomputes the weights without the window."""

    def recomputed(self, steps: Steps) -> Tensor:
        call = steps.call.replace(window=None)
        return self.weights(self.logits(call, steps.key), self.allowed(call))


@core("gradients.options", features=OPTIONS)
class SoftcapDerivativeForgotten(HandWritten):
    """The backward pass takes the capped scores for the scores themselves."""

    def slope(self, steps: Steps) -> float:
        del steps
        return 1.0


@core("gradients.options", features=OPTIONS)
class SoftcapForgottenBackward(HandWritten):
    """The backward pass recomputes the weights without the cap."""

    def recomputed(self, steps: Steps) -> Tensor:
        call = steps.call.replace(softcap=None)
        return self.weights(self.logits(call, steps.key), steps.allowed)


@core("gradients.options")
class BiasForgottenBackward(HandWritten):
    """The backward pass recomputes the weights without the additive mask's finite values."""

    def recomputed(self, steps: Steps) -> Tensor:
        bias = steps.call.bias
        if bias is None:
            return super().recomputed(steps)
        call = steps.call.replace(bias=torch.where(bias.isneginf(), bias, 0.0))
        return self.weights(self.logits(call, steps.key), steps.allowed)


@core("gradients.golden")
class ScaleForgottenBackward(HandWritten):
    """The gradients of query and key are not multiplied by the scale."""

    def backward_scale(self, call: Call) -> float:
        del call
        return 1.0


@core("gradients.golden")
class ScaledTwiceBackward(HandWritten):
    """The gradients of query and key are multiplied by the scale twice."""

    def backward_scale(self, call: Call) -> float:
        return self.scale(call) ** 2


@core("gradients.options")
class DefaultScaleBackward(HandWritten):
    """The backward pass uses the default scale where the call gives another."""

    def backward_scale(self, call: Call) -> float:
        return self.scale(call.replace(scale=None))


@core("gradients.golden")
class KeyScaleForgottenBackward(HandWritten):
    """Only the gradient of the query is multiplied by the scale, that of the key is not."""

    def key_gradient(self, steps: Steps, scores: Tensor) -> Tensor:
        return scores.mT @ steps.call.query


class _Grouped(HandWritten):
    """Heads that share a key/value head are put together in another way."""


@core("gradients.golden")
class GroupsTiledBackward(_Grouped):
    """The gradients of query heads in turns, not of neighbours, are added up for a shared head."""

    def unshare(self, heads: Tensor, kv_heads: int) -> Tensor:
        total: Tensor = heads.unflatten(1, (-1, kv_heads)).sum(dim=1)
        return total


@core("gradients.golden")
class GroupsOfTheFirstHead(_Grouped):
    """A shared key/value head gets the gradient of the first query head that reads it alone."""

    def unshare(self, heads: Tensor, kv_heads: int) -> Tensor:
        total: Tensor = heads.unflatten(1, (kv_heads, -1))[:, :, 0]
        return total


@core("gradients.golden")
class GroupsOfTheLastHead(_Grouped):
    """A shared key/value head gets the gradient of the last query head: each overwrites another."""

    def unshare(self, heads: Tensor, kv_heads: int) -> Tensor:
        total: Tensor = heads.unflatten(1, (kv_heads, -1))[:, :, -1]
        return total


@core("gradients.golden")
class GroupsAveraged(_Grouped):
    """The gradients of query heads that share a key/value head are averaged, not added up."""

    def unshare(self, heads: Tensor, kv_heads: int) -> Tensor:
        total: Tensor = heads.unflatten(1, (kv_heads, -1)).mean(dim=2)
        return total


@core("gradients.golden")
class GradientOfEveryHead(_Grouped):
    """A shared key/value head gets one gradient for each query head: the shape is another."""

    def unshare(self, heads: Tensor, kv_heads: int) -> Tensor:
        del kv_heads
        return heads


@core("gradients.golden")
class KeyAndValueGradientsSwapped(HandWritten):
    """Key and value get each other's gradient where their shapes are the same."""

    def backward(self, call: Call, output: Tensor, gradient: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, bias = super().backward(call, output, gradient)
        same = call.key.shape == call.value.shape
        return (query, value, key, bias) if same else (query, key, value, bias)


@core("gradients.golden")
class ScoresTransposedBackward(HandWritten):
    """Where queries and keys are as many, the gradient of the scores meets the keys transposed."""

    def query_gradient(self, steps: Steps, scores: Tensor) -> Tensor:
        square = scores.shape[-1] == scores.shape[-2]
        return super().query_gradient(steps, scores.mT if square else scores)


@core("gradients.golden")
class NanBehindTheLastTile(HandWritten):
    """Queries behind the last whole tile of 16 get the gradient NaN."""

    def query_gradient(self, steps: Steps, scores: Tensor) -> Tensor:
        found = super().query_gradient(steps, scores)
        whole = found.shape[2] // 16 * 16
        if 0 < whole < found.shape[2]:
            found[:, :, whole:] = math.nan
        return found


@core("gradients.golden")
class TilesOverwrittenBackward(HandWritten):
    """The gradient of keys is that of the last tile of 8 queries: tiles overwrite each other."""

    def key_gradient(self, steps: Steps, scores: Tensor) -> Tensor:
        start = (scores.shape[2] - 1) // 8 * 8
        return scores[:, :, start:].mT @ steps.call.query[:, :, start:] * steps.scale


@core("gradients.any-length")
class LargeTilesOverwrittenBackward(HandWritten):
    """The gradient of queries is that of the last tile of 128 keys: tiles overwrite each other."""

    def query_gradient(self, steps: Steps, scores: Tensor) -> Tensor:
        start = (scores.shape[3] - 1) // 128 * 128
        return scores[..., start:] @ steps.key[:, :, start:] * steps.scale


@core("gradients.any-length")
class KeyChannelsLostBackward(HandWritten):
    """The gradient of keys is zero past the first 128 channels, those of a tile."""

    def key_gradient(self, steps: Steps, scores: Tensor) -> Tensor:
        return _first_channels(super().key_gradient(steps, scores), 128)


@core("gradients.any-length")
class QueryChannelsLostBackward(HandWritten):
    """The gradient of queries is zero past the first 64 channels, those of a tile."""

    def query_gradient(self, steps: Steps, scores: Tensor) -> Tensor:
        return _first_channels(super().query_gradient(steps, scores), 64)


def _first_channels(gradient: Tensor, tile: int) -> Tensor:
    """A gradient ``[B, H, L, D]`` of which a kernel stores one tile of channels."""
    return gradient * (torch.arange(gradient.shape[-1]) < tile)


@core("gradients.golden")
class FirstItemBackward(HandWritten):
    """Only the first item of a batch gets a gradient."""

    def backward(self, call: Call, output: Tensor, gradient: Tensor) -> tuple[Tensor | None, ...]:
        alone = torch.zeros_like(gradient)
        alone[:1] = gradient[:1]
        return super().backward(call, output, alone)


@core("gradients.golden")
class ItemsRolledBackward(HandWritten):
    """The values of another item of the batch are used in the backward pass."""

    def weight_gradient(self, steps: Steps) -> Tensor:
        return steps.gradient @ steps.value.roll(1, dims=0).mT


@core("gradients.golden")
class GradientsInBfloat16(HandWritten):
    """The backward pass is computed in bfloat16."""

    def backward(self, call: Call, output: Tensor, gradient: Tensor) -> tuple[Tensor | None, ...]:
        found = super().backward(call, output, gradient)
        return tuple(None if each is None else each.bfloat16() for each in found)
