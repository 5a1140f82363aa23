"""What the inputs of a graph might be, with the sizes at which that can be tried."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from ..header import Header, Port
from ..told import Told
from . import names
from .sizes import Sizes

Shapes = Mapping[str, tuple[int, ...]]
FLOATS: Final = frozenset({"float16", "float32", "float64", "bfloat16"})
INTEGERS: Final = frozenset({"int32", "int64", "int8", "uint8", "int16", "uint32", "uint64"})
TENSORS: Final = frozenset({"query", "key", "value", "x", "context"})
PASTS: Final = frozenset({"past_key", "past_value"})
LAYOUTS: Final[dict[int, tuple[str, ...]]] = {
    2: ("LE",),
    3: ("BLE", "LBE"),
    4: ("BHLD", "BLHD"),
}
_MASKS: Final[dict[int, tuple[str, ...]]] = {
    1: ("K", "B"),
    2: ("QK", "BK", "1K", "BQ"),
    3: ("BQK", "FQK", "B1K", "HQK", "1QK", "F1K", "11K"),
    4: ("BHQK", "B1QK", "B11K", "11QK", "1HQK", "BH1K", "1H1K", "111K"),
}


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Which inputs are tensors and masks, in which order of axes, and at which sizes.

    tensors
        The float inputs that carry tokens or heads, in the graph's order, all in one ``layout``.
    lead
        The one among them that is given the query length.
    masks
        The other inputs that may say who attends to whom, with the letters of their axes.
    pasts
        Caches, tried at length zero where the file allows it.
    constants
        Scalars and the like.
    """

    tensors: tuple[Port, ...]
    layout: str
    lead: int
    masks: tuple[tuple[Port, str], ...]
    pasts: tuple[Port, ...]
    constants: tuple[Port, ...]
    sizes: Sizes

    @property
    def letters(self) -> dict[str, str]:
        """The letters of the axes by the name of the input, where there are any."""
        found = {port.name: self.layout for port in self.tensors}
        return found | {port.name: axes for port, axes in self.masks}

    def shapes(self) -> Shapes | None:
        """The shape of every input, None where the file contradicts this plan."""
        try:
            return _Shaper(self).shapes()
        except _ContradictionError:
            return None


class _ContradictionError(Exception):
    """The file says otherwise than a plan."""


class _Shaper:
    """Gives every axis a size: the file's where it is fixed, else the plan's."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.symbols: dict[str, int] = {}

    def shapes(self) -> Shapes:
        """The shape of every input; raises _ContradictionError."""
        known = self._tokens()
        plan, found = self.plan, {}
        for at, port in enumerate(plan.tensors):
            length = known["Q" if at == plan.lead else "K"]
            found[port.name] = self._fitted(port, plan.layout, known | {"L": length})
        for port, axes in plan.masks:
            found[port.name] = self._fitted(port, axes, known, strict=True)
        for port in plan.pasts:
            found[port.name] = _filled(port, {0: known["B"], len("BH"): 0})
        for port in plan.constants:
            found[port.name] = _filled(port, {})
        return found

    def _tokens(self) -> dict[str, int]:
        """The size of each letter."""
        plan, sizes = self.plan, self.plan.sizes
        lead = plan.tensors[plan.lead : plan.lead + 1]
        others = [port for at, port in enumerate(plan.tensors) if at != plan.lead]
        batch = self._common("B", plan.tensors, sizes.batch)
        query = self._common("L", lead, sizes.query_length)
        key = self._common("L", others, sizes.key_length) if others else query
        heads = self._width("H")
        known = {"B": batch, "Q": query, "K": key, "H": heads, "F": batch * heads, "1": 1}
        return known | {letter: self._width(letter) for letter in "DE"}

    def _common(self, letter: str, ports: Sequence[Port], usual: int) -> int:
        """The one size of an axis of several inputs."""
        if letter not in self.plan.layout:
            return usual
        at = self.plan.layout.index(letter)
        fixed = {size for port in ports if isinstance(size := _axis(port, at), int)}
        if len(fixed) > 1:
            raise _ContradictionError
        return fixed.pop() if fixed else usual

    def _width(self, letter: str) -> int:
        """A size for axes of heads or channels that the file leaves open: that of another input."""
        usual = self.plan.sizes.heads if letter == "H" else self.plan.sizes.width
        if letter not in self.plan.layout:
            return usual
        at = self.plan.layout.index(letter)
        fixed = [size for port in self.plan.tensors if isinstance(size := _axis(port, at), int)]
        return fixed[0] if fixed else usual

    def _fitted(
        self, port: Port, axes: str, known: Mapping[str, int], *, strict: bool = False
    ) -> tuple[int, ...]:
        """The shape of one input.

        ``strict``: sizes that the file fixes must be those of the letters, but for heads.
        """
        shape: list[int] = []
        for at, letter in enumerate(axes):
            size, wanted = _axis(port, at), known[letter]
            if isinstance(size, int):
                free = letter == "H" or (letter == "F" and size % known["B"] == 0)
                if strict and size != wanted and not (free and size > 1):
                    raise _ContradictionError
            elif isinstance(size, str) and self.symbols.setdefault(size, wanted) != wanted:
                raise _ContradictionError
            shape.append(size if isinstance(size, int) else wanted)
        return tuple(shape)


def _filled(port: Port, known: Mapping[int, int]) -> tuple[int, ...]:
    """The shape of an input of which some axes are known, the other open ones being 1."""
    return tuple(
        size if isinstance(size, int) else known.get(at, 1)
        for at, size in enumerate(port.shape or ())
    )


def _axis(port: Port, at: int) -> int | str | None:
    return None if port.shape is None else port.shape[at]


def plans(header: Header, told: Told, sizes: Sizes) -> Iterator[Plan]:
    """Every plan for a graph at some sizes, the likely ones first."""
    floats = [port for port in header.inputs if _may_be_tensor(port, told)]
    for count in (3, 2, 1):
        for tensors in sorted(itertools.combinations(floats, count), key=_unlikely):
            rest = [port for port in header.inputs if port not in tensors]
            yield from _with_tensors(tensors, rest, told, sizes)


def _may_be_tensor(port: Port, told: Told) -> bool:
    role = told.inputs.get(port.name, {}).get("role")
    if role is not None:
        return role in TENSORS
    return port.dtype in FLOATS and (port.rank is None or port.rank in LAYOUTS)


def _unlikely(tensors: Sequence[Port]) -> int:
    """How many of some tensors are called otherwise, or are of another rank than the first."""
    odd = sum(
        names.suggests(port.name, "mask") or names.suggests(port.name, "past") for port in tensors
    )
    return odd + sum(port.rank != tensors[0].rank for port in tensors)


def _with_tensors(
    tensors: tuple[Port, ...], rest: Sequence[Port], told: Told, sizes: Sizes
) -> Iterator[Plan]:
    ranks = {port.rank for port in tensors} - {None}
    if len(ranks) > 1:
        return
    layouts = LAYOUTS[ranks.pop()] if ranks else LAYOUTS[3]  # type: ignore[index]
    constants = tuple(port for port in rest if _is_constant(port, told))
    pasts = tuple(port for port in rest if port not in constants and _is_past(port, told))
    masks = [port for port in rest if port not in constants and port not in pasts]
    for layout in layouts:
        if any(_told_axes(port, told, layout) != layout for port in tensors):
            continue
        choices = [_mask_axes(port, told) for port in masks]
        for axes in itertools.product(*choices):
            yield Plan(
                tensors=tensors,
                layout=layout,
                lead=_lead(tensors, told),
                masks=tuple(zip(masks, axes, strict=True)),
                pasts=pasts,
                constants=constants,
                sizes=sizes,
            )


def _told_axes(port: Port, told: Told, layout: str) -> str:
    axes = str(told.inputs.get(port.name, {}).get("axes", layout))
    return axes.replace("M", "E").replace("F", "B").replace("D", "E" if "H" not in axes else "D")


def _is_constant(port: Port, told: Told) -> bool:
    role = told.inputs.get(port.name, {}).get("role")
    return role == "constant" if role else port.rank == 0 or port.shape == (1,)


def _is_past(port: Port, told: Told) -> bool:
    role = told.inputs.get(port.name, {}).get("role")
    if role is not None:
        return role in PASTS
    return port.dtype in FLOATS and port.rank == len("BHLD") and names.suggests(port.name, "past")


def _lead(tensors: Sequence[Port], told: Told) -> int:
    """The input that is given the query length: told, else called so, else the first."""
    roles = [told.inputs.get(port.name, {}).get("role") for port in tensors]
    if "query" in roles:
        return roles.index("query")
    called = [names.suggests(port.name, "query") for port in tensors]
    return called.index(True) if any(called) else 0


def _mask_axes(port: Port, told: Told) -> tuple[str, ...]:
    """The letters that the axes of a mask may have, the likely ones first."""
    axes = told.inputs.get(port.name, {}).get("axes")
    if axes:
        return (str(axes),)
    if port.rank is None:
        return tuple(itertools.chain(*_MASKS.values()))
    choices = _MASKS.get(port.rank, ())
    if port.dtype not in INTEGERS:
        choices = tuple(axes for axes in choices if "K" in axes)
    elif names.suggests_lengths(port.name):
        choices = tuple(sorted(choices, key=lambda axes: "K" in axes))
    if names.suggests_drop(port.name):  # padding is a matter of items
        choices = tuple(sorted(choices, key=lambda axes: "B" not in axes))
    return choices
