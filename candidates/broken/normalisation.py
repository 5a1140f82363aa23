"""Mistakes in normalised queries and keys, and in functions of the scores."""

from __future__ import annotations

from typing import Any, Final

import torch
from torch import Tensor

from conformance import Semantics

from ._kit import core
from ._prepared import Prepared

RMS: Final[dict[str, Any]] = {
    "masks": ["keep"],
    "features": ["scale", "gqa"],
    "semantics": Semantics(qk_norm="rms", qk_norm_epsilon=1e-3),
}
LAYER: Final[dict[str, Any]] = {**RMS, "semantics": Semantics(qk_norm="layer")}
TURNED: Final[dict[str, Any]] = {
    **RMS,
    "semantics": Semantics(qk_norm="layer", rotary="halves"),
}


class Normal(Prepared):
    """By the root of the mean square."""

    norm = "rms"
    epsilon = 1e-3


class Centred(Prepared):
    """Without the mean, by the root of the variance."""

    norm = "layer"


@core("qk-norm.golden", **RMS)
class NormOfAllHeads(Normal):
    """The mean square is that of all heads together."""

    def normalise(self, heads: Tensor) -> Tensor:
        squares = heads.square().mean((1, 3), keepdim=True)
        return heads * (squares + self.epsilon).rsqrt()


@core("qk-norm.golden", **RMS)
class EpsilonForgotten(Normal):
    """Nothing is added below the root."""

    epsilon = 1e-12


@core("qk-norm.golden", **RMS)
class EpsilonBehindTheRoot(Normal):
    """Epsilon is added to the root, not below it."""

    def normalise(self, heads: Tensor) -> Tensor:
        return heads / (heads.square().mean(-1, keepdim=True).sqrt() + self.epsilon)


@core("qk-norm.golden", **RMS)
class OnlyQueriesNormalised(Normal):
    """Keys are left as they are."""

    def prepare(
        self, query: Tensor, key: Tensor, here: Tensor, there: Tensor
    ) -> tuple[Tensor, Tensor]:
        del here, there
        return self.normalise(query), key


@core("qk-norm.golden", **RMS)
class NormWithoutTheMean(Normal):
    """Heads are divided by their norm, not by the root of their mean square."""

    def normalise(self, heads: Tensor) -> Tensor:
        return heads * (heads.square().sum(-1, keepdim=True) + self.epsilon).rsqrt()


@core("qk-norm.golden", **RMS)
class NormOverTokens(Normal):
    """The mean square runs over the tokens."""

    def normalise(self, heads: Tensor) -> Tensor:
        return heads * (heads.square().mean(2, keepdim=True) + self.epsilon).rsqrt()


@core("qk-norm.golden", **RMS)
class NothingNormalised(Normal):
    """Queries and keys are left as they are."""

    norm = ""


@core("qk-norm.golden", **LAYER)
class MeanNotTakenOff(Centred):
    """The mean stays: what is declared as a layer norm is that of a root mean square."""

    norm = "rms"


@core("qk-norm.golden", **LAYER)
class VarianceOverOneLess(Centred):
    """The variance is divided by one channel less, as ``Tensor.std`` does."""

    def normalise(self, heads: Tensor) -> Tensor:
        spread = heads.var(-1, keepdim=True, correction=1 if heads.shape[-1] > 1 else 0)
        return (heads - heads.mean(-1, keepdim=True)) * (spread + self.epsilon).rsqrt()


@core("qk-norm.golden", "position.rotary", **TURNED)
class NormalisedAfterTurning(Centred):
    """Heads are turned first, then normalised: the mean that is taken off is another."""

    pairing = "halves"

    def prepare(
        self, query: Tensor, key: Tensor, here: Tensor, there: Tensor
    ) -> tuple[Tensor, Tensor]:
        return self.normalise(self.turn(query, here)), self.normalise(self.turn(key, there))


@core(
    "qk-norm.golden",
    "position.rotary",
    **{**TURNED, "semantics": TURNED["semantics"].replace(norm_order="after-rotary")},
)
class NormalisedBeforeTurning(Centred):
    """Heads are normalised first, then turned, where the reverse is declared."""

    pairing = "halves"


def leaning(score: Any, batch: Any, head: Any, query: Any, key: Any) -> Any:
    """A function of every index, each of which shows behind a softmax over the keys."""
    return (1.0 + 0.25 * ((query + 2 * key + head) % 3)) * score - 0.125 * batch * key


MODIFIED: Final[dict[str, Any]] = {
    "masks": ["keep"],
    "features": ["scale", "gqa"],
    "semantics": Semantics(score_mod=leaning),
}


class Leaning(Prepared):
    """The function on the scaled scores."""

    def modify(self, scores: Tensor) -> Tensor:
        return self.called(scores, *self.indices(scores)).to(scores.dtype)

    def indices(self, scores: Tensor) -> tuple[Tensor, ...]:
        """Item, head, query and key."""
        batch, head, query, key = (torch.arange(size).double() for size in scores.shape)
        return batch[:, None, None, None], head[:, None, None], query[:, None], key

    def called(self, scores: Tensor, *indices: Tensor) -> Tensor:
        """The function itself."""
        modified: Tensor = leaning(scores, *indices)
        return modified


@core("score-mod.golden", **MODIFIED)
class ModifiedBeforeTheScale(Leaning):
    """The function gets the dot products, and what it returns is scaled."""

    def logits(
        self, query: Tensor, key: Tensor, factor: float, here: Tensor, there: Tensor
    ) -> Tensor:
        del here, there
        return self.modify(query @ key.mT) * factor


@core("score-mod.golden", **MODIFIED)
class QueryAndKeyExchanged(Leaning):
    """The function gets the indices of query and key in the other order."""

    def called(self, scores: Tensor, *indices: Tensor) -> Tensor:
        batch, head, query, key = indices
        return super().called(scores, batch, head, key, query)


@core("score-mod.golden", **MODIFIED)
class ItemAndHeadExchanged(Leaning):
    """The function gets the head for the item and the item for the head."""

    def called(self, scores: Tensor, *indices: Tensor) -> Tensor:
        batch, head, query, key = indices
        return super().called(scores, head, batch, query, key)


@core("score-mod.golden", **MODIFIED)
class QueriesCountedFromTheEnd(Leaning):
    """The index of a query is its place among the keys."""

    def called(self, scores: Tensor, *indices: Tensor) -> Tensor:
        batch, head, query, key = indices
        more = scores.shape[3] - scores.shape[2]
        return super().called(scores, batch, head, query + more, key)


@core("score-mod.golden", **MODIFIED)
class HeadsOfGroups(Leaning):
    """The function gets the key/value head, which a group shares, for the head."""

    def __call__(self, query: Tensor, key: Tensor, value: Tensor, **given: Any) -> Tensor:
        self.group = query.shape[1] // key.shape[1]
        return super().__call__(query, key, value, **given)

    def called(self, scores: Tensor, *indices: Tensor) -> Tensor:
        batch, head, query, key = indices
        return super().called(scores, batch, head // self.group, query, key)


@core("score-mod.golden", **MODIFIED)
class NothingModified(Leaning):
    """The function is left out."""

    def called(self, scores: Tensor, *indices: Tensor) -> Tensor:
        del indices
        return scores


@core("score-mod.golden", **MODIFIED)
class WeightsModified(Leaning):
    """The function changes the weights behind the softmax."""

    def modify(self, scores: Tensor) -> Tensor:
        return scores

    def weigh(self, logits: Tensor, table: Tensor, sinks: Tensor | None, value: Tensor) -> Tensor:
        del sinks
        weights = logits.masked_fill(~table, -torch.inf).softmax(-1).masked_fill(~table, 0.0)
        modified = self.called(weights, *self.indices(weights)).to(weights.dtype)
        return modified.masked_fill(~table, 0.0) @ value
