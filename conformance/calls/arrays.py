"""Calls functions of NumPy or JAX arrays: tensors become arrays, answers become tensors.

A NumPy array shares the memory of its tensor with the same strides, so writes to the inputs or next
to them are detected as with tensors. JAX copies, or shares memory it promises never to change.
Neither package is imported before a candidate declares its arrays.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, Final

import torch
from torch import Tensor

from .._golden import golden
from ..declare.declaration import Declaration

WANTED: Final = {"torch": "a torch.Tensor", "numpy": "a numpy.ndarray", "jax": "a jax.Array"}


def no_such_numbers(declared: Declaration, dtype: str) -> str:
    """Why a candidate cannot be called in a dtype, or ""."""
    if declared.arrays == "numpy" and dtype == "bfloat16":
        return "it takes arrays of NumPy, which has no bfloat16"
    return ""


@dataclass(frozen=True)
class Stranger:
    """What a function of arrays returned in place of an array."""

    value: Any
    wanted: str


@dataclass(frozen=True)
class OfArrays:
    """A function of arrays, called with tensors and answering with them."""

    function: Callable[..., Any]
    kind: str

    def __call__(self, *positional: Any, **keywords: Any) -> Any:
        """Convert, call, and convert what comes back; by ``jax.vjp`` if gradients are recorded."""
        given = [*positional, *keywords.values()]
        places = [place for place, each in enumerate(given) if _records(each)]
        arrays = [to_array(value, self.kind) for value in given]

        def call(*leaves: Any) -> Any:
            every = list(arrays)
            for place, leaf in zip(places, leaves, strict=True):
                every[place] = leaf
            count = len(positional)
            named = dict(zip(keywords, every[count:], strict=True))
            return self.function(*every[:count], **named)

        if self.kind == "jax" and places:
            return _Pulled.apply(call, *(given[place] for place in places))  # type: ignore[no-untyped-call]  # of torch
        return to_tensors(call(*(arrays[place] for place in places)), self.kind)


def _records(value: Any) -> bool:
    return isinstance(value, Tensor) and value.requires_grad and torch.is_grad_enabled()


class _Pulled(torch.autograd.Function):
    """A function of JAX's arrays, whose backward pass is that of ``jax.vjp``."""

    @staticmethod
    def forward(ctx: Any, call: Callable[..., Any], *leaves: Tensor) -> Any:
        arrays = (to_array(leaf, "jax") for leaf in leaves)
        ctx.returned, ctx.pull = importlib.import_module("jax").vjp(call, *arrays)
        return to_tensors(ctx.returned, "jax")

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        given = tuple(to_array(gradient, "jax") for gradient in gradients)
        pulled = ctx.pull(given if isinstance(ctx.returned, tuple) else given[0])
        return (None, *to_tensors(pulled, "jax"))


def of_tensors(function: Callable[..., Any], kind: str) -> Callable[..., Any]:
    """Wrap a function of arrays as a function of tensors."""
    return function if kind == "torch" else OfArrays(function, kind)


def builder_of_tensors(build: Callable[..., Any], kind: str) -> Callable[..., Any]:
    """Wrap a layer's builder to take tensors and return a function of tensors."""
    if kind == "torch":
        return build

    def built(geometry: Any, weights: golden.ProjectionWeights | None) -> Any:
        roles = {} if weights is None else vars(weights)
        arrays = SimpleNamespace(**{role: to_array(each, kind) for role, each in roles.items()})
        forward = build(geometry, None if weights is None else arrays)
        return OfArrays(forward, kind) if callable(forward) else forward

    return built


def to_array(value: Any, kind: str) -> Any:
    """Return a tensor as an array; other objects as is."""
    if not isinstance(value, Tensor):
        return value
    tensor = value.detach()
    if kind == "numpy":
        return tensor.numpy()
    jax_numpy = importlib.import_module("jax.numpy")
    if tensor.dtype == torch.bfloat16:  # which NumPy has no name for
        bits = tensor.contiguous().view(torch.int16).numpy()
        return jax_numpy.asarray(bits.view(jax_numpy.dtype("bfloat16")))
    return jax_numpy.asarray(tensor.numpy())


def to_tensors(returned: Any, kind: str) -> Any:
    """Arrays as tensors, those of a pair, too; what is no array is a :class:`Stranger`."""
    if isinstance(returned, tuple):
        return tuple(to_tensors(part, kind) for part in returned)
    array_type = getattr(importlib.import_module(kind), "ndarray" if kind == "numpy" else "Array")
    if not isinstance(returned, array_type):
        return Stranger(returned, WANTED[kind])
    return _as_tensor(returned)


def _as_tensor(array: Any) -> Any:
    """Return a tensor of an array's numbers, sharing writable memory if possible."""
    numpy = importlib.import_module("numpy")
    plain = numpy.asarray(array)
    if plain.dtype.name == "bfloat16":
        bits = numpy.ascontiguousarray(plain).view("int16").copy()
        return torch.from_numpy(bits).view(torch.bfloat16)
    fits = all(step >= 0 and step % (plain.itemsize or 1) == 0 for step in plain.strides)
    shared = plain.flags.writeable and fits and plain.dtype.isnative
    own = plain if shared else plain.astype(plain.dtype.newbyteorder("="), order="C")
    try:
        tensor: Tensor = torch.from_numpy(own)
    except TypeError:
        return Stranger(array, f"an array of numbers that torch has, but of dtype {plain.dtype}")
    return tensor
