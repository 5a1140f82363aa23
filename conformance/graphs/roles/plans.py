"""Possible roles of a graph's inputs, with sizes to try them at."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from ...errors import UsageError
from ..reading import Header, Port, suggests, suggests_drop, suggests_lengths
from ..sidecar import GraphDeclaration

# Primes that are no usual number of heads: a wrong reshape is refused, and axes are told apart.
BATCH: Final = 3
LENGTH: Final = 5
HEADS: Final = 2
WIDTH: Final = 8
USUAL_HEADS: Final = (HEADS, 1, 4, 8, 3, 6, 12, 16, 5, 7, 32)
_BRUTE_BATCH: Final = 9
_BRUTE_LENGTH: Final = 17


@dataclass(frozen=True, kw_only=True)
class CallSizes:
    """Sizes for dynamic axes; ``heads`` is for axes of heads without a fixed size."""

    batch: int = BATCH
    query_length: int = LENGTH
    key_length: int = LENGTH
    heads: int = HEADS
    width: int = WIDTH


def usual(widths: Sequence[int]) -> Iterator[CallSizes]:
    """Yield sizes for graphs with dynamic axes: usual ones, further head counts, widths."""
    for heads in USUAL_HEADS:
        yield CallSizes(heads=heads)
    for width in dict.fromkeys(widths):
        yield CallSizes(width=width)


def frozen(counts: Sequence[int]) -> Iterator[CallSizes]:
    """Yield sizes a graph may be frozen at: likely numbers first, then every small size."""
    return iter(dict.fromkeys(_frozen(counts)))


def _frozen(counts: Sequence[int]) -> Iterator[CallSizes]:
    likely = list(dict.fromkeys((BATCH, *counts, 1, 2)))
    lengths = list(dict.fromkeys((LENGTH, *counts, 2, 4)))
    for batch, length in itertools.product(likely, lengths):
        yield CallSizes(batch=batch, query_length=length, key_length=length)
    for query, key, batch in itertools.product(lengths, lengths, likely):
        yield CallSizes(batch=batch, query_length=query, key_length=key)
    for batch in range(1, _BRUTE_BATCH):
        for length in range(1, _BRUTE_LENGTH):
            yield CallSizes(batch=batch, query_length=length, key_length=length)


LetterSizes = Mapping[str, int]


class ContradictionError(Exception):
    """The file contradicts a plan."""


def sizes_of_letters(
    tensors: Sequence[Port], layout: str, lead: int, sizes: CallSizes
) -> LetterSizes:
    """Return the size of each letter; raises ContradictionError."""
    others = [port for at, port in enumerate(tensors) if at != lead]
    batch = _common("B", tensors, layout, sizes.batch)
    query = _common("L", tensors[lead : lead + 1], layout, sizes.query_length)
    key = _common("L", others, layout, sizes.key_length) if others else query
    heads = _first("H", tensors, layout, sizes.heads)
    letter_sizes = {"B": batch, "Q": query, "K": key, "H": heads, "F": batch * heads, "1": 1}
    return letter_sizes | {letter: _first(letter, tensors, layout, sizes.width) for letter in "DE"}


def admits(port: Port, axes: str, letter_sizes: LetterSizes) -> bool:
    """Tell whether a mask's fixed sizes can be those of the letters."""
    try:
        fitted(port, axes, letter_sizes, {}, strict=True)
    except ContradictionError:
        return False
    return True


def fitted(
    port: Port,
    axes: str,
    letter_sizes: LetterSizes,
    symbols: dict[str, int],
    *,
    strict: bool = False,
) -> tuple[int, ...]:
    """Return the shape of one input; raises ContradictionError.

    symbols: the size of each named axis so far; extended.
    strict: fixed sizes must be those of the letters, except for heads.
    """
    shape: list[int] = []
    for at, letter in enumerate(axes):
        size, wanted = _axis(port, at), letter_sizes[letter]
        if isinstance(size, int):
            free = letter == "H" or (letter == "F" and size % letter_sizes["B"] == 0)
            if strict and size != wanted and not (free and size > 1):
                raise ContradictionError
        elif isinstance(size, str) and symbols.setdefault(size, wanted) != wanted:
            raise ContradictionError
        shape.append(size if isinstance(size, int) else wanted)
    return tuple(shape)


def filled(port: Port, sizes: Mapping[int, int]) -> tuple[int, ...]:
    """Return an input's shape with the given sizes of open axes by place; the rest is 1."""
    return tuple(
        size if isinstance(size, int) else sizes.get(at, 1)
        for at, size in enumerate(port.shape or ())
    )


def _common(letter: str, ports: Sequence[Port], layout: str, usual: int) -> int:
    """Return the one size of an axis of several inputs; raises ContradictionError."""
    fixed = set(_fixed(letter, ports, layout))
    if len(fixed) > 1:
        raise ContradictionError
    return fixed.pop() if fixed else usual


def _first(letter: str, ports: Sequence[Port], layout: str, usual: int) -> int:
    """Return a size for an open axis of heads or channels: another input's."""
    fixed = _fixed(letter, ports, layout)
    return fixed[0] if fixed else usual


def _fixed(letter: str, ports: Sequence[Port], layout: str) -> list[int]:
    if letter not in layout:
        return []
    at = layout.index(letter)
    return [size for port in ports if isinstance(size := _axis(port, at), int)]


def _axis(port: Port, at: int) -> int | str | None:
    return None if port.shape is None else port.shape[at]


Shapes = Mapping[str, tuple[int, ...]]
FLOATS: Final = frozenset({"float16", "float32", "float64", "bfloat16"})
INTEGERS: Final = frozenset({"int32", "int64", "int8", "uint8", "int16", "uint32", "uint64"})
# The roles of the tensors by their number.
ROLES: Final[dict[int, tuple[str, ...]]] = {
    1: ("x",),
    2: ("query", "context"),
    3: ("query", "key", "value"),
}
TENSORS: Final = frozenset(role for roles in ROLES.values() for role in roles)
PASTS: Final = frozenset({"past_key", "past_value"})
AXIS_ORDERS: Final[dict[int, tuple[str, ...]]] = {
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
class CallPlan:
    """A choice of tensors and masks among a graph's inputs, with axis orders and sizes.

    tensors: the float inputs carrying tokens or heads, in the graph's order, all in one ``layout``.
    lead: the index of the tensor with the query length.
    masks: inputs that may say who attends to whom, with the letters of their axes.
    pasts: caches, tried at length zero where the file allows it.
    constants: scalars and the like.
    """

    tensors: tuple[Port, ...]
    layout: str
    lead: int
    masks: tuple[tuple[Port, str], ...]
    pasts: tuple[Port, ...]
    constants: tuple[Port, ...]
    sizes: CallSizes

    @property
    def letters(self) -> dict[str, str]:
        """The letters of the axes by input name, for tensors and masks."""
        result = {port.name: self.layout for port in self.tensors}
        return result | {port.name: axes for port, axes in self.masks}

    def shapes(self) -> Shapes | None:
        """The shape of every input, None where the file contradicts this plan."""
        try:
            return self._shapes()
        except ContradictionError:
            return None

    def _shapes(self) -> Shapes:
        letter_sizes = sizes_of_letters(self.tensors, self.layout, self.lead, self.sizes)
        symbols: dict[str, int] = {}
        result: dict[str, tuple[int, ...]] = {}
        for at, port in enumerate(self.tensors):
            length = {"L": letter_sizes["Q" if at == self.lead else "K"]}
            result[port.name] = fitted(port, self.layout, {**letter_sizes, **length}, symbols)
        for port, axes in self.masks:
            result[port.name] = fitted(port, axes, letter_sizes, symbols, strict=True)
        for port in self.pasts:
            result[port.name] = filled(port, {0: letter_sizes["B"], len("BH"): 0})
        for port in self.constants:
            result[port.name] = filled(port, {})
        return result


def plans(
    header: Header, declared: GraphDeclaration, sizes: Iterable[CallSizes], *, likely: bool = False
) -> Iterator[CallPlan]:
    """Yield every plan for a graph at the given sizes, the likely ones first.

    ``likely``: only the likeliest inputs are taken for tensors. Raises UsageError for declared
    roles that no attention combines.
    """
    choices = _tensor_choices(header, declared)
    for size in sizes:
        for tensors in choices[:1] if likely else choices:
            yield from _with_tensors(tensors, header, declared, size)


def _tensor_choices(header: Header, declared: GraphDeclaration) -> list[tuple[Port, ...]]:
    """Return possible choices of tensors: first the most inputs without contrary names."""
    floats = [port for port in header.inputs if _may_be_tensor(port, declared)]
    choices = [
        tensors
        for count in (3, 2, 1)
        for tensors in itertools.combinations(floats, count)
        if _together(tensors)
    ]
    needed = [port for port in floats if declared.inputs.get(port.name, {}).get("role") in TENSORS]
    choices = [tensors for tensors in choices if all(port in tensors for port in needed)]
    roles = {port.name: str(declared.inputs[port.name]["role"]) for port in needed}
    fitting = [tensors for tensors in choices if _is_part(roles.values(), ROLES[len(tensors)])]
    if choices and not fitting:
        given = " and ".join(f"{name} the role {role}" for name, role in roles.items())
        sets = " or ".join(", ".join(some) for some in ROLES.values())
        where = declared.where or "the declaration"
        msg = (
            f"{where} gives {given}, which do not fit the inputs of {header.path.name}: together "
            f"they have the roles {sets}"
        )
        raise UsageError(msg)

    def unlikely(tensors: Sequence[Port]) -> int:
        """Count the tensors named as masks or caches; sorting then keeps more tensors first."""
        return sum(
            suggests(tensor.name, "mask") or suggests(tensor.name, "past") for tensor in tensors
        )

    return sorted(fitting, key=unlikely)


def _is_part(roles: Iterable[str], every: Sequence[str]) -> bool:
    return not Counter(roles) - Counter(every)


def _may_be_tensor(port: Port, declared: GraphDeclaration) -> bool:
    role = declared.inputs.get(port.name, {}).get("role")
    if role is not None:
        return role in TENSORS
    return port.dtype in FLOATS and (port.rank is None or port.rank in AXIS_ORDERS)


def _together(tensors: Sequence[Port]) -> bool:
    """Tell whether tensors have one rank; with an axis of heads only a core's three tensors."""
    ranks = {port.rank for port in tensors} - {None}
    return len(ranks) <= 1 and (len(tensors) == len("qkv") or len("BHLD") not in ranks)


def _with_tensors(
    tensors: tuple[Port, ...], header: Header, declared: GraphDeclaration, sizes: CallSizes
) -> Iterator[CallPlan]:
    rest = [port for port in header.inputs if port not in tensors]
    layouts = _layouts(tensors, declared, header)
    constants = tuple(port for port in rest if _is_constant(port, declared))
    pasts = tuple(port for port in rest if port not in constants and _is_past(port, declared))
    masks = [port for port in rest if port not in constants and port not in pasts]
    lead = _lead(tensors, declared)
    for layout in layouts:
        if any(_declared_axes(port, declared, layout) != layout for port in tensors):
            continue
        try:
            letter_sizes = sizes_of_letters(tensors, layout, lead, sizes)
        except ContradictionError:
            continue
        choices = [
            [axes for axes in mask_axes(port, declared) if admits(port, axes, letter_sizes)]
            for port in masks
        ]
        for axes in itertools.product(*choices):
            yield CallPlan(
                tensors=tensors,
                layout=layout,
                lead=lead,
                masks=tuple(zip(masks, axes, strict=True)),
                pasts=pasts,
                constants=constants,
                sizes=sizes,
            )


def _layouts(
    tensors: Sequence[Port], declared: GraphDeclaration, header: Header
) -> tuple[str, ...]:
    """Return the possible axis orders of the tensors.

    Without a rank in the file all are tried. The Attention operator kills its process on packed
    heads without their number (onnxruntime 1.31.1): separate heads come first.
    """
    said = [
        len(str(declared.inputs[p.name]["axes"]))
        for p in tensors
        if "axes" in declared.inputs.get(p.name, {})
    ]
    ranks = [*said, *(port.rank for port in tensors if port.rank is not None)]
    if ranks:
        return AXIS_ORDERS[ranks[0]]
    apart = AXIS_ORDERS[len("BHLD")] if len(tensors) == len("qkv") else ()
    packed = AXIS_ORDERS[len("BLE")] + AXIS_ORDERS[len("LE")]
    return apart + packed if "::Attention" in header.operators else packed + apart


def _declared_axes(port: Port, declared: GraphDeclaration, layout: str) -> str:
    axes = str(declared.inputs.get(port.name, {}).get("axes", layout))
    return axes.replace("M", "E").replace("F", "B").replace("D", "E" if "H" not in axes else "D")


def _is_constant(port: Port, declared: GraphDeclaration) -> bool:
    role = declared.inputs.get(port.name, {}).get("role")
    fixed = port.shape is None or all(isinstance(size, int) for size in port.shape)
    return role == "constant" and fixed if role else port.rank == 0 or port.shape == (1,)


def _is_past(port: Port, declared: GraphDeclaration) -> bool:
    role = declared.inputs.get(port.name, {}).get("role")
    if role is not None:
        return role in PASTS
    return port.dtype in FLOATS and port.rank == len("BHLD") and suggests(port.name, "past")


def _lead(tensors: Sequence[Port], declared: GraphDeclaration) -> int:
    """Return the index of the query: declared, else by name, else the first."""
    roles = [declared.inputs.get(port.name, {}).get("role") for port in tensors]
    if "query" in roles:
        return roles.index("query")
    called = [suggests(port.name, "query") for port in tensors]
    return called.index(True) if any(called) else 0


def mask_axes(port: Port, declared: GraphDeclaration | None = None) -> tuple[str, ...]:
    """Return the possible letters of a mask's axes, the likely ones first."""
    axes = declared.inputs.get(port.name, {}).get("axes") if declared else None
    if axes:
        return (str(axes),)
    if port.rank is None:
        return tuple(itertools.chain(*_MASKS.values()))
    choices = _MASKS.get(port.rank, ())
    if port.dtype not in INTEGERS:
        choices = tuple(axes for axes in choices if "K" in axes)
    elif suggests_lengths(port.name):
        choices = tuple(sorted(choices, key=lambda axes: "K" in axes))
    if suggests_drop(port.name):  # padding is a matter of items
        choices = tuple(sorted(choices, key=lambda axes: "B" not in axes))
    return choices
