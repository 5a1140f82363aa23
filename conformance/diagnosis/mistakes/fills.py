"""Hidden logits that are filled instead of hidden, and queries that no key is left for."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Final

import torch
from torch import Tensor

from ..._golden import golden
from ...problems.inputs import Inputs
from ._steps import given_of, relogited, structure_of, unmasked_logits, weighing
from .named import Asked, CoreChange, NamedMistake, mistakes

_FILL: Final = "fill the hidden logits with minus infinity"


def _masked(inputs: Inputs) -> bool:
    return inputs.masked


def hidden_by(asked: Asked, part: str) -> tuple[Tensor, Tensor]:
    """What a part of the restrictions admits, and what the rest does: ``[B, H, Lq, Lk]``."""
    shape = asked.inputs.score_shape
    given, structure = given_of(asked).expand(shape), structure_of(asked).expand(shape)
    if part == "both":
        return given & structure, torch.ones_like(given)
    return (given, structure) if part == "mask" else (structure, given)


def operated(part: str, change: Callable[[Tensor, Tensor], Tensor]) -> CoreChange:
    """Something else is done to logits that one part hides; the other part hides as it should."""

    def core(asked: Asked, attention: golden.Attention) -> golden.Attention:
        allowed, rest = hidden_by(asked, part)
        logits = change(unmasked_logits(attention), allowed)
        return relogited(attention, logits.masked_fill(~rest, float("-inf")))

    return core


def cut_after_softmax(part: str) -> CoreChange:
    """The weights are cut after a softmax that has seen what they hide."""

    def core(asked: Asked, attention: golden.Attention) -> golden.Attention:
        allowed, rest = hidden_by(asked, part)
        logits = unmasked_logits(attention).masked_fill(~rest, float("-inf"))
        return weighing(attention, golden.softmax(logits) * allowed)

    return core


def filled(fill: float) -> Callable[[Tensor, Tensor], Tensor]:
    """The hidden logits are replaced by a number."""
    return lambda logits, allowed: torch.where(allowed, logits, fill)


def added(fill: float) -> Callable[[Tensor, Tensor], Tensor]:
    """A number is added to the hidden logits."""
    return lambda logits, allowed: torch.where(allowed, logits, logits + fill)


def multiplied(logits: Tensor, allowed: Tensor) -> Tensor:
    """The logits are multiplied by the table."""
    return torch.where(allowed, logits, 0.0)


def added_to_kept(logits: Tensor, allowed: Tensor) -> Tensor:
    """The table itself is added to the logits."""
    return logits + allowed


def _of_part(part: str) -> Callable[[Inputs], bool]:
    if part == "mask":
        return lambda inputs: inputs.masked or inputs.causal or inputs.window is not None
    return lambda inputs: inputs.causal


def _fills() -> list[NamedMistake]:
    """Finite fills, over what the mask hides and over what causality hides."""
    found: list[NamedMistake] = []
    for part, hidden in (("mask", "hidden"), ("causal", "future")):
        clause = "mask.single-key" if part == "mask" else "mask.causal-first-key"
        for text, fills in FILLS.items():
            found += mistakes(
                f"{part}-fill-{text}",
                clause,
                f"{hidden} logits are filled with about -{text}: they win over lower ones",
                _FILL,
                *({"core": operated(part, filled(fill))} for fill in fills),
                *({"core": operated("both", filled(fill))} for fill in fills if part == "mask"),
                where=_of_part(part),
            )
        for text, fill in (("100", -1e2), ("1e4", -1e4), ("1e6", -1e6)):
            found += mistakes(
                f"{part}-adds-{text}",
                clause,
                f"about -{text} is added to {hidden} logits: high ones stay visible",
                _FILL,
                {"core": operated(part, added(fill))},
                where=_of_part(part),
            )
    return found


# Common numbers of one size; those of one line are told apart by nobody who reads a report.
FILLS: Final = {
    "1": (-1.0,),
    "10": (-10.0, -20.0, -30.0),
    "100": (-1e2, -99.0, -50.0),
    "1000": (-1e3, -999.0),
    "1e4": (-1e4, -9999.0, -9e3),
    "1e5": (-1e5, -65504.0, -99999.0, -5e4, -65000.0, -6e4, -3e4, -32768.0),
    "1e6": (-1e6, -999999.0),
    "1e7": (-1e7,),
}


FILLED: Final[tuple[NamedMistake, ...]] = (
    *_fills(),
    *mistakes(
        "mask-fill-0",
        "mask.no-leak",
        "hidden logits are replaced by zero, which is an ordinary logit",
        _FILL,
        {"core": operated("mask", filled(0.0))},
        special_of="mask-multiplies-logits",
        where=_masked,
    ),
    *mistakes(
        "mask-multiplies-logits",
        "mask.no-leak",
        "the logits are multiplied by the 0/1 mask: a hidden key keeps a logit of 0",
        _FILL,
        {"core": operated("mask", multiplied)},
        where=_masked,
    ),
    *mistakes(
        "mask-added-to-kept",
        "mask.no-leak",
        "1 is added to the kept logits instead of minus infinity to the hidden ones",
        "a boolean mask is not an additive one: " + _FILL,
        {"core": operated("mask", added_to_kept)},
        {"core": operated("mask", lambda logits, allowed: logits + torch.where(allowed, 0.0, 1.0))},
        where=_masked,
    ),
    *mistakes(
        "mask-multiplies-weights",
        "mask.padding-is-absence",
        "the weights are masked after the softmax: the rows no longer sum to one",
        "mask the logits before the softmax",
        {"core": cut_after_softmax("mask")},
        where=_masked,
    ),
    *mistakes(
        "causal-multiplies-logits",
        "mask.causal",
        "the logits are multiplied by the triangle: a future key keeps a logit of 0",
        _FILL,
        {"core": operated("causal", multiplied)},
        where=lambda inputs: inputs.causal,
    ),
    *mistakes(
        "causal-added-to-kept",
        "mask.causal",
        "the triangle of ones is added to the logits: future keys stay visible",
        _FILL,
        {"core": operated("causal", added_to_kept)},
        {"core": operated("causal", lambda logits, allowed: logits + ~allowed)},
        where=lambda inputs: inputs.causal,
    ),
    *mistakes(
        "causal-multiplies-weights",
        "mask.causal",
        "the weights are cut after the softmax: the rows no longer sum to one",
        "hide the future before the softmax",
        {"core": cut_after_softmax("causal")},
        where=lambda inputs: inputs.causal,
    ),
)


_CLAUSE: Final = "mask.empty-row"
_FIX: Final = "set the weights of such a row to zero after the softmax"


def _hides(inputs: Inputs) -> bool:
    return inputs.masked or inputs.causal or inputs.window is not None


def _answered(answer: Callable[[golden.Attention], Tensor | float]) -> CoreChange:
    """Another answer in rows without keys."""

    def core(_asked: Asked, attention: golden.Attention) -> golden.Attention | None:
        empty = attention.empty.unsqueeze(-1)
        if not bool(empty.any()):
            return None
        told = torch.as_tensor(answer(attention), dtype=torch.float64)
        return dataclasses.replace(attention, output=torch.where(empty, told, attention.output))

    return core


def _spread(fill: float, axes: tuple[int, ...]) -> CoreChange:
    """A row without keys takes others with it: those along some axes ``[B, H, Lq]``."""

    def core(_asked: Asked, attention: golden.Attention) -> golden.Attention | None:
        if not bool(attention.empty.any()):
            return None
        taken = attention.empty.any(dim=axes[0], keepdim=True)
        for axis in axes[1:]:
            taken = taken.any(dim=axis, keepdim=True)
        output = attention.output.masked_fill(taken.unsqueeze(-1), fill)
        return dataclasses.replace(attention, output=output)

    return core


def _output_of_empty_rows(asked: Asked, output: Tensor) -> Tensor | None:
    inputs = asked.inputs
    if not inputs.is_layer:
        return None
    empty = ~inputs.allowed(asked.semantics).any(dim=-1).any(dim=1)
    return output.masked_fill(empty.unsqueeze(-1), 0.0)


ROWS: Final[tuple[NamedMistake, ...]] = (
    *mistakes(
        "empty-rows-mean-of-admitted",
        _CLAUSE,
        "a row without keys returns the mean of the values that causality admits",
        _FIX,
        {"changes": {"empty_rows": "mean-of-valid"}},
        special_of="empty-rows-mean",
    ),
    *mistakes(
        "empty-rows-first-value",
        _CLAUSE,
        "a row without keys returns the first value",
        _FIX,
        {"core": _answered(lambda attention: attention.value[..., :1, :])},
        where=_hides,
    ),
    *mistakes(
        "empty-rows-last-value",
        _CLAUSE,
        "a row without keys returns the last value",
        _FIX,
        {"core": _answered(lambda attention: attention.value[..., -1:, :])},
        where=_hides,
    ),
    *mistakes(
        "empty-rows-infinite",
        _CLAUSE,
        "a row without keys is infinite",
        _FIX,
        {"core": _answered(lambda _attention: -math.inf)},
        {"core": _answered(lambda _attention: math.inf)},
        where=_hides,
    ),
    *mistakes(
        "empty-row-empties-the-rest",
        "mask.empty-row-isolated",
        "a row without keys takes other rows with it",
        "answer each row by itself",
        *(
            {"core": _spread(fill, axes)}
            for fill in (0.0, math.nan)
            for axes in ((0, 1, 2), (1, 2), (2,), (0,), (1,))
        ),
        where=_hides,
    ),
    *mistakes(
        "empty-rows-lose-output-bias",
        _CLAUSE,
        "a row without keys is zero behind the output projection: its bias is missing there",
        "set the weights of such a row to zero, not the answer",
        {"output": _output_of_empty_rows},
        where=_hides,
    ),
)
