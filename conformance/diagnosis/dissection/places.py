"""A bias by place: a term of the logits by the distance from query to key."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final

import torch
from torch import Tensor

from ..._golden import golden
from ...problems.inputs import Inputs
from ...tolerance import model
from ..mistakes import NamedMistake, NotExpressible
from ..mistakes._steps import places_ahead
from .logits import FEWEST_LEFT
from .reading import Reading, digits_of, statement


def alignments(reading: Reading) -> list[bool]:
    """Return whether to count queries from the last key; the declared alignment comes first."""
    sizes = reading.sizes
    declared = bool(reading.call.semantics.causal_alignment == "bottom-right")
    return [declared] if sizes.query_length == sizes.key_length else [declared, not declared]


_MOST_SAID: Final = 7  # places of which the number is said, the query's own in the middle


@dataclass(frozen=True, eq=False)
class PlaceTable:
    """Numbers by the distance from query to key, counted from the first or the last of both.

    ``values`` are ``[H, places]``, or ``[1, places]`` if all heads agree, from the place ``first``
    on.
    """

    values: Tensor
    first: int
    bottom_right: bool

    def added(self, inputs: Inputs, *, beyond: bool) -> Tensor:
        """Return the term of the logits ``[B, H, Lq, Lk]``.

        With ``beyond``, places past the table get its end values. Raises NotExpressible for other
        heads, and for places past the table without ``beyond``.
        """
        sizes = inputs.geometry
        heads, count = sizes.num_heads, self.values.shape[-1]
        ahead = places_ahead(sizes, bottom_right=self.bottom_right) - self.first
        outside = not beyond and bool(((ahead < 0) | (ahead >= count)).any())
        if 1 < len(self.values) < heads or outside:
            raise NotExpressible
        return self.values[:heads, ahead.clamp(0, count - 1)].expand(inputs.score_shape)

    def extended(self, far: PlaceTable | None) -> PlaceTable:
        """Return the table extended by the outer places of another table."""
        if far is None or len(far.values) not in (1, len(self.values)):
            return self
        before = max(self.first - far.first, 0)
        more = far.values.expand(len(self.values), -1)
        behind = more[:, self.first + self.values.shape[-1] - far.first :]
        values = torch.cat([more[:, :before], self.values, behind], dim=-1)
        return PlaceTable(values, self.first - before, self.bottom_right)

    def statement(self, *, beyond: bool = True) -> NamedMistake:
        """Return the mistake that adds the table to the logits."""
        head = int(self.values.abs().amax(-1).argmax())
        clear = self.values[head] * (self.values[head].abs() > model.LOGIT_READ_TO)
        read = dict(enumerate(clear.tolist(), start=self.first))
        said = sorted(sorted(read, key=abs)[:_MOST_SAID])
        listed = ", ".join(f"{digits_of(read[place])} at {place}" for place in said)
        of_head = f" in head {head}, in others other numbers" if len(self.values) > 1 else ""
        corner = "last" if self.bottom_right else "first"
        words = f"a bias by how far the key lies ahead of the query, {listed}{of_head} (places "
        words += f"from {min(read)} to {max(read)}, counted from the {corner} query and key)"
        fix = "add nothing to the scaled scores, or take it as the additive mask"
        return added_to_logits(words, fix, partial(self.added, beyond=beyond))


def added_to_logits(words: str, fix: str, added: Callable[[Inputs], Tensor]) -> NamedMistake:
    """Return logits with a further term ``[B, H, Lq, Lk]``; ``words`` are a noun phrase."""
    edit = golden.Edit("biased", change=lambda biased, inputs: biased + added(inputs))
    text = f"the logits have one more term, {words}"
    return statement(f"logits: {words}", text, fix, edits=(edit,))


def place_table(reading: Reading, *, bottom_right: bool) -> PlaceTable | None:
    """Return the term of the logits by place, if it explains all of them."""
    shown = reading.legible & reading.attention.allowed
    if reading.attention.alibi is not None or not bool((shown & reading.wrong).any()):
        return None  # of slopes of a declared bias more is said elsewhere
    more = torch.where(shown, reading.logits - reading.run["biased"], 0.0)
    both = shown[..., 1:] & shown[..., :-1]
    off = torch.where(shown, model.LOGIT_READ_TO + reading.logit_error, 0.0)
    room = 3.0 * (off[..., 1:] + off[..., :-1])[both]
    ahead = places_ahead(reading.sizes, bottom_right=bottom_right)
    first, count = int(ahead.amin()), int(ahead.amax() - ahead.amin())
    for heads in (1, both.shape[1]):  # a row tells how much more a key has than the one before
        head = torch.arange(both.shape[1]) % heads
        places = (head[:, None, None] * count + ahead[:, :-1] - first).expand(both.shape)[both]
        weight, steps = room.square().reciprocal(), more.diff(dim=-1)[both]
        none = torch.zeros(heads * count, dtype=torch.float64)
        sums, weights = (none.index_add(0, places, each) for each in (steps * weight, weight))
        read = torch.where(weights > 0.0, sums / weights, 0.0)
        known = (weights > 0.0).unflatten(0, (heads, count))
        fits = len(steps) >= int(known.sum()) + FEWEST_LEFT
        if fits and bool(((steps - read[places]).abs() <= room).all()) and bool(known.any()):
            return _sum_steps(read.unflatten(0, (heads, count)), known, first, bottom_right)
    return None


def _sum_steps(steps: Tensor, known: Tensor, first: int, bottom_right: bool) -> PlaceTable | None:  # noqa: FBT001
    every = known.all(dim=0).nonzero().flatten().tolist()
    if not every or every[-1] - every[0] + 1 != len(every):
        return None
    values = torch.nn.functional.pad(steps[:, every].cumsum(-1), (1, 0))
    own = min(max(-first - every[0], 0), len(every))
    values = values - values[:, own : own + 1]
    some = bool((values.abs() > model.LOGIT_READ_TO).any())
    return PlaceTable(values, first + every[0], bottom_right) if some else None
