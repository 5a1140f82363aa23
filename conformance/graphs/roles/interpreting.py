"""The first call that makes sense: which inputs are its tensors, and what they are."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from ...errors import UsageError
from ..header import Header
from ..sidecar import Told
from .assigning import Assignment, assign, followed
from .first_call import Start, read_hints, starts
from .probe import Probe, Traits, traits

# Calls that run and are probed before the best of them is taken.
_MOST_STARTS: Final = 12


@dataclass(frozen=True, kw_only=True)
class Interpretation:
    """A call that runs and what its tensors are taken for."""

    start: Start
    seen: Mapping[str, Traits]
    assignment: Assignment

    @property
    def clean(self) -> bool:
        """Whether all that was seen fits an attention."""
        return self.in_place and self.assignment.clean and self.start.bent > 0.0 and self.tells

    @property
    def likely(self) -> bool:
        """Whether nearly all fits, and positions are kept."""
        return self.in_place and self.tells and self.assignment.nearly

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
    def tells(self) -> bool:
        """Whether some tensor has several positions: one alone fits every role."""
        length = self.assignment.length_axis
        return any(not seen.open[length] for seen in self.seen.values())

    @property
    def rank(self) -> tuple[bool, bool, bool, int, int]:
        """What makes one better than another."""
        failed = self.assignment.asked - self.assignment.passed
        named = self.assignment.named
        return (self.clean, self.fits, self.tells, self.assignment.passed - 2 * failed, named)


def interpret(header: Header, probe: Probe, told: Told) -> Interpretation:
    """The best reading of the first calls that run; raises UsageError when none does."""
    best: Interpretation | None = None
    hints = read_hints(header)
    for frozen_too in (False, True):
        if best is None or not (best.fits and best.tells):
            some = starts(header, probe, told, hints, frozen_too=frozen_too)
            best = _best_of(some, told, best, enough=frozen_too)
    if best is None:
        raise UsageError(_unheard(header, probe))
    return best


def _best_of(
    some: Iterator[Start], told: Told, best: Interpretation | None, *, enough: bool
) -> Interpretation | None:
    """The best interpretation of the first calls, ``best`` among them.

    ``enough``: the first that is likely will do, as one of sizes that are hard to find.
    """
    read = 0
    for start in some:
        if best is not None and not _keeps_positions(start):
            continue  # it ran, but at sizes that it silently computes something else at
        found = _interpreted(start, told)
        read += 1
        if best is None or found.rank > best.rank:
            best = found
        if best.clean or read >= _MOST_STARTS or (enough and best.likely):
            break
    return best


def _interpreted(start: Start, told: Told) -> Interpretation:
    ports = start.plan.tensors
    seen = {port.name: traits(start.base, port.name) for port in ports}
    follows = followed(start)
    return Interpretation(start=start, seen=seen, assignment=assign(ports, seen, follows, told))


def same_positions(query: tuple[int, ...], answer: tuple[int, ...], layout: str) -> bool:
    """Whether an answer has every axis of a query but the last, heads perhaps packed into it."""
    if len(query) == len(answer):
        return sorted(query[:-1]) == sorted(answer[:-1])
    packed = [size for letter, size in zip(layout, query, strict=True) if letter in "BL"]
    return "H" in layout and sorted(packed) == sorted(answer[:-1])


def _keeps_positions(start: Start) -> bool:
    """Whether the sizes of some tensor's outer axes are those of the answer's."""
    answer = start.base.answer.shape
    shapes = (start.base.feeds[port.name].shape for port in start.plan.tensors)
    return any(same_positions(shape, answer, start.plan.layout) for shape in shapes)


def _unheard(header: Header, probe: Probe) -> str:
    """Why there is no reading of a graph of which no call runs."""
    if not probe.refusals:
        shapes = ", ".join(f"{port.name} {_shown(port.shape)}" for port in header.inputs)
        return (
            f"{header.path}: its inputs ({shapes}) cannot be those of an attention: it takes one, "
            f"two or three tensors [B, L, E] or [L, E], or three [B, H, L, D]; {remedy(header)}"
        )
    last = probe.refusals[-1].splitlines()[0]
    return (
        f"{header.path}: the runtime refused every one of {probe.runs} calls with inputs of an "
        f"attention, the last with: {last}; {remedy(header)}"
    )


def _shown(shape: tuple[int | str | None, ...] | None) -> str:
    if shape is None:
        return "of unknown rank"
    return "[" + ", ".join("?" if axis is None else str(axis) for axis in shape) + "]"


def remedy(header: Header) -> str:
    """How to say what a graph is."""
    return (
        f"if it is one, say so in {header.path.stem}.conformance.toml beside it: [inputs.NAME] "
        'role = "query"'
    )
