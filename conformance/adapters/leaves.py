"""The matrices inside a module that could be projections."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from torch import nn

from ..base.parameter_names import role_of
from ..errors import DeclarationError
from .packing import Holder

_MATRIX: Final = 2
_NOT_PROJECTIONS: Final = (nn.Embedding, nn.EmbeddingBag, nn.LayerNorm, nn.Bilinear, nn.RNNBase)
_NUMBER: Final = re.compile(r"(?<=\.)\d+(?=\.)|^\d+(?=\.)")


@dataclass(frozen=True, kw_only=True)
class Leaf:
    """One matrix (or one a head, its path then has a ``*``).

    ``shape`` is as stored, the rows of all heads together; ``transposed`` lists the possible
    orientations, likeliest first; ``plain`` marks a parameter that is not some layer's ``weight``.
    """

    path: str
    bias: str | None
    shape: tuple[int, int]
    transposed: tuple[bool, ...]
    plain: bool = False
    count: int = 1
    known_layout: bool = False

    def out_and_in(self, *, transposed: bool) -> tuple[int, int]:
        """The rows and columns of the matrix read as ``(out, in)``."""
        rows, columns = self.shape
        if not transposed:
            return rows * self.count, columns
        return columns * self.count, rows

    @property
    def title(self) -> str:
        """The path without the ``.weight`` at its end."""
        return self.path.removesuffix(".weight")


def leaves(module: nn.Module) -> list[Leaf]:
    """Every matrix that could be a projection, in the order of definition, heads put together.

    Raises DeclarationError for parameters that do not exist yet or that are computed from others.
    """
    found: list[Leaf] = []
    for name, owner in module.named_modules(remove_duplicate=False):
        if not isinstance(owner, _NOT_PROJECTIONS) and "parametrizations" not in name.split("."):
            _check_readable(name or type(owner).__name__, owner)
            found.extend(_of_owner(f"{name}." if name else "", owner))
    return _stack_heads(found)


def plain_biases(module: nn.Module, taken: set[str]) -> list[Holder]:
    """Biases that are parameters of their own, such as ``in_proj_bias`` or ``b_q``."""
    holders = []
    for name, parameter in module.named_parameters(remove_duplicate=False):
        roles, clear = role_of(name)
        if parameter.dim() == 1 and name not in taken and clear and not name.endswith(".weight"):
            holders.append(Holder(roles=roles, path=name))
    return holders


def _check_readable(name: str, owner: nn.Module) -> None:
    for parameter in owner.parameters(recurse=False):
        if isinstance(parameter, nn.UninitializedParameter):
            msg = (
                f"{name} has no weights yet (it is lazy): call the module once before declaring it"
            )
            raise DeclarationError(msg)
    if hasattr(owner, "parametrizations") or hasattr(owner, "weight_g"):
        msg = (
            f"{name} computes its weight from other parameters, so none can be loaded: remove the "
            "parametrization, or declare it with conformance.fixed_layer"
        )
        raise DeclarationError(msg)


def _of_owner(prefix: str, owner: nn.Module) -> Iterator[Leaf]:
    for name, parameter in owner.named_parameters(recurse=False):
        if parameter.dim() != _MATRIX:
            continue
        bias = getattr(owner, "bias", None) if name == "weight" else None
        yield Leaf(
            path=f"{prefix}{name}",
            bias=f"{prefix}bias" if isinstance(bias, nn.Parameter) and bias.dim() == 1 else None,
            shape=(parameter.shape[0], parameter.shape[1]),
            transposed=_orientations(owner, name),
            plain=name != "weight" or not prefix,
            known_layout=isinstance(owner, nn.MultiheadAttention),
        )


def _orientations(owner: nn.Module, name: str) -> tuple[bool, ...]:
    if isinstance(owner, (nn.Linear, nn.MultiheadAttention)):
        return (False,)
    if "Conv1D" in type(owner).__name__ or not name.endswith("weight"):
        return (True, False)
    return (False, True)


def _stack_heads(found: list[Leaf]) -> list[Leaf]:
    """Put ``heads.0.query``, ``heads.1.query`` … together; lists without names stay apart."""
    groups: dict[str, list[Leaf]] = {}
    for leaf in found:
        roles, clear = role_of(leaf.path)
        per_head = clear and roles != "o"
        template = _NUMBER.sub("*", leaf.path, count=1) if per_head else leaf.path
        groups.setdefault(template, []).append(leaf)
    return [stacked for template, group in groups.items() for stacked in _stack(template, group)]


def _stack(template: str, group: list[Leaf]) -> list[Leaf]:
    first = group[0]
    paths = [template.replace("*", str(index)) for index in range(len(group))]
    alike = all(leaf.shape == first.shape and bool(leaf.bias) == bool(first.bias) for leaf in group)
    if len(group) == 1 or not alike or [leaf.path for leaf in group] != paths:
        return group
    return [
        Leaf(
            path=template,
            bias=_NUMBER.sub("*", first.bias, count=1) if first.bias else None,
            shape=first.shape,
            transposed=first.transposed,
            plain=first.plain,
            count=len(group),
        )
    ]
