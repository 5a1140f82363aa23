"""Whole models with one mistake each that no attention alone shows, and the clause it breaks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor, nn

from ..exports import Input, Source
from .transformer import Decoder, Encoder, Shape, earlier, padding

_WRITTEN: Final = Shape(written=True)
IDS: Final = Input(name="input_ids", axes=("batch", "tokens"), kind="ids")
MASK: Final = Input(name="attention_mask", axes=("batch", "tokens"), kind="keep")
POSITIONS: Final = Input(name="position_ids", axes=("batch", "tokens"), kind="places")


@dataclass(frozen=True, kw_only=True, eq=False)
class WrongModel:
    """A model that breaks one promise of whole models.

    clause
        The MUST clause of ``model.*`` that it fails, and no other one but those in ``also``.
    site
        The index of the attention that is to blame, where one is.
    """

    source: Source
    clause: str
    also: tuple[str, ...] = ()
    site: int | None = None


class _Model(nn.Module):
    """An encoder, or a decoder, whose parts a mistake replaces."""

    causal = False

    def __init__(self) -> None:
        super().__init__()
        self.own = Decoder(Shape()) if self.causal else Encoder(Shape())
        self.tower = self.own.tower

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """Ids and mask ``[B, L]`` become ``[B, L, E]``."""
        tokens = self.embed(input_ids, self.places(input_ids))
        for layer, mask in zip(
            self.tower.layers, self.masks(input_ids, attention_mask), strict=True
        ):
            tokens = layer(tokens, mask)
        return self.finish(tokens, attention_mask)

    def embed(self, ids: Tensor, places: Tensor) -> Tensor:
        """Tokens of ids at places."""
        result: Tensor = self.tower.tokens(ids) + self.tower.positions(places)
        return result

    def places(self, ids: Tensor) -> Tensor:
        """Where the tokens stand."""
        return torch.arange(ids.shape[1], device=ids.device)

    def masks(self, ids: Tensor, mask: Tensor) -> Sequence[Tensor]:
        """The mask of each layer."""
        keep = padding(mask)
        return [keep & earlier(ids) if self.causal else keep] * len(self.tower.layers)

    def finish(self, tokens: Tensor, mask: Tensor) -> Tensor:
        """The answer made of the last layer's tokens."""
        del mask
        return tokens


class PlacesFromTheEnd(_Model):
    """Positions are counted from the last token, padding included."""

    def places(self, ids: Tensor) -> Tensor:
        return super().places(ids).flip(0)


class DividedByLength(_Model):
    """The answer is divided by the length with its padding."""

    def finish(self, tokens: Tensor, mask: Tensor) -> Tensor:
        return tokens * mask.new_ones(mask.shape).float().sum(1)[:, None, None].reciprocal()


class MeanWithPadding(_Model):
    """A mean over tokens is divided by their number with the padding."""

    def finish(self, tokens: Tensor, mask: Tensor) -> Tensor:
        return tokens + (tokens * mask[..., None]).mean(1, keepdim=True)


class PrefixMask(_Model):
    """The mask is taken for padding on the right: the first keys are kept, as many as it keeps."""

    def masks(self, ids: Tensor, mask: Tensor) -> Sequence[Tensor]:
        kept = mask.sum(1, keepdim=True)
        return super().masks(ids, self.places(ids)[None] < kept)


class FirstTokenKept(_Model):
    """The first token is never hidden."""

    def masks(self, ids: Tensor, mask: Tensor) -> Sequence[Tensor]:
        return super().masks(ids, mask.bool() | (self.places(ids) == 0)[None])


class GapsFilled(_Model):
    """What the mask hides between tokens is seen."""

    def masks(self, ids: Tensor, mask: Tensor) -> Sequence[Tensor]:
        before = mask.cumsum(1) > 0
        after = mask.flip(1).cumsum(1).flip(1) > 0
        return super().masks(ids, before & after)


class FirstUnmasked(_Model):
    """The first layer gets no mask."""

    def masks(self, ids: Tensor, mask: Tensor) -> Sequence[Tensor]:
        first, last = super().masks(ids, mask)
        return [torch.ones_like(first[..., :1]).expand(first.shape), last]


class SecondUnmasked(_Model):
    """The second layer gets no mask."""

    def masks(self, ids: Tensor, mask: Tensor) -> Sequence[Tensor]:
        first, last = super().masks(ids, mask)
        return [first, torch.ones_like(last[..., :1]).expand(last.shape)]


class SecondWithoutPadding(_Model):
    """The second layer of a decoder gets the causal rule alone."""

    causal = True

    def masks(self, ids: Tensor, mask: Tensor) -> Sequence[Tensor]:
        first, _ = super().masks(ids, mask)
        return [first, earlier(ids).expand(ids.shape[0], 1, -1, -1)]


class SecondPeeks(_Model):
    """The second layer of a decoder sees later tokens."""

    causal = True

    def masks(self, ids: Tensor, mask: Tensor) -> Sequence[Tensor]:
        first, _ = super().masks(ids, mask)
        return [first, padding(mask)]


class PeeksByOne(_Model):
    """The first layer of a decoder sees one later token."""

    causal = True

    def masks(self, ids: Tensor, mask: Tensor) -> Sequence[Tensor]:
        _, last = super().masks(ids, mask)
        places = self.places(ids)
        near = (places[None, :] <= places[:, None] + 1)[None, None]
        return [near & padding(mask), last]


class MeanOfAll(_Model):
    """The mean of all tokens is added to each answer of a decoder."""

    causal = True

    def finish(self, tokens: Tensor, mask: Tensor) -> Tensor:
        kept = mask[..., None]
        return tokens + (tokens * kept).sum(1, keepdim=True) / kept.sum(1, keepdim=True)


class NumberOfItem(_Model):
    """The number of an item in its batch is added."""

    def finish(self, tokens: Tensor, mask: Tensor) -> Tensor:
        return tokens + mask.new_ones(mask.shape[0]).cumsum(0)[:, None, None]


class TimesItems(_Model):
    """The answer is multiplied by the number of items."""

    def finish(self, tokens: Tensor, mask: Tensor) -> Tensor:
        return tokens * mask.new_ones(mask.shape[0]).sum()


class PlacesByItem(_Model):
    """The tokens of each item stand one place further than those of the item before."""

    def places(self, ids: Tensor) -> Tensor:
        item = torch.ones_like(ids[:, :1]).cumsum(0)
        result: Tensor = (super().places(ids)[None] + item) % Shape().longest
        return result


class BakedBatch(_Model):
    """The answer is cut into two items, as many as were traced."""

    def finish(self, tokens: Tensor, mask: Tensor) -> Tensor:
        return tokens.reshape(2, -1, 16) + 0 * mask[..., None]


class BakedLength(_Model):
    """The answer is cut into five tokens an item, as many as were traced."""

    def finish(self, tokens: Tensor, mask: Tensor) -> Tensor:
        return tokens.reshape(-1, 5, 16) + 0 * mask[..., None]


class BakedPlaces(_Model):
    """Positions are those of the five tokens that were traced."""

    def places(self, ids: Tensor) -> Tensor:
        del ids
        return torch.tensor([0, 1, 2, 3, 4])


class _Empty(_Model):
    """Answers to an item of nothing but padding are NaN."""

    def __init__(self) -> None:
        super().__init__()
        self.own = Encoder(_WRITTEN)
        self.tower = self.own.tower


class EmptyIsNan(_Empty):
    """What attends to padding alone is NaN: its scores are all minus infinity."""


class ZeroTimesBatch(_Empty):
    """Zero times the sum of all items is added, which is NaN where one of them is."""

    def finish(self, tokens: Tensor, mask: Tensor) -> Tensor:
        del mask
        return tokens + 0 * tokens.sum((0, 1))


class ZeroTimesAnother(_Empty):
    """Zero times the item on the other side of the batch is added."""

    def finish(self, tokens: Tensor, mask: Tensor) -> Tensor:
        del mask
        return tokens + 0 * tokens.flip(0)


class ShareOfFewest(_Model):
    """Answers are multiplied by the fewest tokens of any item over themselves: 0/0 for none."""

    def finish(self, tokens: Tensor, mask: Tensor) -> Tensor:
        fewest = mask.sum(1).min().float()
        return tokens * (fewest / fewest)


class _Placed(_Model):
    """An encoder that is given positions."""

    def forward(self, input_ids: Tensor, attention_mask: Tensor, position_ids: Tensor) -> Tensor:  # type: ignore[override]
        """Ids, mask and positions ``[B, L]`` become ``[B, L, E]``."""
        self.given = position_ids
        return super().forward(input_ids, attention_mask)

    def places(self, ids: Tensor) -> Tensor:
        del ids
        return self.given


class PlacesGiven(_Placed):
    """Right: the positions are those that it is given."""


class PlacesOfOneLayer(_Placed):
    """The places where tokens stand in the call are added to positions that are given."""

    def embed(self, ids: Tensor, places: Tensor) -> Tensor:
        own: Tensor = self.tower.positions(_Model.places(self, ids))
        return super().embed(ids, places) + own


class DistanceFromFirst(_Placed):
    """Positions are taken relative to the first token, which may be padding, by halves."""

    def places(self, ids: Tensor) -> Tensor:
        return (self.given + _Model.places(self, ids)) // 2


class LastPlaceForAll(_Placed):
    """Positions are counted back from the length with its padding."""

    def places(self, ids: Tensor) -> Tensor:
        return (
            self.given.flip(1).clamp(min=0) * 0
            + self.given
            + ids.shape[1]
            - self.given.amax(1, keepdim=True)
            - 1
        )


class _Powers(nn.Module):
    """A norm by the mean of some power of the distances from the mean, where others square them.

    onnxruntime 1.31.1 takes it for a LayerNormalization, whatever the power is, once it optimises.
    """

    def __init__(self, width: int, power: int) -> None:
        super().__init__()
        self.power = power
        self.weight, self.bias = nn.Parameter(torch.ones(width)), nn.Parameter(torch.zeros(width))

    def forward(self, tokens: Tensor) -> Tensor:
        """Tokens of the same shape."""
        apart = tokens - tokens.mean(-1, keepdim=True)
        size = (apart.pow(self.power).mean(-1, keepdim=True) + 1e-5).sqrt()
        return apart / size * self.weight + self.bias


class FourthPowers(_Model):
    """The norm after each attention is by fourth powers."""

    name, power = "first_norm", 4

    def __init__(self) -> None:
        super().__init__()
        for layer in self.tower.layers:
            setattr(layer, self.name, _Powers(Shape().width, self.power))


class FourthPowersLast(FourthPowers):
    """The norm at the end of each layer is by fourth powers."""

    name = "last_norm"


class SixthPowers(FourthPowers):
    """The norm after each attention is by sixth powers."""

    power = 6


_CLAUSES: Final[dict[str, tuple[type[_Model], ...]]] = {
    "model.padding-is-absence": (PlacesFromTheEnd, DividedByLength, MeanWithPadding),
    "model.padding-contents": (PrefixMask, FirstTokenKept, GapsFilled),
    "model.mask-reaches-all": (FirstUnmasked, SecondUnmasked, SecondWithoutPadding),
    "model.causality": (SecondPeeks, PeeksByOne, MeanOfAll),
    "model.batch-independence": (NumberOfItem, TimesItems, PlacesByItem),
    "model.any-size": (BakedBatch, BakedLength, BakedPlaces),
    "model.empty-item-harmless": (ZeroTimesBatch, ZeroTimesAnother, ShareOfFewest),
    "model.left-padding": (PlacesOfOneLayer, DistanceFromFirst, LastPlaceForAll),
    "model.optimisation-levels": (FourthPowers, FourthPowersLast, SixthPowers),
}
# A missing mask shows in every answer that it would change.
_SHOWN_BY: Final = {
    FirstUnmasked: ("model.padding-is-absence", "model.padding-contents"),
    SecondUnmasked: ("model.padding-is-absence", "model.padding-contents"),
    SecondWithoutPadding: ("model.padding-contents",),
}
_BLAMED: Final[dict[type[_Model], int]] = {
    FirstUnmasked: 0,
    SecondUnmasked: 1,
    SecondWithoutPadding: 1,
    SecondPeeks: 1,
    PeeksByOne: 0,
    PrefixMask: 0,
    FirstTokenKept: 0,
    GapsFilled: 0,
}


def _source(made: type[_Model]) -> Source:
    inputs = (IDS, MASK, POSITIONS) if issubclass(made, _Placed) else (IDS, MASK)
    name = "".join(f"-{one.lower()}" if one.isupper() else one for one in made.__name__)
    outputs: dict[str, tuple[str | int, ...]] = {"answer": ("batch", "tokens", "width")}
    return Source(name=name.removeprefix("-"), module=made().eval(), inputs=inputs, outputs=outputs)


def _wrong() -> dict[str, WrongModel]:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        made = [
            WrongModel(
                source=_source(kind),
                clause=clause,
                also=_SHOWN_BY.get(kind, ()),
                site=_BLAMED.get(kind),
            )
            for clause, kinds in _CLAUSES.items()
            for kind in kinds
        ]
    return {one.source.name: one for one in made}


WRONG: Final = _wrong()
EMPTY_IS_NAN: Final = WrongModel(source=_source(EmptyIsNan), clause="model.empty-item-finite")
RIGHT: Final = _source(PlacesGiven)
