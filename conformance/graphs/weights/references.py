"""A graph's projections beside those that are said to be right: a state dict's, or a module's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

from ..._golden import golden
from .matching import match_rows, match_vector
from .probing import ROUNDINGS

Array = np.ndarray[Any, Any]
NAMES: Final = {"q": "query", "k": "key", "v": "value", "o": "output"}


@dataclass(frozen=True, kw_only=True, eq=False)
class Reference:
    """Raw projections and the factors that the graph's stored ones have over them.

    where
        The tensor of the state dict that each projection was found in, by ``q``, ``k`` …
    factors
        graph = factor · raw.
    missing
        What no tensor of the state dict equals.
    """

    weights: golden.ProjectionWeights
    where: Mapping[str, str]
    factors: Mapping[str, float]
    missing: tuple[str, ...]


def found_in(weights: golden.ProjectionWeights, tensors: Mapping[str, Tensor]) -> Reference:
    """The graph's projections among the tensors of a state dict, found by value."""
    stored = {name: array_of(tensor) for name, tensor in tensors.items()}
    raw: dict[str, Tensor | None] = {}
    where, factors, missing = {}, {}, []
    for name in NAMES:
        matrix, bias = getattr(weights, name), getattr(weights, f"{name}_bias")
        factors[name] = 1.0
        raw[name], raw[f"{name}_bias"] = matrix, bias
        if matrix is None:
            continue
        rows = array_of(matrix).astype(np.float64)
        match = match_rows(rows, _noise(matrix), stored)
        if match is None:
            missing.append(NAMES[name])
            continue
        raw[name] = torch.from_numpy(np.ascontiguousarray(match.rows))
        where[name], factors[name] = match.source, match.factor
        if bias is not None:
            vector = array_of(bias).astype(np.float64) / match.factor
            found = match_vector(vector, _noise(bias) / match.factor, stored)
            if found is None:
                missing.append(f"{NAMES[name]} bias")
                continue
            raw[f"{name}_bias"] = torch.from_numpy(np.ascontiguousarray(found.rows))
    return Reference(
        weights=golden.ProjectionWeights(**raw),  # type: ignore[arg-type]
        where=where,
        factors=factors,
        missing=tuple(missing),
    )


def array_of(tensor: Tensor) -> Array:
    """A tensor as an array; bfloat16, which numpy has not, in float32."""
    tensor = tensor.detach().cpu()
    found: Array = (tensor.float() if tensor.dtype is torch.bfloat16 else tensor).numpy()
    return found


def _noise(tensor: Tensor) -> Array:
    """How far rounding may have moved a stored tensor from the one it was made of."""
    values = np.abs(array_of(tensor).astype(np.float64))
    return ROUNDINGS * torch.finfo(tensor.dtype).eps * values
