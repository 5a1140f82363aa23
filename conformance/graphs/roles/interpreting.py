"""The first call that makes sense: the tensors among the inputs, and their roles."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from ...errors import UsageError
from ..reading import Header, Port, items_axis, suggests
from ..sidecar import GraphDeclaration
from .first_call import FirstCall, read_hints, starts
from .plans import AXIS_ORDERS, ROLES
from .probe import BaseCall, GraphProbe, Traits, read_traits

Followed = Mapping[tuple[str, int], bool | None]


def followed(start: FirstCall) -> Followed:
    """Tell by tensor and axis whether the answer has this tensor's size and not the others'.

    None if undecidable: sizes are equal, and other sizes are refused.
    """
    result: dict[tuple[str, int], bool | None] = {}
    base = start.base
    names = [port.name for port in start.plan.tensors]
    for axis, letter in enumerate(start.plan.layout):
        if letter in "BL":
            for name in names:
                result[name, axis] = _by_shape(base, names, name, axis)
                if result[name, axis] is None and len(names) > 1:
                    result[name, axis] = _by_growth(base, name, axis)
    return result


def _by_shape(base: BaseCall, names: list[str], name: str, axis: int) -> bool | None:
    """Tell whether the answer has a tensor's size, given sizes that differ between tensors."""
    sizes = {tensor: base.feeds[tensor].shape[axis] for tensor in names}
    if len(set(sizes.values())) == 1:
        return None
    outer = base.answer.shape[:-1]
    counted = [size for size in sizes.values() if size in outer]
    if len(set(counted)) != 1:
        return None
    return sizes[name] in outer


def _by_growth(base: BaseCall, name: str, axis: int) -> bool | None:
    """Tell whether the answer grows with one tensor alone, if the graph accepts this."""
    values = base.feeds[name]
    longer = np.concatenate([values, values.take([0], axis)], axis=axis)
    answer = base.evaluate({name: longer})
    if answer is None or answer.ndim != base.answer.ndim:
        return None
    size = values.shape[axis]
    before, after = (each.shape[:-1].count(size + 1) for each in (base.answer, answer))
    return bool(after > before)


# The share of contradicting facts, one in this many, tolerated for query, key and value.
_NEARLY: Final = 4
MODES: Final = {1: "self", 2: "memory", 3: "separate"}


@dataclass(frozen=True, kw_only=True)
class RoleAssignment:
    """Roles of the tensors and the order of their axes.

    fitting, facts: the supporting evidence and all evidence.
    named: the number of names in agreement.
    """

    roles: Mapping[str, str]
    layout: str
    fitting: int
    facts: int
    named: int
    declared: bool

    @property
    def clean(self) -> bool:
        """Whether no fact contradicts the assignment."""
        return self.fitting == self.facts

    @property
    def nearly(self) -> bool:
        """Whether at most one fact in four contradicts the assignment."""
        return _NEARLY * self.fitting >= (_NEARLY - 1) * self.facts

    def of(self, role: str) -> str:
        """Return the name of the input of a role; raises StopIteration without one."""
        return next(name for name, result in self.roles.items() if result == role)

    @property
    def first(self) -> str:
        """The name of the query, or of the one input."""
        return next(iter(n for n, role in self.roles.items() if role in ("query", "x")))

    @property
    def attended(self) -> tuple[str, ...]:
        """The inputs whose positions are the keys'."""
        return tuple(n for n, role in self.roles.items() if role != "query")

    @property
    def length_axis(self) -> int:
        """The axis of the positions."""
        return self.layout.index("L")


def assign(
    tensors: Sequence[Port],
    traits: Mapping[str, Traits],
    follows: Followed,
    declared: GraphDeclaration,
) -> RoleAssignment:
    """The best assignment: by evidence, then by names, then by the order of the inputs.

    Where everything contradicts the evidence, names decide if they name every role.
    """
    options = list(_options(tensors, traits, follows, declared))
    best = max(options, key=lambda option: (option.fitting, option.named))
    named = [option for option in options if option.named == len(tensors)]
    if best.clean or not named or len({tuple(option.roles.items()) for option in named}) > 1:
        return best
    return max(named, key=lambda option: option.fitting)


def _options(
    tensors: Sequence[Port],
    traits: Mapping[str, Traits],
    follows: Followed,
    declared: GraphDeclaration,
) -> Iterator[RoleAssignment]:
    """Yield every assignment the declaration admits, the graph's order first."""
    rank = len(traits[tensors[0].name].local)
    said = {port.name: declared.inputs.get(port.name, {}) for port in tensors}
    layouts = _named_layouts(tensors, rank)
    if any("axes" in entry for entry in said.values()):
        layouts = AXIS_ORDERS[rank]
    for order in itertools.permutations(ROLES[len(tensors)]):
        roles = dict(zip((port.name for port in tensors), order, strict=True))
        if any(said[name].get("role", role) != role for name, role in roles.items()):
            continue
        for layout in layouts:
            orders = (str(entry.get("axes", layout)).replace("F", "B") for entry in said.values())
            if any(axes.find(letter) != layout.find(letter) for axes in orders for letter in "BL"):
                continue  # items or positions are declared elsewhere
            checks = [
                check for name in roles for check in _evidence(roles[name], traits[name], layout)
            ]
            checks += [  # whether the answer is as long as the query, where something says so
                (3, follow == (role == "query"))
                for name, role in roles.items()
                if role != "x" and (follow := follows.get((name, layout.index("L")))) is not None
            ]
            yield RoleAssignment(
                roles=roles,
                layout=layout,
                fitting=sum(weight for weight, fits in checks if fits),
                facts=sum(weight for weight, _ in checks),
                named=sum(suggests(name, role) for name, role in roles.items()),
                declared=all("role" in entry for entry in said.values()),
            )


def _named_layouts(tensors: Sequence[Port], rank: int) -> tuple[str, ...]:
    """Return the axis orders compatible with the file's names of axes.

    An axis called batch promises items, even where the graph mixes them: a mistake to report, for
    example a module expecting positions first, exported with items first.
    """
    named = {at for port in tensors for at, axis in enumerate(port.shape or ()) if items_axis(axis)}
    fitting = tuple(layout for layout in AXIS_ORDERS[rank] if {layout.find("B")} == named)
    return fitting or AXIS_ORDERS[rank]


def _evidence(role: str, traits: Traits, layout: str) -> Iterator[tuple[int, bool]]:
    if not traits.matters:
        return
    length = layout.index("L")
    for letter in "BH":
        at = layout.find(letter)
        if at >= 0 and not traits.open[at]:
            yield 1, traits.local[at] is not None
    if role == "query":
        if not traits.open[length]:
            yield 2, traits.local[length] is not None
        yield 1, not traits.affine
        return
    if not traits.open[length]:
        yield 2, traits.local[length] is None
    if role == "key":
        yield 2, traits.shift[length]
        yield 1, not traits.affine
    elif role == "value":
        yield 2, traits.affine
        yield 1, not traits.shift[length]
    else:
        yield 1, not traits.affine
        yield 1, not traits.shift[length]


# Calls that run and are probed before the best is taken.
_MOST_STARTS: Final = 12


@dataclass(frozen=True, kw_only=True)
class Interpretation:
    """A call that runs, and the roles of its tensors."""

    start: FirstCall
    traits: Mapping[str, Traits]
    assignment: RoleAssignment

    @property
    def clean(self) -> bool:
        """Whether all that was observed fits an attention."""
        return (
            self.in_place and self.assignment.clean and self.start.bent > 0.0 and self.is_conclusive
        )

    @property
    def likely(self) -> bool:
        """Whether nearly all fits, and positions are kept."""
        return self.in_place and self.is_conclusive and self.assignment.nearly

    @property
    def in_place(self) -> bool:
        """Whether the answer has the query's axes in the query's order, heads perhaps packed."""
        base = self.start.base
        same = base.feeds[self.assignment.first].shape[:-1] == base.answer.shape[:-1]
        return same or ("H" in self.assignment.layout and self.fits)

    @property
    def fits(self) -> bool:
        """Whether the answer has the items and the positions of the query."""
        query = self.start.base.feeds[self.assignment.first].shape
        return same_positions(query, self.start.base.answer.shape, self.assignment.layout)

    @property
    def is_conclusive(self) -> bool:
        """Whether a tensor has several positions: a single one fits every role."""
        length = self.assignment.length_axis
        return any(not traits.open[length] for traits in self.traits.values())

    @property
    def rank(self) -> tuple[bool, bool, bool, int, int]:
        """The sort key of interpretations, the best highest."""
        failed = self.assignment.facts - self.assignment.fitting
        named = self.assignment.named
        return (
            self.clean,
            self.fits,
            self.is_conclusive,
            self.assignment.fitting - 2 * failed,
            named,
        )


def interpret(probe: GraphProbe) -> Interpretation:
    """The best reading of the first calls that run; raises UsageError when none does."""
    best: Interpretation | None = None
    hints = read_hints(probe.header)
    for frozen_too in (False, True):
        if best is None or not (best.fits and best.is_conclusive):
            some = starts(probe, hints, frozen_too=frozen_too)
            best = _best_of(some, best, enough=frozen_too)
    if best is None:
        raise UsageError(_why_unreadable(probe))
    return best


def _best_of(
    some: Iterator[FirstCall], best: Interpretation | None, *, enough: bool
) -> Interpretation | None:
    """Return the best interpretation of the first calls and ``best``.

    ``enough``: stop at a likely interpretation, for sizes that are hard to find.
    """
    read = 0
    for start in some:
        if best is not None and not _keeps_positions(start):
            continue  # it ran, but at sizes that it silently computes something else at
        result = _interpreted(start)
        read += 1
        if best is None or result.rank > best.rank:
            best = result
        if best.clean or read >= _MOST_STARTS or (enough and best.likely):
            break
    return best


def _interpreted(start: FirstCall) -> Interpretation:
    ports = start.plan.tensors
    traits = {port.name: read_traits(start.base, port.name) for port in ports}
    return Interpretation(
        start=start,
        traits=traits,
        assignment=assign(ports, traits, followed(start), start.base.probe.declared),
    )


def same_positions(query: tuple[int, ...], answer: tuple[int, ...], layout: str) -> bool:
    """Whether an answer has every axis of a query but the last, heads perhaps packed into it."""
    if len(query) == len(answer):
        return sorted(query[:-1]) == sorted(answer[:-1])
    packed = [size for letter, size in zip(layout, query, strict=True) if letter in "BL"]
    return "H" in layout and sorted(packed) == sorted(answer[:-1])


def _keeps_positions(start: FirstCall) -> bool:
    """Tell whether a tensor's outer axes have the answer's sizes."""
    answer = start.base.answer.shape
    shapes = (start.base.feeds[port.name].shape for port in start.plan.tensors)
    return any(same_positions(shape, answer, start.plan.layout) for shape in shapes)


def _why_unreadable(probe: GraphProbe) -> str:
    header = probe.header
    if not probe.refusals:
        axes = {
            port.name: "of unknown rank"
            if port.shape is None
            else f"[{', '.join('?' if axis is None else str(axis) for axis in port.shape)}]"
            for port in header.inputs
        }
        shapes = ", ".join(f"{name} {text}" for name, text in axes.items())
        return (
            f"{header.path}: its inputs ({shapes}) cannot be those of an attention: it takes one, "
            f"two or three tensors [B, L, E] or [L, E], or three [B, H, L, D]; {remedy(header)}"
        )
    last = probe.refusals[-1].splitlines()[0]
    return (
        f"{header.path}: the runtime refused every one of {probe.runs} calls with inputs of an "
        f"attention, the last with: {last}; {remedy(header)}"
    )


def remedy(header: Header) -> str:
    """How to say what a graph is."""
    return (
        f"if it is one, say so in {header.path.stem}.conformance.toml beside it: [inputs.NAME] "
        'role = "query"'
    )
