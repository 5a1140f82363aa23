"""The projections that a state dict's names speak of, one attention a prefix."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Final

from torch import Tensor

from ...base.parameter_names import role_of

_MATRIX: Final = 2
_KINDS: Final = re.compile(r"(.*?)[._]?(weight|bias|kernel)$")


def named_projections(
    tensors: Mapping[str, Tensor], widths: Mapping[str, int]
) -> dict[str, dict[str, Tensor]]:
    """``q``, ``q_bias``, … by prefix, for each prefix that has query, key and value.

    ``widths``: how wide the tokens of ``q``, ``k`` and ``v`` are, which tells how matrices lie.
    """
    found: dict[str, dict[str, Tensor]] = defaultdict(dict)
    for name, tensor in tensors.items():
        roles, clear = role_of(name)
        if not roles or (not clear and roles != "o"):
            continue
        prefix, bias = _prefix(name, tensor)
        for role, piece in _pieces(roles, tensor, widths):
            found[prefix].setdefault(f"{role}_bias" if bias else role, piece)
    return {prefix: parts for prefix, parts in found.items() if set("qkv") <= set(parts)}


def _prefix(name: str, tensor: Tensor) -> tuple[str, bool]:
    """The path of the attention that a tensor is in, and whether it is a bias."""
    match = _KINDS.match(name)
    stem, kind = match.groups() if match else (name, "")
    components = stem.split(".")
    while len(components) > 1 and components[-1].isdigit():
        components.pop()
    return ".".join(components[:-1]), kind == "bias" or tensor.ndim < _MATRIX


def _pieces(roles: str, tensor: Tensor, widths: Mapping[str, int]) -> Iterator[tuple[str, Tensor]]:
    """A tensor cut into its roles, matrices as ``[out, in]``."""
    if tensor.ndim > _MATRIX:
        return
    width = widths.get(roles[0])
    if tensor.ndim == _MATRIX and tensor.shape[1] != width and tensor.shape[0] == width:
        tensor = tensor.T
    if tensor.shape[0] % len(roles) == 0:
        yield from zip(roles, tensor.chunk(len(roles)), strict=True)
