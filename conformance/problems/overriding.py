"""Puts the simpler values of a reduced problem into its tensors, and reads them out again."""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from .._golden import golden
from ..declare.declaration import SEQUENCES
from .inputs import Inputs
from .problem import Overrides, Problem

TOKENS = ("query", "key", "value")
MASKS = ("keep", "bias")
SINKS = "sinks"
PROJECTIONS = tuple(field.name for field in dataclasses.fields(golden.ProjectionWeights))


def overridden(drawn: Inputs, problem: Problem) -> Inputs:
    """The drawn inputs with the problem's own values, where they are for its seed and sizes."""
    overrides = problem.overrides
    if overrides is None or overrides.seed != problem.seed:
        return drawn
    tokens = {name: _filled(getattr(drawn, name), overrides, name) for name in TOKENS}
    masks = {name: _filled(getattr(drawn, name), overrides, name) for name in MASKS}
    return drawn.with_tokens(**tokens).replace(
        **masks,
        sinks=_filled(drawn.sinks, overrides, SINKS),
        weights=_weights(drawn.weights, overrides),
    )


def _weights(
    drawn: golden.ProjectionWeights | None, overrides: Overrides
) -> golden.ProjectionWeights | None:
    if drawn is None:
        return None
    roles = {name: _filled(getattr(drawn, name), overrides, name) for name in PROJECTIONS}
    return dataclasses.replace(drawn, **roles)  # type: ignore[arg-type]  # matrices are never None


def _filled(drawn: Tensor | None, overrides: Overrides, name: str) -> Tensor | None:
    values = overrides.value(name)
    if drawn is None or values is None or len(values) != drawn.numel():
        return drawn
    return torch.tensor(values, dtype=torch.float64).to(drawn.dtype).reshape(drawn.shape)


def changeable(inputs: Inputs, *, weights: bool) -> dict[str, Tensor]:
    """The tensors of some inputs that overrides may replace, each object once.

    ``weights`` says whether the problem brings those of a layer. Lengths cannot say more than
    "the first n keys", nor those of sequences, so what they keep stays as it is.
    """
    found = {"key": inputs.key}
    if inputs.mode != "self" and inputs.query is not inputs.key:
        found["query"] = inputs.query
    if inputs.mode == "separate" and inputs.value is not inputs.key:
        found["value"] = inputs.value
    for name in MASKS:
        tensor = getattr(inputs, name)
        if tensor is not None and inputs.mask_form not in ("lengths", SEQUENCES):
            found[name] = tensor
    if inputs.sinks is not None:
        found[SINKS] = inputs.sinks
    if weights and inputs.weights is not None:
        roles = {name: getattr(inputs.weights, name) for name in PROJECTIONS}
        found |= {name: tensor for name, tensor in roles.items() if tensor is not None}
    return found
