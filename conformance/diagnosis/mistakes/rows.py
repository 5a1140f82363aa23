"""Mistakes with queries that no key is left for."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Final

import torch
from torch import Tensor

from ..._golden import golden
from ...problems.inputs import Inputs
from .named import Asked, CoreChange, NamedMistake, mistakes

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
