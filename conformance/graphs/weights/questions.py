"""Asking a graph: every input filled by its role, tokens as the caller says, nothing masked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final

import numpy as np

from ..header import Header, Port
from ..process import GraphProcess
from ..reading import MASK_ROLES, TENSOR_ROLES, Reading, Role
from .wiring import UnreadableError

Array = np.ndarray[Any, Any]

# Sizes where the graph leaves them open: different, so that no two axes are mistaken; no usual head
# sizes, so that no scale is; then those at which a graph with baked sizes may still run.
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
# What stands for "this key counts" in each form of mask.
_ATTENDED: Final = {"keep": 1, "keep_int": 1, "drop": 0, "drop_int": 0, "bias": 0}


@dataclass(frozen=True, eq=False)
class Questions:
    """Runs a graph on tokens ``[B, L, E]`` by role, and reads its answer as ``[B, L, E]``.

    ``coarse``: the graph quantises activations to 8 bits while it runs. ``sizes``: where the graph
    leaves them open.
    """

    header: Header
    process: GraphProcess
    reading: Reading
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

    def _width(self, role: str, told: int | str | None) -> int:
        name = {"x": "query_size", "context": "key_size"}.get(role, f"{role}_size")
        found = self._pinned(name) or (told if isinstance(told, int) else None)
        if found is None:
            msg = f"the graph does not say how wide the tokens of {self.tokens[role].name!r} are"
            raise UnreadableError(msg)
        return found

    def _size(self, name: str, told: int | str | None) -> int:
        if isinstance(told, int) and told > 0:
            return told
        pinned = self._pinned(name)
        if pinned is None and name == "key_length" and "x" in self.tokens:
            return self._size("query_length", None)
        return self.sizes[name] if pinned is None else pinned

    def _pinned(self, name: str) -> int | None:
        pins, seen = self.reading.pins, {name}
        while isinstance(pin := pins.get(name), str) and pin not in seen:
            seen.add(pin)
            name = pin
            if name not in pins and name in self.sizes:
                return self.sizes[name]
        return pin if isinstance(pin, int) else None

    def ask(self, tokens: Mapping[str, Array], taps: Sequence[str] = ()) -> dict[str, Array]:
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
        told = port.shape or (None,) * len(role.axes)
        return tuple(
            size if isinstance(size, int) and size > 0 else sizes[letter]
            for letter, size in zip(role.axes, told, strict=True)
        )

    def answer(self, outputs: Mapping[str, Array]) -> Array:
        """The graph's answer as ``[B, L, E]`` in float64."""
        role = self.reading.output
        found = np.asarray(outputs[role.name], dtype=np.float64)
        if "B" not in role.axes:
            return found[np.newaxis]
        ordered: Array = found.transpose([role.axes.index(letter) for letter in "BLE"])
        return ordered


def arranged(tokens: Array, axes: str) -> Array:
    """Tokens ``[B, L, E]`` in the order of a graph's axes; without ``B`` the only item alone."""
    given, letters = (tokens, "BLE") if "B" in axes else (tokens[0], "LE")
    ordered: Array = given.transpose([letters.index(letter) for letter in axes])
    return ordered


def _dtype(role: Role) -> str:
    return role.dtype or "float32"
