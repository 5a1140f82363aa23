"""The sizes of one problem, and how a declaration pins them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, Final

from ..errors import DeclarationError, did_you_mean
from .printable_text import name_of, raised_text
from .results import Replaceable


@dataclass(frozen=True, kw_only=True)
class Geometry(Replaceable):
    """Every size of one problem.

    Cores use the first seven; ``query_size``, ``key_size`` and ``value_size`` are the widths of a
    layer's inputs and ``output_size`` that of its output.
    """

    batch: int
    num_heads: int
    num_kv_heads: int
    query_length: int
    key_length: int
    head_size: int
    value_head_size: int
    query_size: int
    key_size: int
    value_size: int
    output_size: int

    @property
    def logits(self) -> int:
        """How many logits there are: one for each item, head, query and key."""
        return self.batch * self.num_heads * self.query_length * self.key_length

    @property
    def numbers(self) -> int:
        """How many numbers its largest tensor holds, logits and matrices left out."""
        heads = max(self.head_size, self.value_head_size)
        queries = max(self.num_heads * heads, self.query_size, self.output_size)
        keys = max(self.num_kv_heads * heads, self.key_size, self.value_size)
        return self.batch * max(self.query_length * queries, self.key_length * keys)


# The largest size that a multiple of a small number is drawn from.
_LARGEST_MULTIPLE: Final = 64
_MOST_NUMBERS: Final = 1 << 28  # two gibibytes in float64, of which a problem needs some
_POSSIBLE: Final = "every size is a positive integer, and num_heads a multiple of num_kv_heads"
FIELDS: Final = tuple(field.name for field in dataclasses.fields(Geometry))
# The sizes of a call; the remaining sizes are the candidate's.
COUNTED: Final = ("batch", "query_length", "key_length")
LENGTHS: Final = ("query_length", "key_length")
# The geometry that shows which sizes a candidate's own geometry function decides.
PROBE = Geometry(
    batch=2,
    num_heads=2,
    num_kv_heads=2,
    query_length=5,
    key_length=7,
    head_size=4,
    value_head_size=4,
    query_size=8,
    key_size=8,
    value_size=8,
    output_size=8,
)

Pin = int | Sequence[int] | str
GeometryRule = Mapping[str, Pin] | Callable[[Geometry], Geometry]


@dataclass(frozen=True)
class Pins:
    """The pins of a candidate: allowed sizes, fields that equal another, and a builder."""

    sizes: Mapping[str, tuple[int, ...]]
    equal_to: Mapping[str, str]
    build: Callable[[Geometry], Geometry] | None

    @cached_property
    def ties(self) -> tuple[tuple[str, str], ...]:
        """The pairs of fields of equal size, the field that the other follows first."""
        return tuple((other, name) for name, other in self.equal_to.items())

    def lead(self, group: tuple[str, ...]) -> str:
        """The field whose size a group of equal size takes: a pinned field, or the first."""
        return next((name for name in group if name in self.sizes), group[0])

    def allowed(self, group: tuple[str, ...]) -> tuple[int, ...] | None:
        """The sizes left to a group of fields of equal size; None without a pinned field."""
        pinned = [self.sizes[name] for name in group if name in self.sizes]
        if not pinned:
            return None
        return tuple(size for size in pinned[0] if all(size in others for others in pinned[1:]))

    def apply(self, geometry: Geometry) -> Geometry:
        """The nearest geometry that obeys the pins: equal sizes first, then the builder."""
        sizes: dict[str, int] = {}
        for group in grouped(self.ties):
            wanted = getattr(geometry, self.lead(group))
            sizes |= dict.fromkeys(group, nearest_size(wanted, self.allowed(group)))
        geometry = geometry.replace(**sizes)
        return geometry if self.build is None else self.build(geometry)

    def obeyed(self, geometry: Geometry, names: Collection[str]) -> bool:
        """Whether the named sizes of a geometry obey their pins and equalities.

        The builder is not called.
        """
        return all(
            getattr(geometry, name) in sizes for name, sizes in self.sizes.items() if name in names
        ) and all(
            getattr(geometry, name) == getattr(geometry, other)
            for name, other in self.ties
            if name in names and other in names
        )

    def admit_lengths(self, geometry: Geometry) -> bool:
        """Whether the pins leave a geometry's batch and lengths unchanged."""
        pinned = self.apply(geometry)
        return all(getattr(pinned, name) == getattr(geometry, name) for name in COUNTED)

    @cached_property  # every problem needs it
    def ties_lengths(self) -> bool:
        """Whether they leave query and key no two lengths."""
        groups = [group for group in grouped(self.ties) if set(group) & set(LENGTHS)]
        if len({size for group in groups for size in self.allowed(group) or (1, 2)}) == 1:
            return True
        if len(groups) == 1:
            return True
        if self.build is None:
            return False
        lengths = ((5, 7), (7, 5))
        built = [self.build(PROBE.replace(query_length=q, key_length=k)) for q, k in lengths]
        return all(geometry.query_length == geometry.key_length for geometry in built)


NO_PINS: Final = Pins({}, {}, None)


@lru_cache(maxsize=1024)  # the same few ties come back for every problem
def grouped(ties: tuple[tuple[str, str], ...]) -> tuple[tuple[str, ...], ...]:
    """The fields of a geometry in groups of equal size, the field that others follow first."""
    groups: dict[str, tuple[str, ...]] = {name: (name,) for name in FIELDS}
    for name, other in ties:
        merged = tuple(dict.fromkeys((*groups[name], *groups[other])))
        groups |= dict.fromkeys(merged, merged)
    return tuple(dict.fromkeys(groups.values()))


def nearest_size(wanted: int, allowed: Sequence[int] | None, least: int = 1) -> int:
    """The nearest of the allowed sizes (None: all) not below ``least``, if any."""
    if not allowed:
        return max(wanted, least)
    if isinstance(allowed, range):  # all up to a longest, which may be millions
        return min(max(wanted, least if least in allowed else allowed[0]), allowed[-1])
    enough = [size for size in allowed if size >= least] or allowed
    return min(enough, key=lambda size: (abs(size - wanted), size))


def multiple_of(number: int) -> tuple[int, ...]:
    """The sizes of a ``geometry=`` for multiples of a number alone, up to 64 or thrice the number.

    Raises DeclarationError for what is no positive whole number.
    """
    if type(number) is not int or number < 1:
        msg = f"multiple_of is given {number!r}: give a positive whole number"
        raise DeclarationError(msg)
    return tuple(range(number, max(_LARGEST_MULTIPLE, 3 * number) + 1, number))


def read_pins(rule: GeometryRule | None) -> Pins:
    """Read a declaration's ``geometry=``; raises DeclarationError for what cannot be a size."""
    if rule is None:
        return NO_PINS
    if callable(rule):
        return _askable(Pins({}, {}, _checked(rule)))
    if not isinstance(rule, Mapping):
        msg = f"geometry is {rule!r}: give a dict of field to size, or a callable"
        raise DeclarationError(msg)
    sizes: dict[str, tuple[int, ...]] = {}
    equal_to: dict[str, str] = {}
    for name, pin in rule.items():
        _check_field(name)
        if isinstance(pin, str):
            _check_field(pin)
            equal_to[name] = pin
        else:
            sizes[name] = _read_sizes(name, pin)
    return _askable(possible(Pins(sizes, equal_to, None)))


def _askable(pins: Pins) -> Pins:
    """The pins; raises DeclarationError where a small problem has tensors that take minutes."""
    numbers = pins.apply(PROBE).numbers
    if numbers > _MOST_NUMBERS:
        msg = (
            f"geometry pins sizes with which a tensor of a small problem holds {numbers:,} "
            f"numbers: no more than {_MOST_NUMBERS:,} can be judged"
        )
        raise DeclarationError(msg)
    return pins


def possible(pins: Pins) -> Pins:
    """The pins; raises DeclarationError if no geometry obeys the pins."""
    groups = {name: group for group in grouped(pins.ties) for name in group}
    for group in groups.values():
        if pins.allowed(group) == ():
            first, *_, other = (name for name in group if name in pins.sizes)
            msg = (
                f"geometry pins {first} to {list(pins.sizes[first])} and {other} to "
                f"{list(pins.sizes[other])}, which are to be one size"
            )
            raise DeclarationError(msg)
    heads, kv_heads = (pins.allowed(groups[name]) for name in ("num_heads", "num_kv_heads"))
    if heads and kv_heads and all(n % k for n in heads for k in kv_heads):
        msg = (
            f"geometry pins num_heads to {list(heads)} and num_kv_heads to {list(kv_heads)}: heads "
            "share key/value heads evenly, so that one must be a multiple of the other"
        )
        raise DeclarationError(msg)
    return pins


def why_impossible(geometry: Geometry) -> str:
    """The reason why no tensors have these sizes, such as "its head_size is 0", or ""."""
    for name in FIELDS:
        size, least = getattr(geometry, name), 0 if name in COUNTED else 1
        if type(size) is not int or size < least:
            return f"its {name} is {size!r:.60}"
    heads, kv_heads = geometry.num_heads, geometry.num_kv_heads
    return f"{heads} heads share {kv_heads} key heads" if heads % kv_heads else ""


def _checked(build: Callable[[Geometry], Geometry]) -> Callable[[Geometry], Geometry]:
    """A user's function whose calls raise DeclarationError for a result that is no geometry.

    The function is called once here: a wrong function is reported at its declaration.
    """

    def checked(geometry: Geometry) -> Geometry:
        try:
            built = build(geometry)
        except Exception as error:
            msg = f"geometry is a function that {raised_text(error)}"
            raise DeclarationError(msg) from error
        if not isinstance(built, Geometry):
            name = name_of(built)
            msg = f"geometry is a function that returned a {name}: it must return a Geometry"
            raise DeclarationError(msg)
        why = why_impossible(built)
        if why:
            msg = f"geometry is a function that returned a Geometry, but {why}: {_POSSIBLE}"
            raise DeclarationError(msg)
        return built

    checked(Geometry(**dict.fromkeys(FIELDS, 2)))
    return checked


def _check_field(name: object) -> None:
    if name not in FIELDS:
        msg = f"geometry has no field {name!r}{did_you_mean(str(name), FIELDS)}"
        raise DeclarationError(msg)


def _read_sizes(name: str, pin: int | Sequence[int]) -> tuple[int, ...]:
    single = isinstance(pin, bytes) or not isinstance(pin, Sequence)
    sizes: tuple[Any, ...] = (pin,) if single else tuple(pin)  # type: ignore[arg-type]  # as just seen
    smallest = 1
    good = sizes and all(isinstance(size, int) and size >= smallest for size in sizes)
    if not good or any(isinstance(size, bool) for size in sizes):
        msg = f"geometry pins {name!r} to {pin!r}: give a positive integer or a list of them"
        raise DeclarationError(msg)
    return sizes
