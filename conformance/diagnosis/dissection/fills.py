"""What hidden keys have as a logit, and tokens of zeros in their place."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, Final

import torch
from torch import Tensor

from ..._golden import golden
from ...problems.inputs import Inputs
from ...tolerance import model
from ..mistakes import DeclaredCall, NamedMistake, NotExpressible
from ..mistakes._steps import unmasked_logits, weighing
from ..mistakes.fills import added_to_hidden, operated
from ..mistakes.named_mistake import CoreChange, InputsChange
from .reading import Reading, statement

# Errors of a weight of which it must be a multiple for a small logit, or its part of the right one,
# to be read from it.
CLEAR: Final = 20.0


@dataclass(frozen=True)
class Fill:
    """The logit of keys that should be hidden: a number, alone or added to their own logit."""

    number: float
    added: bool

    @property
    def words(self) -> str:
        """What follows "keys with"."""
        return (
            f"{self.number:g} added to their logits"
            if self.added
            else f"a logit of {self.number:g}"
        )

    def logits(self, own: Tensor) -> Tensor:
        """The logits, from those that keys have without a mask."""
        return own + self.number if self.added else torch.full_like(own, self.number)

    def instead(self, own: Tensor, allowed: Tensor) -> Tensor:
        """The logits of keys that are allowed, and of those that are not."""
        return torch.where(allowed, own, self.logits(own))


def _fills(reading: Reading, uncovered: Tensor) -> list[Fill]:
    """What the logits of uncovered keys may be."""
    if not uncovered.any():
        return []
    exact = unmasked_logits(reading.attention)
    logits = reading.weights.clamp_min(0.0).log()
    anchors = reading.legible & reading.attention.allowed
    apart = torch.where(anchors, logits - exact, torch.nan).nanmean(dim=-1, keepdim=True)
    clear = uncovered & (reading.weights > CLEAR * reading.error)
    fills: list[Fill] = []
    for own, added in ((torch.zeros_like(exact), False), (exact, True)):
        read = (logits - apart - own)[clear]
        read = read[torch.isfinite(read)]
        if not read.numel() or float(read.amax() - read.amin()) > model.FILL_READ_TO:
            continue
        middle = float(read.mean())
        whole = float(round(middle))
        number = whole if abs(middle - whole) < model.FILL_READ_TO else middle
        if number or not added:
            fills.append(Fill(number, added))
    return fills


def fill_statements(reading: Reading) -> Iterator[NamedMistake]:
    """What hidden keys have as a logit, where they are seen beside one that is kept."""
    yield from filled_keys(_fills(reading, ~reading.attention.allowed & reading.visible))


def filled_keys(fills: Sequence[Fill]) -> Iterator[NamedMistake]:
    """Hidden keys with one logit, in all rows or in those that have other keys."""
    fix = "give keys that are hidden a logit of minus infinity"
    too = ", in rows without other keys, too"
    for fill, (hidden, part) in product(fills, _HIDING.items()):
        name = f"visibility: {hidden} with {fill.words}"
        words = f"{hidden} have {fill.words}, and so a weight"
        for more, empty_too in (("", False), (too, True)):
            steps = _with_fill(fill, part, empty_too=empty_too)
            yield statement(f"{name}{more}", f"{words}{more}", fix, **steps)


def _with_fill(fill: Fill, part: str, *, empty_too: bool) -> dict[str, Any]:
    if fill.added:
        return {"inputs": added_to_hidden(part, fill.number, empty_too=empty_too)}
    if empty_too and part == "both":
        return {"changes": {"mask_fill": fill.number}}
    core = operated(part, fill.instead)
    return {"core": core if empty_too else _where_others_are(core)}


_HIDING: Final = {"hidden keys": "both", "keys that the mask hides": "mask"}


def _where_others_are(change: CoreChange) -> CoreChange:
    """A change in rows with a key."""

    def core(call: DeclaredCall, attention: golden.Attention) -> golden.Attention | None:
        made, empty = change(call, attention), attention.empty[..., None]
        if made is None:
            return None
        return weighing(attention, torch.where(empty, attention.weights, made.weights))

    return core


def zeroed_token_statements(inputs: Inputs) -> Iterator[NamedMistake]:
    """Tokens that a mask sets to zero in place of hiding them: for every query the same ones."""
    if inputs.mask_form is None or inputs.keep is None or inputs.mode == "self":
        return
    for roles, words in ((("key",), "keys"), (("key", "value"), "keys and values")):
        yield statement(
            f"mask: {words} of zeros",
            f"tokens of {words} that the mask hides are set to zero, and attended",
            "give hidden keys a logit of minus infinity: a token of zeros has a weight",
            inputs=_zeroed(roles),
        )


def _zeroed(roles: tuple[str, ...]) -> InputsChange:
    def inputs_for(call: DeclaredCall) -> Inputs | None:
        inputs = call.inputs
        if inputs.keep is None:
            return None
        keep = inputs.keep
        if keep.shape[1:3] != (1, 1) or (inputs.mode == "memory" and len(roles) == 1):
            raise NotExpressible  # another key for each query is no token of zeros
        kept = keep[:, 0, 0, :, None] if inputs.is_layer else keep[:, 0, 0, None, :, None]
        return inputs.with_tokens(**{r: getattr(inputs, r) * kept for r in roles}).replace(
            keep=None
        )

    return inputs_for
