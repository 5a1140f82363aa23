"""Mistakes in the shape and dtype of the answer, and in what is accepted as an input."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional

from ..eager import Answer, Call, EagerCore, EagerLayer
from ._kit import core, layer

BOTH = ["float32", "float64"]


@core("shape.dtype")
class AnswersInFloat64(EagerCore):
    """The answer is computed in float64 and not converted back."""

    def mix(self, weights: Tensor, value: Tensor) -> Tensor:
        return super().mix(weights.double(), value.double())


@core("shape.dtype", "numerics.golden", dtypes=BOTH)
class AnswersInFloat32(EagerCore):
    """The answer is float32 whatever the dtype of the inputs."""

    def mix(self, weights: Tensor, value: Tensor) -> Tensor:
        return super().mix(weights, value).float()


@core("shape.output")
class HeadsBehindTokens(EagerCore):
    """The answer is laid out as tokens, heads, channels instead of heads, tokens, channels."""

    def mix(self, weights: Tensor, value: Tensor) -> Tensor:
        return super().mix(weights, value).transpose(1, 2)


@core("shape.output")
class HeadsMerged(EagerCore):
    """The heads of the answer are merged already: three axes instead of four."""

    def mix(self, weights: Tensor, value: Tensor) -> Tensor:
        return super().mix(weights, value).transpose(1, 2).flatten(2)


@core("shape.output")
class SizeOneAxesSqueezed(EagerCore):
    """Axes of size one are squeezed out of the answer."""

    def mix(self, weights: Tensor, value: Tensor) -> Tensor:
        return super().mix(weights, value).squeeze()


@core("shape.output")
class OneRowForAllQueries(EagerCore):
    """The answer is averaged over the queries and has one row, which broadcasts to all of them."""

    def mix(self, weights: Tensor, value: Tensor) -> Tensor:
        return super().mix(weights, value).mean(dim=2, keepdim=True)


@core("shape.output")
class QuerySizedAnswer(EagerCore):
    """The answer has the head size of the queries, whatever that of the values is."""

    def mix(self, weights: Tensor, value: Tensor) -> Tensor:
        output = super().mix(weights, value)
        return functional.pad(output, (0, self.head_size - output.shape[-1]))

    def attend(self, call: Call) -> Answer:
        self.head_size = call.query.shape[-1]
        return super().attend(call)


@core("shape.output")
class PaddedToTile(EagerCore):
    """The queries are padded to whole tiles of eight and the answer is not cut back."""

    def mix(self, weights: Tensor, value: Tensor) -> Tensor:
        return super().mix(functional.pad(weights, (0, 0, 0, -weights.shape[2] % 8)), value)


class Unchecked(EagerCore):
    """A core that does not check its shapes."""

    def check(self, call: Call) -> None:
        """Let everything pass."""


@core("shape.rejects-mismatch")
class ShortValuesAccepted(Unchecked):
    """Fewer values than keys are accepted: the keys without a value are dropped silently."""

    def mix(self, weights: Tensor, value: Tensor) -> Tensor:
        return super().mix(weights[..., : value.shape[2]], value[:, :, : weights.shape[-1]])


@core("shape.rejects-mismatch")
class HeadSizesCutToFit(Unchecked):
    """Queries and keys of different head sizes are accepted: the larger one is cut."""

    def scores(self, call: Call, key: Tensor) -> Tensor:
        size = min(call.query.shape[-1], key.shape[-1])
        return super().scores(call.replace(query=call.query[..., :size]), key[..., :size])


@core("shape.rejects-mismatch", masks=["keep"])
class MaskCutToFit(Unchecked):
    """A mask for another number of keys is accepted: it is cut, or filled up with True."""

    def attend(self, call: Call) -> Answer:
        if call.keep is not None:
            missing = call.key_length - call.keep.shape[-1]
            call = call.replace(keep=functional.pad(call.keep, (0, missing), value=True))
        return super().attend(call)


@layer("shape.rejects-width")
class WidthCutToFit(EagerLayer):
    """Channels that the projection has no column for are cut off without a word."""

    def project(self, tokens: Tensor, name: str) -> Tensor:
        return super().project(tokens[..., : getattr(self.weights, name).shape[1]], name)
