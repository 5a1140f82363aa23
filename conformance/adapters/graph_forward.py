"""Calls a graph as ``forward(query, key, value, *, keep=…)``."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

from ..graphs.opened import OpenedGraph
from ..graphs.process import Array, Run
from ..graphs.protocol import BFLOAT16, numpy_dtype
from ..graphs.reading import MASK_ROLES, Axis, GraphReading, Header, Role

_TOGETHER: Final = {"M": "HD", "F": "BH", "W": "HB"}


def arrange(tensor: Tensor, own: str, theirs: str) -> Tensor:
    """Permute a tensor from axes ``own`` to the order of ``theirs``, and merge axes as it says."""
    letters = spelled(theirs).replace("1", "")
    tensor = tensor.permute([own.index(letter) for letter in letters])
    return tensor.reshape(axes_shape(theirs, dict(zip(letters, tensor.shape, strict=True))))


def restore(tensor: Tensor, theirs: str, own: str, sizes: Mapping[str, int]) -> Tensor:
    """The inverse of ``arrange``; a tensor that does not fit comes back unchanged.

    ``sizes`` gives the sizes of the letters that ``theirs`` merges.
    """
    if tensor.dim() != len(theirs):
        return tensor
    shape: list[int] = []
    for letter, size in zip(theirs, tensor.shape, strict=True):
        parts = _TOGETHER.get(letter)
        if parts is None:
            shape += [] if letter == "1" and size == 1 else [size]
        elif sizes[parts[0]] * sizes[parts[1]] == size:
            shape += [sizes[parts[0]], sizes[parts[1]]]
        else:
            return tensor
    letters = spelled(theirs).replace("1", "")
    if len(shape) != len(letters):
        return tensor
    order = [letters.index(letter) for letter in own]
    return tensor.reshape(shape).permute(order)


def spelled(axes: str) -> str:
    """Axes as single letters, with ``M``, ``F`` and ``W`` spelled out."""
    return "".join(_TOGETHER.get(letter, letter) for letter in axes)


def axes_shape(axes: str, sizes: Mapping[str, int]) -> list[int]:
    """The size of each axis; a merged axis has the product of its sizes."""
    return [
        1 if axis == "1" else math.prod(sizes[part] for part in _TOGETHER.get(axis, axis))
        for axis in axes
    ]


# The mask form for each role; the graph's dtype makes the rest of the difference.
FORMS: Final = {
    "keep": "keep",
    "drop": "drop",
    "keep_int": "keep_int",
    "drop_int": "drop",
    "bias": "bias",
    "lengths": "lengths",
}
PASTS: Final = ("past_key", "past_value")
_PAST_SIZES: Final = {"past_key": "head_size", "past_value": "value_head_size"}
_ORDER: Final = {
    "self": ("x",),
    "memory": ("query", "context"),
    "separate": ("query", "key", "value"),
}


def mask_pairs(reading: GraphReading) -> tuple[tuple[str, str], ...]:
    """Pairs of a mask form and a shape, in the declaration's letters, that the graph takes."""
    pairs = ((FORMS[role.role], _letters(role, reading)) for role in reading.masks)
    return tuple(dict.fromkeys(pairs))


def _letters(role: Role, reading: GraphReading) -> str:
    """The axes of the mask that is passed to an input.

    Inputs that share a form get all axes: sizes alone do not tell ``BK`` from ``QK``.
    """
    letters, form = spelled(role.axes), FORMS[role.role]
    several = sum(FORMS[other.role] == form for other in reading.masks) > 1
    if not several or not letters.endswith("K"):
        return letters
    order = "BHQK" if reading.batched else "HQK"
    return "".join(letter if letter in letters else "1" for letter in order)


def described(opened: OpenedGraph) -> dict[str, Any]:
    """The graph's calling convention as plain data, for a standalone script."""
    reading = opened.reading
    return {
        "inputs": [_role(role) | _size(role, opened.header) for role in reading.inputs],
        "outputs": [_role(role) for role in reading.outputs],
        "order": list(_ORDER[reading.mode]),
        "kind": reading.kind,
        "batched": reading.batched,
        "num_heads": opened.projections.num_heads,
    }


def _role(role: Role) -> dict[str, Any]:
    entry: dict[str, Any] = {
        "name": role.name,
        "role": role.role,
        "axes": role.axes,
        "dtype": role.dtype,
    }
    if role.role in FORMS:
        return {**entry, "form": FORMS[role.role]}
    return entry if role.value is None else {**entry, "value": np.asarray(role.value).tolist()}


def _size(role: Role, header: Header) -> dict[str, Any]:
    """The shape of an empty cache, with None for the number of items."""
    if role.role not in PASTS:
        return {}
    axes = role.axes or "BHLD"
    said = header.input(role.name).shape or (None,) * len(axes)
    open_sizes = {"B": None, "L": 0}
    shape = [
        size if isinstance(size, int) else open_sizes.get(letter, 1)
        for letter, size in zip(axes, said, strict=True)
    ]
    return {"shape": shape}


class GraphForward:
    """Calls a function of arrays by name in the manner of a kernel or a layer.

    run
        ``run(feeds)``: the graph in its process, or the eager module it was exported from.
    num_heads
        The number of heads, for masks with an axis of heads; None where unknown.
    shapes
        The axes of inputs by the file's header, for caches.
    """

    def __init__(
        self,
        run: Run,
        reading: GraphReading,
        num_heads: int | None,
        shapes: Mapping[str, Sequence[Axis]] | None = None,
    ) -> None:
        self.run = run
        self.reading = reading
        self.num_heads = num_heads
        self.shapes = shapes or {}

    def __call__(self, *inputs: Tensor, return_weights: bool = False, **masks: Tensor) -> Any:
        """The output in the public contract's axes; with ``return_weights``, output and weights."""
        result = self.run(self.feeds(inputs, masks))
        sizes = self._sizes(inputs)
        output = self.taken(result[self.reading.output.name], self.reading.output, sizes)
        if not return_weights:
            return output
        weights = next(role for role in self.reading.outputs if role.role == "weights")
        return output, self.taken(result[weights.name], weights, sizes)

    def feeds(self, inputs: tuple[Tensor, ...], masks: Mapping[str, Tensor]) -> dict[str, Array]:
        """The arrays for a call of the graph, by input name."""
        tensors = dict(zip(_ORDER[self.reading.mode], inputs, strict=True))
        sizes = self._sizes(inputs)
        feeds: dict[str, Array] = {}
        left = dict(masks)
        for role in self.reading.inputs:
            if role.role in MASK_ROLES:
                feeds[role.name] = self._mask(role, left, sizes)
            elif role.role in tensors:
                tensor = tensors[role.role]
                own = self._heads if self.reading.kind == "core" else "BLE"[-tensor.dim() :]
                feeds[role.name] = array_of(arrange(tensor, own, role.axes), role.dtype)
            elif role.role in PASTS:
                feeds[role.name] = self._past(role, sizes)
            elif role.role == "sinks":
                sinks = left.pop("sinks", None)
                none = torch.full((sizes["H"],), -math.inf)
                feeds[role.name] = array_of(none if sinks is None else sinks, role.dtype)
            else:
                feeds[role.name] = _constant(role, sizes)
        if left:
            msg = f"the graph has no input for {', '.join(left)} of this shape"
            raise TypeError(msg)
        return feeds

    def _past(self, role: Role, sizes: Mapping[str, int]) -> Array:
        """An empty cache."""
        if role.value is not None:
            return np.asarray(role.value)
        heads = self._pinned("num_kv_heads", sizes["H"])
        size = self._pinned(_PAST_SIZES[role.role], sizes["D"])
        by_letter = {"B": sizes["B"], "H": heads, "L": 0, "D": size, "1": 1}
        axes = role.axes or "BHLD"
        said = self.shapes.get(role.name) or (None,) * len(axes)
        shape = [
            axis_size if isinstance(axis_size, int) else by_letter[letter]
            for letter, axis_size in zip(axes, said, strict=True)
        ]
        return np.zeros(shape, numpy_dtype(role.dtype))

    def _pinned(self, field: str, otherwise: int) -> int:
        pin = self.reading.pins.get(field)
        return pin if isinstance(pin, int) else otherwise

    def taken(self, array: Array, role: Role, sizes: Mapping[str, int]) -> Tensor:
        """An output of the graph, in the harness' order of axes."""
        tensor = tensor_of(array)
        if role.role == "weights":
            own = "BHQK" if self.reading.batched else "HQK"
        elif self.reading.kind == "core":
            own = self._heads
        else:
            own = "BLE" if self.reading.batched else "LE"
        if role.role != "weights" and "M" in role.axes and tensor.dim() == len(role.axes):
            packed = tensor.shape[role.axes.index("M")]
            sizes = {**sizes, "D": packed // sizes["H"] if sizes["H"] else 0}
        return restore(tensor, role.axes, own, sizes)

    @property
    def _heads(self) -> str:
        return "BHLD" if self.reading.batched else "HLD"

    def _sizes(self, inputs: tuple[Tensor, ...]) -> dict[str, int]:
        query, key = inputs[0], inputs[min(1, len(inputs) - 1)]
        heads = query.shape[-3] if self.reading.kind == "core" else self.num_heads
        batch = query.shape[0] if self.reading.batched else 1
        return {
            "B": batch,
            "H": 1 if heads is None else heads,
            "Q": query.shape[-2],
            "K": key.shape[-2],
            "D": query.shape[-1],
        }

    def _mask(self, role: Role, left: dict[str, Tensor], sizes: Mapping[str, int]) -> Array:
        """The call's mask for this input, removed from ``left``; else a mask that hides nothing."""
        form, letters = FORMS[role.role], _letters(role, self.reading)
        handed_over = left.get(form)
        if handed_over is not None and mask_fits(handed_over, letters, sizes):
            del left[form]
            mask = handed_over
        else:
            mask = nothing_hidden(form, axes_shape(letters, sizes))
            if form == "lengths":
                mask = mask * sizes["K"]
        sizes = {**sizes, "K": mask.shape[-1]} if letters.endswith("K") else sizes
        return array_of(mask.reshape(axes_shape(role.axes, sizes)), role.dtype)


def _constant(role: Role, sizes: Mapping[str, int]) -> Array:
    """The array of a constant input; a scalar is broadcast to the input's axes."""
    value = np.asarray(role.value)
    if value.ndim or not role.axes:
        return value
    return np.full(axes_shape(role.axes, sizes), value, numpy_dtype(role.dtype))


def mask_fits(mask: Tensor, letters: str, sizes: Mapping[str, int]) -> bool:
    """Whether a mask has an input's axes; the graph itself checks the number of keys."""
    return mask.dim() == len(letters) and all(
        size == (1 if letter == "1" else sizes[letter])
        for letter, size in zip(letters, mask.shape, strict=True)
        if letter != "K"
    )


def nothing_hidden(form: str, shape: list[int]) -> Tensor:
    """A mask under which every query attends to every key."""
    if form == "lengths":
        return torch.ones(shape, dtype=torch.int64)
    if form == "bias":
        return torch.zeros(shape)
    return torch.zeros(shape, dtype=torch.bool) if form == "drop" else torch.ones(shape).bool()


def array_of(tensor: Tensor, dtype: str) -> Array:
    """A contiguous array in a graph's dtype; torch itself cannot convert bfloat16 to numpy."""
    plain = tensor.detach().cpu().contiguous()
    if dtype == BFLOAT16:
        return plain.to(torch.bfloat16).view(torch.int16).numpy().view(numpy_dtype(dtype))
    plain = plain.float() if plain.dtype == torch.bfloat16 else plain
    return plain.numpy().astype(dtype, copy=False)


def tensor_of(array: Array) -> Tensor:
    """A copy of an array as a tensor."""
    copy = np.array(array)
    if array.dtype.name != BFLOAT16:
        return torch.from_numpy(copy)
    return torch.from_numpy(copy.view(np.int16)).view(torch.bfloat16)
