"""Mistakes in the four projections of a layer."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final

import torch
from torch import Tensor

from ..._golden import golden
from ...oracle.oracle import known_weights
from ...problems.inputs import Inputs
from ._steps import require
from .named_mistake import Edits, NamedMistake, changed, named

Edit = golden.Edit
_ROLES: Final = {"q": "query", "k": "key", "v": "value", "o": "output"}


def _knows_weights(inputs: Inputs) -> bool:
    return inputs.is_layer and inputs.weights is not None


# Mistakes of layers whose weights are known.
_of_layers: Final = partial(named, primary="numerics.golden", where=_knows_weights)


def weight(inputs: Inputs, point: golden.Semantics, *, name: str) -> Tensor | None:
    """Return a matrix or bias of the call in float64; None if absent or unused at the point."""
    weight: Tensor | None = getattr(known_weights(inputs).taking_part(point), name)
    return weight


def other_weight(
    own: Any, inputs: Inputs, point: golden.Semantics, *, source: str, transposed: bool = False
) -> Tensor:
    """Return the matrix or bias of another projection."""
    other = weight(inputs, point, name=source)
    other = other.T if transposed and other is not None else other
    require(other is not None and other.shape == own.shape)
    return other  # type: ignore[return-value]  # it is required


def _exchange(**sources: str) -> list[Edits]:
    matrices = [
        Edit(role, change=partial(other_weight, source=source)) for role, source in sources.items()
    ]
    biases = [
        Edit(f"{role}_bias", partial(weight, name=f"{source}_bias"))
        for role, source in sources.items()
    ]
    return [(*matrices, *biases), tuple(matrices)]


def _square(matrix: Tensor) -> Tensor:
    require(matrix.shape[0] == matrix.shape[1])
    return matrix


def _transposed(*roles: str) -> Edits:
    return changed(lambda matrix: _square(matrix).T, *roles)


def _twice(role: str, *, bias_too: bool) -> Edits:
    """Project twice by the same matrix, with the bias added once or twice."""

    def change(bias: Tensor, inputs: Inputs, point: golden.Semantics) -> Tensor:
        matrix = weight(inputs, point, name=role)
        require(matrix is not None)
        return matrix @ bias + bias_too * bias  # type: ignore[operator]  # it is required

    matrices = changed(lambda matrix: _square(matrix) @ matrix, role)
    return *matrices, Edit(f"{role}_bias", change=change)


def _missing(*roles: str, bias_too: bool = True) -> Edits:
    matrices = changed(lambda matrix: torch.eye(len(_square(matrix)), dtype=matrix.dtype), *roles)
    return (*matrices, *_leave_biases_out(*roles)) if bias_too else matrices


def _leave_biases_out(*roles: str) -> Edits:
    return tuple(Edit(f"{role}_bias", lambda: None) for role in roles)


def repacked(unpack: Callable[[Tensor, int, int], tuple[Tensor, ...]], roles: str = "qkv") -> Edits:
    """Pack projections below each other and unpack them in another order."""

    def part(own: Tensor, inputs: Inputs, point: golden.Semantics, *, name: str) -> Tensor:
        every = [weight(inputs, point, name=f"{role}{name[1:]}") for role in roles]
        if any(one is None for one in every):  # biases of some projections alone
            return own
        require(len({one.shape for one in every if one is not None}) == 1)
        packed = torch.cat([one.reshape(len(one), -1) for one in every if one is not None])
        parts = unpack(packed, inputs.geometry.num_kv_heads, len(roles))
        return parts[roles.index(name[0])].reshape(own.shape)

    names = [f"{role}{bias}" for role in roles for bias in ("", "_bias")]
    return tuple(Edit(name, change=partial(part, name=name)) for name in names)


def split_by_head(packed: Tensor, heads: int, parts: int) -> tuple[Tensor, ...]:
    """Read as ``[H, parts, D]`` what is packed as ``[parts, H, D]``."""
    split = packed.reshape(heads, parts, -1, packed.shape[-1])
    return tuple(split[:, part].reshape(-1, packed.shape[-1]) for part in range(parts))


def split_by_channel(packed: Tensor, _heads: int, parts: int) -> tuple[Tensor, ...]:
    """Read as ``[H * D, parts]`` what is packed as ``[parts, H * D]``."""
    return tuple(packed[part::parts] for part in range(parts))


_OWN: Final = "use each input's own projection"


PROJECTIONS: Final[tuple[NamedMistake, ...]] = (
    *(
        mistake
        for role, name in _ROLES.items()
        for entries in (
            _of_layers(f"{name}-projection-missing")(
                f"the {name} projection is left out",
                "multiply by its matrix and add its bias",
                _missing(role),
                _missing(role, bias_too=False),
            ),
            _of_layers(f"{name}-projection-transposed")(
                f"the matrix of the {name} projection is transposed",
                "matrices are (out, in): tokens @ matrix.T, as nn.Linear does",
                _transposed(role),
            ),
            _of_layers(f"{name}-projection-applied-twice")(
                f"the {name} projection is applied to what it has projected already",
                "multiply by its matrix and add its bias once",
                *(_twice(role, bias_too=bias_too) for bias_too in (True, False)),
            ),
        )
        for mistake in entries
    ),
    *_of_layers("projections-transposed")(
        "the projection matrices of query, key and value are transposed, if not the output's, too",
        "matrices are (out, in): tokens @ matrix.T, as nn.Linear does",
        _transposed("q", "k", "v", "o"),
        _transposed("q", "k", "v"),
    ),
    *_of_layers("input-projections-missing")(
        "the projections of query, key and value are left out, if not the output's, too",
        "project the inputs before cutting them into heads",
        _missing("q", "k", "v"),
        _missing("q", "k", "v", "o"),
    ),
    *_of_layers("input-biases-missing")(
        "the biases of the query, key and value projections are left out",
        "add them",
        _leave_biases_out("q", "k", "v"),
    ),
    *_of_layers("biases-missing")(
        "the biases of all projections are left out",
        "add them",
        _leave_biases_out("q", "k", "v", "o"),
    ),
    *_of_layers("output-bias-once-per-head")(
        "the output bias is added once for each head",
        "add it once, after the heads are summed",
        Edit("o_bias", change=lambda bias, num_heads: num_heads * bias),
    ),
    *_of_layers("key-projected-as-query")(
        "keys go through the projection of the queries",
        "use the key's own projection",
        *_exchange(k="q"),
    ),
    *_of_layers("query-projected-as-key")(
        "queries go through the projection of the keys",
        "use the query's own projection",
        *_exchange(q="k"),
    ),
    *_of_layers("value-projected-as-key")(
        "values go through the projection of the keys",
        "use the value's own projection",
        *_exchange(v="k"),
    ),
    *_of_layers("value-projected-as-query")(
        "values go through the projection of the queries",
        "use the value's own projection",
        *_exchange(v="q"),
    ),
    *_of_layers("key-projected-as-value")(
        "keys go through the projection of the values",
        "use the key's own projection",
        *_exchange(k="v"),
    ),
    *_of_layers("all-projected-as-query")(
        "queries, keys and values go through one projection",
        "give each its own projection",
        *_exchange(k="q", v="q"),
    ),
    *_of_layers("query-and-key-projections-swapped")(
        "the projections of query and key are swapped",
        _OWN,
        *_exchange(q="k", k="q"),
    ),
    *_of_layers("key-and-value-projections-swapped")(
        "the projections of key and value are swapped",
        _OWN,
        *_exchange(k="v", v="k"),
    ),
    *_of_layers("query-and-value-projections-swapped")(
        "the projections of query and value are swapped",
        _OWN,
        *_exchange(q="v", v="q"),
    ),
    *_of_layers("projections-rotated")(
        "the projections of query, key and value are in another order",
        _OWN,
        *_exchange(q="k", k="v", v="q"),
        *_exchange(q="v", k="q", v="k"),
    ),
    *_of_layers("fused-projection-cut-by-heads")(
        "the fused projection is cut as (heads, 3, head size) though it is (3, heads, head size)",
        "chunk it into query, key and value first, then cut each into heads",
        repacked(split_by_head),
        repacked(split_by_channel),
    ),
)
