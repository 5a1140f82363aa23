"""Mistakes in the sinusoidal position encoding."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ._kit import Sinusoids, positions


@positions("position.formula", "position.relative-shift")
class SineAndCosineSwapped(Sinusoids):
    """Cosines stand in the even channels and sines in the odd ones."""

    def channels(self, sines: Tensor, cosines: Tensor) -> Tensor:
        return super().channels(cosines, sines)


@positions("position.formula", "position.relative-shift")
class SinesThenCosines(Sinusoids):
    """All sines stand in the first half of the channels, all cosines in the second."""

    def channels(self, sines: Tensor, cosines: Tensor) -> Tensor:
        return torch.cat([sines, cosines], dim=-1)


@positions("position.formula", "position.relative-shift")
class BaseThousand(Sinusoids):
    """The frequencies use a base of 1,000 instead of 10,000."""

    base = 1000.0


@positions("position.formula")
class PositionsFromOne(Sinusoids):
    """The first token stands at position one instead of zero."""

    def positions(self, length: int) -> Tensor:
        return super().positions(length) + 1


@positions("position.formula")
class PositionsBackwards(Sinusoids):
    """The last token stands at position zero: the table is read backwards."""

    def positions(self, length: int) -> Tensor:
        return super().positions(length).flip(0)


@positions("position.formula", "position.relative-shift")
class ExponentNotDoubled(Sinusoids):
    """The exponent is j/d where it should be 2j/d: the frequencies fall half as fast."""

    def frequencies(self, width: int) -> Tensor:
        return super().frequencies(width).sqrt()


@positions("position.formula", "position.relative-shift")
class FrequencyPerChannel(Sinusoids):
    """The exponent is i/d for channel i: the sine and cosine of a pair turn at different speeds."""

    def table(self, length: int, width: int) -> Tensor:
        frequencies = self.base ** -(torch.arange(width, dtype=torch.float64) / max(width, 1))
        angles = self.positions(length)[:, None] * frequencies
        return torch.where(torch.arange(width) % 2 == 0, angles.sin(), angles.cos())


@positions("position.relative-shift", "position.formula")
class PositionsOverLength(Sinusoids):
    """Positions are divided by the length: a step of one token turns by another angle each time."""

    def positions(self, length: int) -> Tensor:
        return super().positions(length) / max(length, 1)


@positions("position.relative-shift", "position.formula")
class PositionsWrap(Sinusoids):
    """Positions start again at zero after eight tokens."""

    def positions(self, length: int) -> Tensor:
        return super().positions(length) % 8


@positions("position.formula", "position.relative-shift")
class AnglesInDegrees(Sinusoids):
    """Angles are taken for degrees."""

    def frequencies(self, width: int) -> Tensor:
        return super().frequencies(width) * math.pi / 180


@positions("position.formula", "position.relative-shift")
class TableInFloat16(Sinusoids):
    """The table is kept in float16 whatever the dtype of the input."""

    def table(self, length: int, width: int) -> Tensor:
        return super().table(length, width).half()


@positions("position.formula")
class NothingAdded(Sinusoids):
    """The input is returned as it came: no position is added."""

    def __call__(self, x: Tensor) -> Tensor:
        return x.clone()


@positions("position.formula")
class InputScaled(Sinusoids):
    """The input is multiplied by the root of its width first, which is the embedding's business."""

    def __call__(self, x: Tensor) -> Tensor:
        return super().__call__(x * math.sqrt(x.shape[-1]))


@positions("position.formula", "position.relative-shift")
class PositionsOfBatch(Sinusoids):
    """The position is that of the item in the batch, not that of the token."""

    def __call__(self, x: Tensor) -> Tensor:
        return super().__call__(x.transpose(0, 1)).transpose(0, 1)


@positions("position.formula", "position.relative-shift")
class OnePositionForAll(Sinusoids):
    """All tokens get the encoding of the last position."""

    def positions(self, length: int) -> Tensor:
        return torch.full((length,), max(length - 1.0, 0.0), dtype=torch.float64)


@positions("position.formula", "position.relative-shift")
class PositionsCountedInBfloat16(Sinusoids):
    """Positions are counted in bfloat16, which cannot tell 257 from 256."""

    def positions(self, length: int) -> Tensor:
        return torch.arange(length).to(torch.bfloat16).to(torch.float64)


@positions("position.formula", "position.relative-shift")
class TableOf256Repeated(Sinusoids):
    """The table has 256 rows and starts again behind them."""

    def positions(self, length: int) -> Tensor:
        return super().positions(length) % 256


@positions("position.formula")
class WidthMinusTwo(Sinusoids):
    """The exponent is 2j/(d - 2), so that the last frequency is the base itself."""

    def frequencies(self, width: int) -> Tensor:
        channels = torch.arange(0, width, 2, dtype=torch.float64)
        return self.base ** -(channels / max(width - 2, 1))


@positions("position.formula")
class CosinesNegated(Sinusoids):
    """The cosines are subtracted where they should be added."""

    def channels(self, sines: Tensor, cosines: Tensor) -> Tensor:
        return super().channels(sines, -cosines)


@positions("position.formula")
class FirstTokenWithout(Sinusoids):
    """The first token gets no position, as if it were a separator."""

    def table(self, length: int, width: int) -> Tensor:
        table = super().table(length, width)
        table[:1] = 0.0
        return table


@positions("position.formula")
class ItemsShifted(Sinusoids):
    """Each item of the batch starts where the one before ended."""

    def __call__(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        return x + self.table(batch * length, width).reshape(x.shape).to(x)


@positions("state.inputs-unchanged")
class TableAddedInPlace(Sinusoids):
    """The encoding is added to the caller's own tensor."""

    def __call__(self, x: Tensor) -> Tensor:
        return x.copy_(super().__call__(x))
