"""Reading an affine map of tokens out of a graph by calls: zeros, basis vectors, codes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final

import numpy as np

from ..process import GraphProcess
from ..protocol import Array
from ..reading import MASK_ROLES, TENSOR_ROLES, GraphReading, Header, Port, Role
from .attention_core import HeadTensor
from .wiring import UnreadableError

# Sizes for open axes: different, so that no two axes are confused; no usual head sizes, to
# recognise a scale; then sizes at which a graph with baked sizes may still run.
FREE_SIZES: Final[tuple[Mapping[str, int], ...]] = tuple(
    {"batch": batch, "query_length": queries, "key_length": keys, "past_length": 0}
    for batch, queries, keys in (
        (3, 5, 7),
        (2, 5, 7),
        (1, 5, 7),
        (3, 5, 5),
        (2, 5, 5),
        (1, 5, 5),
        (2, 2, 2),
        (3, 1, 1),
        (1, 1, 1),
    )
)
_LENGTH_FIELDS: Final = {
    "query": "query_length",
    "x": "query_length",
    "key": "key_length",
    "value": "key_length",
    "context": "key_length",
}
# The value of an attended key in each form of mask.
_ATTENDED: Final = {"keep": 1, "keep_int": 1, "drop": 0, "drop_int": 0, "bias": 0}


@dataclass(frozen=True, eq=False)
class RunnableGraph:
    """Runs a graph on tokens ``[B, L, E]`` by role, and returns its answer as ``[B, L, E]``.

    ``coarse``: the graph quantises activations to 8 bits while it runs. ``sizes``: for axes the
    graph leaves open.
    """

    header: Header
    process: GraphProcess
    reading: GraphReading
    num_heads: int | None = None
    coarse: bool = False
    sizes: Mapping[str, int] = field(default_factory=lambda: FREE_SIZES[0])

    @cached_property
    def tokens(self) -> dict[str, Role]:
        """The inputs that bring tokens, by role."""
        return {role.role: role for role in self.reading.inputs if role.role in TENSOR_ROLES}

    def role_of(self, part: str) -> str:
        """Which role brings the tokens of ``query``, ``key`` or ``value``."""
        wished = {"query": ("query", "x"), "key": ("key", "context", "x", "query")}
        wished["value"] = ("value", "context", "key", "x", "query")
        return next(role for role in wished[part] if role in self.tokens)

    def shape(self, role: str) -> tuple[int, int, int]:
        """``(B, L, E)`` of the tokens of a role."""
        port = self.header.input(self.tokens[role].name)
        sizes = dict(zip(self.tokens[role].axes, port.shape or (), strict=False))
        length = self._size(_LENGTH_FIELDS[role], sizes.get("L"))
        return self._size("batch", sizes.get("B", 1)), length, self._width(role, sizes.get("E"))

    def _width(self, role: str, declared: int | str | None) -> int:
        name = {"x": "query_size", "context": "key_size"}.get(role, f"{role}_size")
        result = self._pinned(name) or (declared if isinstance(declared, int) else None)
        if result is None:
            msg = f"the graph does not say how wide the tokens of {self.tokens[role].name!r} are"
            raise UnreadableError(msg)
        return result

    def _size(self, name: str, declared: int | str | None) -> int:
        if isinstance(declared, int) and declared > 0:
            return declared
        pinned = self._pinned(name)
        if pinned is None and name == "key_length" and "x" in self.tokens:
            return self._size("query_length", None)
        return self.sizes[name] if pinned is None else pinned

    def _pinned(self, name: str) -> int | None:
        pins, visited = self.reading.pins, {name}
        while isinstance(pin := pins.get(name), str) and pin not in visited:
            visited.add(pin)
            name = pin
            if name not in pins and name in self.sizes:
                return self.sizes[name]
        return pin if isinstance(pin, int) else None

    def run(self, tokens: Mapping[str, Array], taps: Sequence[str] = ()) -> dict[str, Array]:
        """The outputs and tapped tensors for tokens ``[B, L, E]`` of each role."""
        feeds = {role.name: self._feed(role, tokens) for role in self.reading.inputs}
        return self.process.run(feeds, taps=tuple(dict.fromkeys(taps)))

    def _feed(self, role: Role, tokens: Mapping[str, Array]) -> Array:
        if role.role in tokens:
            return arranged(tokens[role.role], role.axes).astype(_dtype(role))
        value = np.asarray(role.value, dtype=_dtype(role)) if role.role == "constant" else None
        if value is not None and (value.ndim or not role.axes):
            return value
        shape = self._mask_shape(role, self.header.input(role.name))
        if role.role in MASK_ROLES:
            attended = _ATTENDED.get(role.role, self._key_length)
            masked: Array = np.full(shape, attended, dtype=_dtype(role))
            return masked
        return np.full(shape, 0 if value is None else value, dtype=_dtype(role))

    @property
    def _key_length(self) -> int:
        return self.shape(self.role_of("key"))[1]

    def _mask_shape(self, role: Role, port: Port) -> tuple[int, ...]:
        batch, query_length, _ = self.shape(self.role_of("query"))
        sizes = {
            "1": 1,
            "B": batch,
            "Q": query_length,
            "K": self._key_length,
            "H": self.num_heads or self._pinned("num_heads") or 1,
            "L": self._size("past_length", None),
            "D": self._pinned("head_size") or 1,
        }
        sizes["F"] = batch * sizes["H"]
        declared = port.shape or (None,) * len(role.axes)
        return tuple(
            size if isinstance(size, int) and size > 0 else sizes[letter]
            for letter, size in zip(role.axes, declared, strict=True)
        )

    def answer(self, outputs: Mapping[str, Array]) -> Array:
        """The graph's answer as ``[B, L, E]`` in float64."""
        role = self.reading.output
        result = np.asarray(outputs[role.name], dtype=np.float64)
        if "B" not in role.axes:
            return result[np.newaxis]
        ordered: Array = result.transpose([role.axes.index(letter) for letter in "BLE"])
        return ordered


def arranged(tokens: Array, axes: str) -> Array:
    """Tokens ``[B, L, E]`` in the order of a graph's axes; without ``B`` the only item alone."""
    values, letters = (tokens, "BLE") if "B" in axes else (tokens[0], "LE")
    ordered: Array = values.transpose([letters.index(letter) for letter in axes])
    return ordered


def _dtype(role: Role) -> str:
    return role.dtype or "float32"


# Roundings between a stored weight and its measurement: product, scale, bias, casts.
ROUNDINGS: Final = 16
# A power of two as the length of basis vectors: a bias then hides fewer digits of a weight.
STRETCH: Final = 64.0
# The steps of a tensor quantised to 8 bits during the run.
EIGHT_BITS: Final = 255


@dataclass(frozen=True, kw_only=True, eq=False)
class AffineMap:
    """A tensor of heads as a function of tokens: ``heads = matrix · token + bias`` by head.

    matrix, bias: ``[H, D, E]`` and ``[H, D]`` in float64, factors of the graph included.
    noise: the possible error of ``matrix``, by element.
    order: ``items`` first or ``heads`` first in the tensor; "" where heads are not cut out of each
        token's own row, and rows are counted as they lie.
    """

    matrix: Array
    bias: Array
    noise: Array
    order: str


def affine_maps(
    graph: RunnableGraph,
    operands: Mapping[str, HeadTensor],
    counts: Mapping[str, int | None],
    roles: Mapping[str, str],
) -> dict[str, AffineMap]:
    """Return the affine map behind each tensor.

    ``counts``: heads side by side in its last axis; ``roles``: the role of its tokens. The keys are
    ``query``, ``key`` or ``value``, with an optional suffix after a space. Raises UnreadableError
    where a tensor is no affine map of single tokens.
    """
    probe = _Probe(graph, operands, roles)
    owners = {part: _rows_of(probe, part, counts.get(part)) for part in operands}
    result = _solved(probe, owners)
    for part, rows in owners.items():
        _check(probe, part, rows, result[part])
    return result


def spoken(part: str) -> str:
    """The part that a key speaks of: ``query`` of ``query 0``."""
    return part.split(maxsplit=1)[0]


@dataclass(frozen=True, eq=False)
class _Rows:
    """The rows of a tensor ``[rows, D]`` by token and head: ``[tokens, H]``."""

    index: Array
    head_size: int
    order: str

    def of(self, tensor: Array) -> Array:
        """Arrange the tensor by token: ``[tokens, H, D]``."""
        return tensor.reshape(-1, self.head_size)[self.index]


class _Probe:
    """Runs shared by all parts: one run probes query, key and value."""

    def __init__(
        self, graph: RunnableGraph, operands: Mapping[str, HeadTensor], roles: Mapping[str, str]
    ) -> None:
        self.graph, self.operands, self.roles = graph, operands, roles
        self.shapes = {role: graph.shape(role) for role in graph.tokens}
        self._taps = [operand.name for operand in operands.values()]
        self.base = self.run({})

    def run(self, tokens: Mapping[str, Array]) -> dict[str, Array]:
        """Return each part's tensor, its feature axis last, for ``[tokens, E]`` by role."""
        filled = {
            role: np.reshape(tokens.get(role, np.zeros(shape)), shape)
            for role, shape in self.shapes.items()
        }
        result = self.graph.run(filled, self._taps)
        return {
            part: np.moveaxis(result[operand.name], operand.feature, -1)
            for part, operand in self.operands.items()
        }

    def count(self, part: str) -> int:
        batch, length, _ = self.shapes[self.roles[part]]
        return batch * length


def _rows_of(probe: _Probe, part: str, heads: int | None) -> _Rows:
    base = probe.base[part]
    packed = heads is not None and base.ndim == len("BLM")
    size = base.shape[-1] // heads if heads and packed else base.shape[-1]
    owner = _owners(probe, part).reshape(-1, size)
    tokens, count = probe.count(part), len(owner)
    row_owner = owner.max(axis=1)
    if np.any((owner != 0) & (owner != row_owner[:, None])) or np.any(row_owner > tokens):
        msg = f"the {spoken(part)} heads are no map of single tokens"
        raise UnreadableError(msg)
    held = [np.flatnonzero(row_owner == token + 1) for token in range(tokens)]
    if len({len(rows) for rows in held}) != 1 or not len(held[0]):
        msg = (
            f"the {spoken(part)} heads are no map of single tokens ({count} rows, {tokens} tokens)"
        )
        raise UnreadableError(msg)
    index = np.stack(held)
    shape = (*base.shape[:-1], base.shape[-1] // size)
    return _Rows(index, size, _order(probe, part, index, shape))


def _owners(probe: _Probe, part: str) -> Array:
    """Return the number of the token, from 1, each element depends on; 0 for none.

    Tokens are probed in a binary code: run r changes tokens whose number has bit r set.
    """
    role, count = probe.roles[part], probe.count(part)
    width = probe.shapes[role][-1]
    number = np.arange(1, count + 1)
    pattern = np.random.default_rng(width).integers(0, 2, size=width).astype(float)
    pattern[0] = 1.0
    result = np.zeros(probe.base[part].shape, dtype=np.int64)
    for bit in range(count.bit_length()):
        changed_tokens = ((number >> bit) & 1)[:, None] * pattern
        changed = probe.run({role: changed_tokens})[part] != probe.base[part]
        result += changed.astype(np.int64) << bit
    return result


def _order(probe: _Probe, part: str, index: Array, shape: tuple[int, ...]) -> str:
    """Return the order of rows: positions along one axis, items and heads along the others."""
    batch, length, _ = probe.shapes[probe.roles[part]]
    heads = index.shape[1]
    rows = index.reshape(batch, length, heads)
    for axis, size in enumerate(shape):
        if size < length:
            continue
        along = np.moveaxis(np.arange(int(np.prod(shape))).reshape(shape), axis, -1)
        lines = along.reshape(-1, size)[:, size - length :]
        if lines.size != rows.size:
            continue
        for order, picture in (
            ("items", lines.reshape(batch, heads, length).transpose(0, 2, 1)),
            ("heads", lines.reshape(heads, batch, length).transpose(1, 2, 0)),
        ):
            if np.array_equal(picture, rows):
                return order
    return ""


def _solved(probe: _Probe, owners: Mapping[str, _Rows]) -> dict[str, AffineMap]:
    """Solve for the maps, one column a token, all parts in one call."""
    base = {part: rows.of(probe.base[part]).astype(np.float64) for part, rows in owners.items()}
    widths = {part: probe.shapes[probe.roles[part]][-1] for part in owners}
    matrices = {part: np.empty((*base[part].shape[1:], widths[part])) for part in owners}
    calls = max(-(-width // probe.count(part)) for part, width in widths.items())
    for call in range(calls):
        answers = probe.run(_basis(probe, call))
        for part, rows in owners.items():
            start = call * probe.count(part)
            columns = (rows.of(answers[part]).astype(np.float64) - base[part]) / STRETCH
            room = matrices[part][..., start : start + len(columns)]
            room[...] = np.moveaxis(columns, 0, -1)[..., : room.shape[-1]]
    return {
        part: _map_of(matrix, base[part], probe.base[part].dtype, owners[part].order)
        for part, matrix in matrices.items()
    }


def _basis(probe: _Probe, call: int) -> dict[str, Array]:
    """Return tokens of each role that are the next basis vectors, padded with zeros."""
    result = {}
    for role, (batch, length, width) in probe.shapes.items():
        count = batch * length
        result[role] = np.eye(count, width, k=call * count) * STRETCH
    return result


def _map_of(matrix: Array, base: Array, dtype: Any, order: str) -> AffineMap:
    bias = base.mean(axis=0)
    roundoff = float(np.finfo(dtype).eps)
    noise = ROUNDINGS * roundoff * (np.abs(matrix) + 2 * np.abs(bias)[..., None] / STRETCH)
    return AffineMap(matrix=matrix, bias=bias, noise=noise, order=order)


def _check(probe: _Probe, part: str, rows: _Rows, result: AffineMap) -> None:
    """Test the map on an answer to random tokens; raises UnreadableError."""
    role, count = probe.roles[part], probe.count(part)
    width = probe.shapes[role][-1]
    tokens = {
        name: np.random.default_rng(number).standard_normal(shape)
        for number, (name, shape) in enumerate(probe.shapes.items())
    }
    tensor = probe.run(tokens)[part]
    own_tokens = tokens[role].reshape(count, width).astype(tensor.dtype).astype(np.float64)
    expected = np.einsum("hde,te->thd", result.matrix, own_tokens) + result.bias
    size = np.einsum("hde,te->thd", np.abs(result.matrix), np.abs(own_tokens)) + np.abs(result.bias)
    roundoff = float(np.finfo(tensor.dtype).eps)
    bound = (width + ROUNDINGS) * roundoff * size
    if probe.graph.coarse:
        step = 2 * np.abs(own_tokens).max() / EIGHT_BITS
        bound = bound + step * np.abs(result.matrix).sum(axis=-1)
    if np.any(np.abs(rows.of(tensor) - expected) > bound + np.finfo(tensor.dtype).tiny):
        msg = f"the {spoken(part)} heads are no affine map of single tokens"
        raise UnreadableError(msg)
