"""What a call may give, and what becomes of it."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ...problems.inputs import Inputs
from .named import Asked, Question


def has_causal(inputs: Inputs) -> bool:
    return inputs.causal


def has_bias(inputs: Inputs) -> bool:
    return inputs.mask_form == "bias"


def has_window(inputs: Inputs) -> bool:
    return inputs.window is not None


def has_cache(inputs: Inputs) -> bool:
    return inputs.past > 0


def has_softcap(inputs: Inputs) -> bool:
    return inputs.softcap is not None


def changed(where: Callable[[Inputs], bool], **changes: object) -> Question:
    """Some fields of the inputs are others, on inputs of some kind."""
    return lambda asked: asked.inputs.replace(**changes) if where(asked.inputs) else None


def keys_ahead(asked: Asked, *, bottom_right: bool | None = None) -> Tensor:
    """How far each key lies ahead of each query: ``[Lq, Lk]``."""
    sizes = asked.inputs.geometry
    aligned = asked.semantics.causal_alignment == "bottom-right"
    shift = sizes.key_length - sizes.query_length
    shift = shift if (aligned if bottom_right is None else bottom_right) else 0
    return torch.arange(sizes.key_length) - torch.arange(sizes.query_length)[:, None] - shift
