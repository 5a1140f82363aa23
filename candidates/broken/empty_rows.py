"""Mistakes with queries that no key is left for. All but one promise zeros for them."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ..eager import Answer, Call, EagerCore, EagerLayer
from ._kit import InexactCore, core, layer
from .masking import FORMS, FiniteFill


@core("mask.empty-row")
class EmptyRowIsNan(InexactCore):
    """A row without any key is NaN: zero divided by zero."""

    def weights(self, logits: Tensor, allowed: Tensor | None) -> Tensor:
        return self.softmax(logits if allowed is None else self.mask(logits, allowed))


@core("mask.empty-row", masks=FORMS)
class EmptyRowIsMeanOfAll(FiniteFill):
    """A row without any key is the mean of all values, because ignored logits become -1e9."""

    fill = -1e9


@core("mask.empty-row")
class EmptyRowIsFirstValue(InexactCore):
    """A row without any key is the first value, as argmax over nothing says."""

    def weights(self, logits: Tensor, allowed: Tensor | None) -> Tensor:
        weights = super().weights(logits, allowed)
        if allowed is None or not weights.shape[-1]:
            return weights
        first = torch.zeros_like(weights)
        first[..., 0] = 1.0
        return torch.where(allowed.any(dim=-1, keepdim=True), weights, first)


@core("mask.empty-row")
class EmptyRowIsInfinite(EagerCore):
    """A row without any key is minus infinity, the value of a maximum over nothing."""

    def attend(self, call: Call) -> Answer:
        self.seen = self.allowed(call)
        return super().attend(call)

    def mix(self, weights: Tensor, value: Tensor) -> Tensor:
        output = super().mix(weights, value)
        if self.seen is None:
            return output
        return output.masked_fill(~self.seen.any(dim=-1, keepdim=True), -math.inf)


@core("mask.empty-row-isolated", geometry={"batch": 1}, masks=["keep"], features=[])
class EmptyRowBlanksTheItem(EagerCore):
    """One row without any key, and all rows are zeros; it takes a single item."""

    def attend(self, call: Call) -> Answer:
        allowed, answer = self.allowed(call), super().attend(call)
        lost = allowed is not None and not bool(allowed.any(dim=-1).all())
        return torch.zeros_like(answer) if lost and isinstance(answer, Tensor) else answer


@core("mask.empty-row", empty_rows="nan")
class ZerosForPromisedNan(EagerCore):
    """A row without any key is zeros though NaN is promised: an empty row goes unnoticed."""


@core("mask.empty-row", empty_rows={"keep": "zeros", "bias": "nan"}, masks=["keep", "bias"])
class ZerosForOneFormsNan(EagerCore):
    """A row without any key is zeros in every form, though a bias is promised to give NaN."""


@core("mask.empty-row-weights")
class EmptyRowIsNanWithWeights(EagerCore):
    """A row without any key is zeros, but NaN on the path that returns the weights."""

    def attend(self, call: Call) -> Answer:
        answer = super().attend(call)
        if not isinstance(answer, tuple):
            return answer
        output, weights = answer
        return output.masked_fill(~weights.any(dim=-1, keepdim=True), math.nan), weights


@core("mask.empty-row-isolated")
class OneEmptyRowEmptiesAll(EagerCore):
    """When any row comes out as NaN, the whole answer is replaced by zeros."""

    def weights(self, logits: Tensor, allowed: Tensor | None) -> Tensor:
        weights = super().weights(logits, allowed)
        empty = allowed is not None and not bool(allowed.any(dim=-1).all())
        return torch.zeros_like(weights) if empty else weights


@core("mask.empty-row-isolated")
class EmptyRowEmptiesItsHead(EagerCore):
    """A row without any key takes the other rows of its head with it."""

    def weights(self, logits: Tensor, allowed: Tensor | None) -> Tensor:
        weights = super().weights(logits, allowed)
        if allowed is None:
            return weights
        whole = allowed.any(dim=-1, keepdim=True).all(dim=-2, keepdim=True)
        return weights.masked_fill(~whole, 0.0)


@core("mask.empty-row-isolated")
class EmptyRowShiftsTheRest(EagerCore):
    """Rows without any key are packed away and the answers of the others move up."""

    def weights(self, logits: Tensor, allowed: Tensor | None) -> Tensor:
        weights = super().weights(logits, allowed)
        if allowed is None:
            return weights
        empty = ~allowed.any(dim=-1).expand(weights.shape[:-1])
        order = empty.to(torch.int8).argsort(dim=-1, stable=True)
        return weights.take_along_dim(order.unsqueeze(-1), dim=-2)


@layer("mask.empty-row")
class EmptyRowLosesOutputBias(EagerLayer):
    """A row without any key is zeros after the output projection: its bias is missing there."""

    def project_output(self, merged: Tensor) -> Tensor:
        empty = (merged == 0).all(dim=-1, keepdim=True)
        return super().project_output(merged).masked_fill(empty, 0.0)


@core("mask.empty-row")
class SingleKeyNeedsNoMask(EagerCore):
    """With one key alone the mask is skipped: a softmax over one key is one anyway."""

    def allowed(self, call: Call) -> Tensor | None:
        return None if call.key_length == 1 else super().allowed(call)


@core("shape.empty-key")
class NoKeysUnwritten(EagerCore):
    """Without any key nothing is computed, and the answer is what the memory held."""

    def mix(self, weights: Tensor, value: Tensor) -> Tensor:
        output = super().mix(weights, value)
        return output if value.shape[2] else torch.full_like(output, 7e-3)
