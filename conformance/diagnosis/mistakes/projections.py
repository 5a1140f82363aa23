"""Mistakes in the four projections of a layer."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Final

import torch
from torch import Tensor

from ..._golden import golden
from ...problems.inputs import Inputs
from ._steps import require
from .named_mistake import DeclaredCall, InputsChange, NamedMistake, named

Weights = golden.ProjectionWeights
_GOLDEN: Final = "numerics.golden"
_ROLES: Final = {"q": "query", "k": "key", "v": "value", "o": "output"}


def _with(weights: Weights, changed: Mapping[str, Tensor | None]) -> Weights:
    return dataclasses.replace(weights, **changed)  # type: ignore[arg-type]  # names of fields


def _reprojected(change: Callable[[Weights, Inputs], Weights]) -> InputsChange:
    """Other projections of a layer whose weights are known."""

    def inputs_for(call: DeclaredCall) -> Inputs | None:
        weights = call.inputs.weights
        if not call.inputs.is_layer or weights is None:
            return None
        return call.inputs.replace(weights=change(weights, call.inputs))

    return inputs_for


def _from(bias_too: bool, **sources: str) -> InputsChange:  # noqa: FBT001 (both ways are made)
    """Some projections are others': ``k="q"`` projects keys as queries are."""

    def change(weights: Weights, _inputs: Inputs) -> Weights:
        changed: dict[str, Tensor | None] = {}
        for role, source in sources.items():
            one, other = getattr(weights, role), getattr(weights, source)
            require(one is not None and other is not None and one.shape == other.shape)
            changed[role] = other
            if bias_too:
                changed[f"{role}_bias"] = getattr(weights, f"{source}_bias")
        return _with(weights, changed)

    return _reprojected(change)


def _from_both(**sources: str) -> list[dict[str, InputsChange]]:
    return [{"inputs": _from(bias_too, **sources)} for bias_too in (True, False)]


def _transposed(*roles: str) -> InputsChange:
    def change(weights: Weights, _inputs: Inputs) -> Weights:
        changed: dict[str, Tensor | None] = {}
        for role in roles:
            matrix = getattr(weights, role)
            require(matrix is not None and matrix.shape[0] == matrix.shape[1])
            changed[role] = matrix.T
        return _with(weights, changed)

    return _reprojected(change)


def _twice(role: str, *, bias_too: bool) -> InputsChange:
    """A projection of what is projected already, which may add the bias again."""

    def change(weights: Weights, _inputs: Inputs) -> Weights:
        matrix, bias = getattr(weights, role), getattr(weights, f"{role}_bias")
        require(matrix is not None and matrix.shape[0] == matrix.shape[1])
        matrix = matrix.double()
        changed = {role: matrix @ matrix}
        if bias is not None:
            changed[f"{role}_bias"] = matrix @ bias.double() + bias_too * bias
        return _with(weights, changed)

    return _reprojected(change)


def _missing(*roles: str, bias_too: bool = True) -> InputsChange:
    """The identity instead of some projections."""

    def change(weights: Weights, _inputs: Inputs) -> Weights:
        changed: dict[str, Tensor | None] = {}
        for role in roles:
            matrix = getattr(weights, role)
            require(matrix is not None and matrix.shape[0] == matrix.shape[1])
            changed[role] = torch.eye(matrix.shape[0], dtype=matrix.dtype)
            if bias_too:
                changed[f"{role}_bias"] = None
        return _with(weights, changed)

    return _reprojected(change)


def _without_biases(*roles: str) -> InputsChange:
    absent: dict[str, Tensor | None] = dict.fromkeys(f"{role}_bias" for role in roles)
    return _reprojected(lambda weights, _inputs: _with(weights, absent))


def _output_bias_of_each_head(weights: Weights, inputs: Inputs) -> Weights:
    bias = weights.o_bias
    require(bias is not None)
    heads = inputs.geometry.num_heads
    return dataclasses.replace(weights, o_bias=None if bias is None else heads * bias.double())


def _repacked(unpack: Callable[[Tensor, Inputs], tuple[Tensor, ...]]) -> InputsChange:
    """The three input projections, packed one below another and unpacked in another order."""

    def change(weights: Weights, inputs: Inputs) -> Weights:
        require(weights.q.shape == weights.k.shape == weights.v.shape)
        q, k, v = unpack(torch.cat([weights.q, weights.k, weights.v]), inputs)
        biases: list[Tensor | None] = [weights.q_bias, weights.k_bias, weights.v_bias]
        present = [bias for bias in biases if bias is not None]
        if len(present) == len(biases):
            biases = list(unpack(torch.cat(present).unsqueeze(-1), inputs))
            biases = [None if bias is None else bias.squeeze(-1) for bias in biases]
        return dataclasses.replace(
            weights, q=q, k=k, v=v, q_bias=biases[0], k_bias=biases[1], v_bias=biases[2]
        )

    return _reprojected(change)


def _by_head(packed: Tensor, inputs: Inputs) -> tuple[Tensor, ...]:
    """Read as ``[H, 3, D]`` what is packed as ``[3, H, D]``."""
    heads = inputs.geometry.num_heads
    split = packed.reshape(heads, 3, -1, packed.shape[-1])
    return tuple(split[:, part].reshape(-1, packed.shape[-1]) for part in range(3))


def _by_channel(packed: Tensor, _inputs: Inputs) -> tuple[Tensor, ...]:
    """Read as ``[H * D, 3]`` what is packed as ``[3, H * D]``."""
    return tuple(packed[part::3] for part in range(3))


_OWN: Final = "use each input's own projection"


PROJECTIONS: Final[tuple[NamedMistake, ...]] = (
    *(
        mistake
        for role, name in _ROLES.items()
        for entries in (
            named(f"{name}-projection-missing", _GOLDEN)(
                f"the {name} projection is left out",
                "multiply by its matrix and add its bias",
                {"inputs": _missing(role)},
                {"inputs": _missing(role, bias_too=False)},
            ),
            named(f"{name}-projection-transposed", _GOLDEN)(
                f"the matrix of the {name} projection is transposed",
                "matrices are (out, in): tokens @ matrix.T, as nn.Linear does",
                {"inputs": _transposed(role)},
            ),
            named(f"{name}-projection-applied-twice", _GOLDEN)(
                f"the {name} projection is applied to what it has projected already",
                "multiply by its matrix and add its bias once",
                *({"inputs": _twice(role, bias_too=bias_too)} for bias_too in (True, False)),
            ),
        )
        for mistake in entries
    ),
    *named("projections-transposed", _GOLDEN)(
        "the projection matrices of query, key and value are transposed, if not the output's, too",
        "matrices are (out, in): tokens @ matrix.T, as nn.Linear does",
        {"inputs": _transposed("q", "k", "v", "o")},
        {"inputs": _transposed("q", "k", "v")},
    ),
    *named("input-projections-missing", _GOLDEN)(
        "the projections of query, key and value are left out, if not the output's, too",
        "project the inputs before cutting them into heads",
        {"inputs": _missing("q", "k", "v")},
        {"inputs": _missing("q", "k", "v", "o")},
    ),
    *named("input-biases-missing", _GOLDEN)(
        "the biases of the query, key and value projections are left out",
        "add them",
        {"inputs": _without_biases("q", "k", "v")},
    ),
    *named("biases-missing", _GOLDEN)(
        "the biases of all projections are left out",
        "add them",
        {"inputs": _without_biases("q", "k", "v", "o")},
    ),
    *named("output-bias-once-per-head", _GOLDEN)(
        "the output bias is added once for each head",
        "add it once, after the heads are summed",
        {"inputs": _reprojected(_output_bias_of_each_head)},
    ),
    *named("key-projected-as-query", _GOLDEN)(
        "keys go through the projection of the queries",
        "use the key's own projection",
        *_from_both(k="q"),
    ),
    *named("query-projected-as-key", _GOLDEN)(
        "queries go through the projection of the keys",
        "use the query's own projection",
        *_from_both(q="k"),
    ),
    *named("value-projected-as-key", _GOLDEN)(
        "values go through the projection of the keys",
        "use the value's own projection",
        *_from_both(v="k"),
    ),
    *named("value-projected-as-query", _GOLDEN)(
        "values go through the projection of the queries",
        "use the value's own projection",
        *_from_both(v="q"),
    ),
    *named("key-projected-as-value", _GOLDEN)(
        "keys go through the projection of the values",
        "use the key's own projection",
        *_from_both(k="v"),
    ),
    *named("all-projected-as-query", _GOLDEN)(
        "queries, keys and values go through one projection",
        "give each its own projection",
        *_from_both(k="q", v="q"),
    ),
    *named("query-and-key-projections-swapped", _GOLDEN)(
        "the projections of query and key are swapped", _OWN, *_from_both(q="k", k="q")
    ),
    *named("key-and-value-projections-swapped", _GOLDEN)(
        "the projections of key and value are swapped", _OWN, *_from_both(k="v", v="k")
    ),
    *named("query-and-value-projections-swapped", _GOLDEN)(
        "the projections of query and value are swapped", _OWN, *_from_both(q="v", v="q")
    ),
    *named("projections-rotated", _GOLDEN)(
        "the projections of query, key and value are in another order",
        _OWN,
        *_from_both(q="k", k="v", v="q"),
        *_from_both(q="v", k="q", v="k"),
    ),
    *named("fused-projection-cut-by-heads", _GOLDEN)(
        "the fused projection is cut as (heads, 3, head size) though it is (3, heads, head size)",
        "chunk it into query, key and value first, then cut each into heads",
        {"inputs": _repacked(_by_head)},
        {"inputs": _repacked(_by_channel)},
    ),
)
