"""Loops over tiles of keys whose sums are corrected by something else than the right factor."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import product
from typing import Final

import torch
from torch import Tensor

from ..._golden import golden
from ..mistakes import DeclaredCall, NamedMistake
from ..mistakes._steps import BLOCKS, emptied, weighing
from .denominators import sum_ratio
from .influence import tile_sizes
from .reading import Reading, statement
from .tiles import SUMS

# Below are sums that are held up in many ways.
_FAINT: Final = math.sqrt(torch.finfo(torch.float32).tiny)
# Sizes of tiles that are no power of two.
_TILES: Final = (3, 5, 6, 7, 9, 10, 12, 20, 24, 48, 96)
# What may be in the place of exp(old - new), from the largest logit before a tile and after it.
_CORRECTIONS: Final[tuple[tuple[str, Callable[[Tensor, Tensor], Tensor]], ...]] = (
    ("exp(the new maximum)", lambda _old, new: new.exp()),
    ("exp(minus the new maximum)", lambda _old, new: (-new).exp()),
    ("exp(the old maximum)", lambda old, _new: old.exp()),
    ("exp(old maximum + new maximum)", lambda old, new: (old + new).exp()),
    ("exp(old maximum times new maximum)", lambda old, new: (old * new).exp()),
    ("2^(old maximum - new maximum)", lambda old, new: ((old - new) * math.log(2.0)).exp()),
    ("2^(old times new maximum), to base two", lambda old, new: (old * new / math.log(2)).exp()),
)
_RIGHT_FACTOR: Final = "exp(old maximum - new maximum)"
_RESCALE: Final = f"multiply both sums so far by {_RIGHT_FACTOR}, then add those of the tile"


@dataclass(frozen=True)
class _Step:
    """A sum so far is multiplied by a ``factor``; what may be ``added`` is the right one."""

    words: str
    factor: Callable[[Tensor, Tensor], Tensor]
    added: bool = False

    def next(self, total: Tensor, old: Tensor, new: Tensor) -> Tensor:
        """The sum, with what is added in its last column."""
        made = total * self.factor(old, new)
        if self.added:
            made = torch.cat([made[..., :-1], made[..., -1:] + (old - new).exp()], -1)
        return made


_RIGHT: Final = _Step("", lambda old, new: (old - new).exp())
_LOST: Final = _Step(
    f"multiplied by zero, not by {_RIGHT_FACTOR}", lambda o, _: torch.zeros_like(o)
)
_STEPS: Final = (
    *(_Step(f"multiplied by {words}, not by {_RIGHT_FACTOR}", f) for words, f in _CORRECTIONS),
    _LOST,
    _Step(f"added to {_RIGHT_FACTOR}, not multiplied", lambda _, n: torch.ones_like(n), added=True),
    _Step(f"replaced by {_RIGHT_FACTOR}", lambda old, _new: torch.zeros_like(old), added=True),
)


@dataclass(frozen=True)
class _WrongLoop:
    """A loop over tiles of keys that corrects one sum, or both, in a wrong way."""

    size: int
    which: str
    step: _Step

    def sums(self, attention: golden.Attention) -> tuple[Tensor, Tensor]:
        """Weights, what is added in a last column, and the divisor: NaN where it may vanish."""
        mixing, totalling = (self.step if wrong else _RIGHT for wrong in SUMS[self.which])
        logits = attention.logits
        old = torch.full_like(logits[..., :1], -math.inf)
        mixed = torch.zeros_like(torch.nn.functional.pad(logits, (0, 1)))
        total = torch.zeros_like(mixed[..., :1])
        unit = torch.eye(mixed.shape[-1], dtype=mixed.dtype)
        for tile, own in zip(logits.split(self.size, -1), unit[:-1].split(self.size), strict=True):
            largest = torch.maximum(old, tile.amax(-1, keepdim=True))
            new = torch.where(torch.isneginf(largest), 0.0, largest)
            powers = (tile - new).exp()
            mixed = mixing.next(mixed, old, new) + powers @ own
            total = totalling.next(total, old, new) + powers.sum(-1, keepdim=True)
            old = largest
        far = (old.abs() > -math.log(_FAINT)) & ~torch.isneginf(old)
        off = (total.abs() < _FAINT) | (mixed.abs().amax(-1, keepdim=True) > _FAINT**-0.75)
        return mixed, total.masked_fill(far | off, math.nan)

    def core(self, _call: DeclaredCall, attention: golden.Attention) -> golden.Attention:
        """The attention of this loop; rows without a number are open."""
        mixed, total = self.sums(attention)
        made = mixed / total
        unknown = ~torch.isfinite(made).all(-1)
        kept = (attention.empty | unknown)[..., None]
        weights = torch.where(kept, attention.weights, made[..., :-1])
        answered = weighing(emptied(attention, unknown), weights)
        more = made[..., -1:].masked_fill(kept, 0.0)
        # Rows without keys have a declared answer, which a factor that is no number spoils.
        more = torch.where(attention.empty[..., None] & mixed.isnan(), math.nan, more)[..., :1]
        return replace(answered, output=answered.output + more)

    def statement(self) -> NamedMistake:
        """The loop as a mistake."""
        words = f"{self.which} {self.step.words}"
        return statement(
            f"tiles of {self.size}: {words}",
            f"with tiles of {self.size} keys {words}",
            _RESCALE,
            core=self.core,
        )


def loop_statements(reading: Reading) -> Iterator[NamedMistake]:
    """Loops over tiles whose sums are corrected by something else than the right factor."""
    if reading.attention.sinks is not None or reading.nearly_right:
        return
    right = reading.attention.weights
    loops = [_WrongLoop(*how) for how in product(tile_sizes(reading), SUMS, _STEPS)]
    # Where both sums are lost, other statements say so: the keys of earlier tiles have no weight.
    loops = [one for one in loops if one.step is not _LOST or not all(SUMS[one.which])]
    if sum_ratio(reading) is not None:
        sums = [which for which, (weighted, _) in SUMS.items() if not weighted]
        sizes = [size for size in (*BLOCKS[1:], *_TILES) if size < right.shape[-1]]
        loops += [_WrongLoop(*how) for how in product(sizes, sums, _STEPS)]
    for loop in loops:
        made = loop.core(reading.call, reading.attention)
        rows = ~made.empty
        told = rows.any() and not reading.agree(made.weights[rows], right[rows])
        if told and reading.agree(reading.weights[rows], made.weights[rows]):
            yield loop.statement()
