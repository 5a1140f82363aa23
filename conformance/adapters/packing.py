"""Where a module keeps its four projections, and how fused ones are packed and unpacked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor, nn

from .._golden import golden
from ..errors import DeclarationError

LAYOUTS: Final = ("blocks", "grouped", "hdk", "dkh")


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """The numbers of heads and their sizes."""

    num_heads: int
    num_kv_heads: int
    head_size: int
    value_head_size: int

    def rows(self, role: str) -> int:
        """The rows of the query, key or value matrix."""
        return {
            "q": self.num_heads * self.head_size,
            "k": self.num_kv_heads * self.head_size,
            "v": self.num_kv_heads * self.value_head_size,
        }[role]


@dataclass(frozen=True, kw_only=True)
class Holder:
    """A parameter that holds one projection, or several fused along their rows.

    roles
        What it holds, in order: ``"q"``, ``"kv"``, ``"qkv"`` …
    path
        Its dotted name. A ``*`` stands for 0, 1, 2 … : one parameter a head, rows head after head.
    transposed
        Whether a matrix is stored ``[in, out]``, as in GPT-2's Conv1D, unlike in ``nn.Linear``.
    layout
        How the rows of several roles mingle: ``blocks`` one role after the other, ``grouped`` the
        roles of each key/value head together, ``hdk`` and ``dkh`` axes in that order: head (h),
        channel (d), role (k).
    """

    roles: str
    path: str
    transposed: bool = False
    layout: str = "blocks"

    def parameters(self, module: nn.Module) -> list[nn.Parameter]:
        """The parameters of a module that this holder names, in the order of the heads."""
        if "*" not in self.path:
            return [self._one(module)]
        known = dict(module.named_parameters(remove_duplicate=False))
        found: list[nn.Parameter] = []
        while (name := self.path.replace("*", str(len(found)))) in known:
            found.append(known[name])
        return found

    def _one(self, module: nn.Module) -> nn.Parameter:
        for name, parameter in module.named_parameters(remove_duplicate=False):
            if name == self.path:
                return parameter
        msg = (
            f"{self.path} is in one {type(module).__name__} but not in that of another "
            "geometry: pin the sizes for which it is there with geometry="
        )
        raise DeclarationError(msg)

    def read(self, module: nn.Module, sizes: Sizes) -> dict[str, Tensor]:
        """A copy of what is held, by role, as ``(out, in)`` matrices (or biases)."""
        parts = [self._as_rows(parameter.detach()) for parameter in self.parameters(module)]
        unpacked = unpack(torch.cat(parts), self.roles, self.layout, sizes)
        return {role: part.clone() for role, part in unpacked.items()}

    @torch.no_grad()
    def write(self, module: nn.Module, sizes: Sizes, parts: Mapping[str, Tensor]) -> None:
        """Load what it holds, in place; raises DeclarationError for another shape."""
        packed = pack(parts, self.roles, self.layout, sizes)
        views = [self._as_rows(parameter) for parameter in self.parameters(module)]
        rows = [view.shape[0] for view in views]
        if packed.shape != (sum(rows), *views[0].shape[1:]):
            msg = (
                f"{self.path} holds {[sum(rows), *views[0].shape[1:]]} (out, in) for {self.roles}, "
                f"but a problem's weights make {list(packed.shape)}: pin the sizes that this "
                "module cannot change with geometry="
            )
            raise DeclarationError(msg)
        for view, part in zip(views, packed.split(rows), strict=True):
            view.copy_(part)

    def _as_rows(self, stored: Tensor) -> Tensor:
        return stored.T if self.transposed else stored


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """The holders of a module's matrices and biases; the same for every size of the module."""

    matrices: tuple[Holder, ...]
    biases: tuple[Holder, ...]

    def has_bias(self, role: str) -> bool:
        """Whether a projection has a bias."""
        return any(role in holder.roles for holder in self.biases)

    @property
    def has_output(self) -> bool:
        """Whether there is an output projection."""
        return any(holder.roles == "o" for holder in self.matrices)

    def read(self, module: nn.Module, sizes: Sizes) -> golden.ProjectionWeights:
        """The module's weights, in the layout of the golden reference."""
        found: dict[str, Tensor] = {}
        for holder in self.matrices:
            found.update(holder.read(module, sizes))
        for holder in self.biases:
            biases = holder.read(module, sizes)
            found.update({f"{role}_bias": bias for role, bias in biases.items()})
        return golden.ProjectionWeights(**found)

    def write(self, module: nn.Module, sizes: Sizes, weights: golden.ProjectionWeights) -> None:
        """Load weights in place; a bias that is not given becomes zero.

        Raises DeclarationError for a shape that does not fit or a bias without a place.
        """
        for holder in self.matrices:
            parts = {role: getattr(weights, role) for role in holder.roles}
            holder.write(module, sizes, parts)
        for holder in self.biases:
            parts = {role: _bias(weights, role) for role in holder.roles}
            holder.write(module, sizes, parts)
        for role in "qkvo":
            if getattr(weights, f"{role}_bias") is not None and not self.has_bias(role):
                msg = f"the problem has a bias for {role}, but the module has no place for it"
                raise DeclarationError(msg)


def _bias(weights: golden.ProjectionWeights, role: str) -> Tensor:
    bias: Tensor | None = getattr(weights, f"{role}_bias")
    matrix: Tensor = getattr(weights, role)
    return matrix.new_zeros(matrix.shape[0]) if bias is None else bias


def supports(layout: str, roles: str, sizes: Sizes) -> bool:
    """Whether a layout makes sense for these sizes: some need every role to have equal heads."""
    if layout == "blocks":
        return True
    if len(roles) == 1:
        return False
    if layout == "grouped":
        return True
    same_heads = "q" not in roles or sizes.num_heads == sizes.num_kv_heads
    return same_heads and ("v" not in roles or sizes.head_size == sizes.value_head_size)


def unpack(packed: Tensor, roles: str, layout: str, sizes: Sizes) -> dict[str, Tensor]:
    """Cut ``[rows, ...]`` into the rows of each role."""
    if len(roles) == 1:
        return {roles: packed}
    heads, rest = sizes.num_kv_heads, packed.shape[1:]
    if layout == "blocks":
        parts = packed.split([sizes.rows(role) for role in roles])
    elif layout == "grouped":
        widths = [sizes.rows(role) // heads for role in roles]
        parts = packed.reshape(heads, -1, *rest).split(widths, dim=1)
        parts = tuple(part.flatten(0, 1) for part in parts)
    elif layout == "hdk":
        by_head = packed.reshape(heads, sizes.head_size, len(roles), *rest)
        parts = tuple(part.flatten(0, 1) for part in by_head.unbind(2))
    else:
        by_channel = packed.reshape(sizes.head_size, len(roles), heads, *rest)
        parts = tuple(part.transpose(0, 1).flatten(0, 1) for part in by_channel.unbind(1))
    return dict(zip(roles, parts, strict=True))


def pack(parts: Mapping[str, Tensor], roles: str, layout: str, sizes: Sizes) -> Tensor:
    """The inverse of :func:`unpack`."""
    if len(roles) == 1:
        return parts[roles]
    heads = sizes.num_kv_heads
    ordered = [parts[role] for role in roles]
    if layout == "blocks":
        return torch.cat(ordered)
    by_head = [part.reshape(heads, -1, *part.shape[1:]) for part in ordered]
    if layout == "grouped":
        return torch.cat(by_head, dim=1).flatten(0, 1)
    if layout == "hdk":
        return torch.stack(by_head, dim=2).flatten(0, 2)
    by_channel = [part.transpose(0, 1) for part in by_head]
    return torch.stack(by_channel, dim=1).flatten(0, 2)
