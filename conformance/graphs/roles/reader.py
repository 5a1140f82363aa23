"""Reads a graph: finds a call that runs, then what each part of it is."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from ...errors import UsageError
from ..header import Header
from ..process import Array, Feeds
from ..reading import Reading, Role
from ..sidecar import check_told
from ..told import Told
from .assigning import MODES, Assignment, assign
from .basing import Start, starts
from .causality import always_causal
from .hints import read_hints
from .masks import read_masks
from .outputs import read_outputs
from .packing import read_packing
from .plans import FLOATS, LAYOUTS
from .probe import Probe
from .spans import read_spans
from .stretching import Stretch
from .traits import Traits, traits
from .widening import widened

# What a graph must hold to be an attention whose behaviour is wrong.
_ATTENTIVE: Final = frozenset(
    {"Softmax", "LogSoftmax", "Attention", "MultiHeadAttention", "GroupQueryAttention", "Exp"}
    | {"QAttention", "PackedMultiHeadAttention", "PackedAttention", "DecoderMaskedSelfAttention"}
)
_MOST_STARTS: Final = 12


@dataclass(frozen=True, kw_only=True)
class Interpretation:
    """A call that runs and what its tensors are taken for."""

    start: Start
    seen: Mapping[str, Traits]
    assignment: Assignment

    @property
    def fits(self) -> bool:
        """Whether the answer has the items and the positions of the query."""
        query = self.start.base.feeds[self.assignment.first].shape
        return _same_positions(query, self.start.base.answer.shape, self.assignment.layout)

    @property
    def rank(self) -> tuple[bool, bool, int, int]:
        """What makes one better than another."""
        fits = self.fits
        return (
            fits and self.assignment.clean and self.start.bent > 0.0,
            fits,
            self.assignment.passed - 2 * (self.assignment.asked - self.assignment.passed),
            self.assignment.named,
        )


def read_roles(header: Header, run: Callable[[Feeds], Mapping[str, Array]], told: Told) -> Reading:
    """What each input and output of a graph is; raises UsageError for what is no attention.

    ``run`` gives the outputs by name and raises GraphRefused; GraphLost goes through.
    """
    check_told(told, header)
    _check_ports(header)
    probe = Probe(header, run)
    found = _interpret(header, probe, told)
    _check_attention(header, found)
    found = replace(found, start=widened(found.start, found.assignment, told))
    packing = read_packing(found.start.base, found.start.plan, found.assignment, told)
    masks = read_masks(found.start, found.assignment, told, packing.output.axes)
    stretch = Stretch(found.start, found.assignment, masks.roles)
    spans = read_spans(found.start, found.assignment, told, masks.roles, stretch)
    causal, why_causal = always_causal(found.start.base, found.assignment, stretch)
    answers = probe.ask(found.start.base.feeds)
    outputs, about_outputs = read_outputs(header, told, answers or {}, packing.output, probe)
    return Reading(
        kind=packing.kind,
        mode=MODES[len(found.start.plan.tensors)],  # type: ignore[arg-type]
        inputs=_in_order(header, [*packing.tensors, *masks.roles, *spans.others]),
        outputs=outputs,
        pins={**packing.pins, **spans.pins},
        baked=spans.baked,
        causal=causal,
        assumptions=(
            *_about_tensors(found, told),
            *packing.assumptions,
            *masks.assumptions,
            *spans.assumptions,
            *why_causal,
            *about_outputs,
        ),
    )


def _same_positions(query: tuple[int, ...], answer: tuple[int, ...], layout: str) -> bool:
    """Whether an answer has every axis of a query but the last, heads perhaps packed into it."""
    if len(query) == len(answer):
        return sorted(query[:-1]) == sorted(answer[:-1])
    packed = [size for letter, size in zip(layout, query, strict=True) if letter in "BL"]
    return "H" in layout and sorted(packed) == sorted(answer[:-1])


def _in_order(header: Header, roles: list[Role]) -> tuple[Role, ...]:
    by_name = {role.name: role for role in roles}
    return tuple(by_name[port.name] for port in header.inputs if port.name in by_name)


def _interpret(header: Header, probe: Probe, told: Told) -> Interpretation:
    """The best reading of the first calls that run; raises UsageError when none does."""
    best: Interpretation | None = None
    read = 0
    for start in starts(header, probe, told, read_hints(header)):
        if best is not None and not _keeps_positions(start):
            continue  # it ran, but at sizes that it silently computes something else at
        seen = {port.name: traits(start.base, port.name) for port in start.plan.tensors}
        found = Interpretation(
            start=start, seen=seen, assignment=assign(start.plan.tensors, seen, told)
        )
        read += 1
        if best is None or found.rank > best.rank:
            best = found
        if best.rank[0] or read >= _MOST_STARTS:
            break
    if best is None:
        last = probe.refusals[-1].splitlines()[0] if probe.refusals else "no shape fits the file"
        msg = (
            f"{header.path}: none of {probe.runs} calls with inputs of attention ran (the last "
            f"one: {last}); say what the inputs are in {_sidecar(header)}"
        )
        raise UsageError(msg)
    return best


def _keeps_positions(start: Start) -> bool:
    """Whether the sizes of some tensor's outer axes are those of the answer's."""
    answer = start.base.answer.shape
    shapes = (start.base.feeds[port.name].shape for port in start.plan.tensors)
    return any(_same_positions(shape, answer, start.plan.layout) for shape in shapes)


def _sidecar(header: Header) -> str:
    return f'{header.path.stem}.conformance.toml, such as [inputs.NAME] role = "query"'


def _check_ports(header: Header) -> None:
    """Require a float input that can carry tokens and an output."""
    if not header.outputs:
        msg = f"{header.path}: a graph without outputs computes no attention"
        raise UsageError(msg)
    fitting = [p for p in header.inputs if p.dtype in FLOATS and p.rank in (None, *LAYOUTS)]
    if not fitting:
        shapes = ", ".join(f"{p.name} ({p.dtype}, rank {p.rank})" for p in header.inputs)
        msg = (
            f"{header.path}: no input can be a query: attention takes float tensors of 2 to 4 "
            f"axes, and this graph takes {shapes or 'nothing'}"
        )
        raise UsageError(msg)


def _check_attention(header: Header, found: Interpretation) -> None:
    """Refuse a graph that does not attend; a broken attention is one."""
    if found.assignment.told:
        return
    operators = {operator.rpartition("::")[2] for operator in header.operators}
    attentive = bool(operators & _ATTENTIVE)
    mixes = _mixes(found)
    clean = found.assignment.clean and found.start.bent > 0.0
    single = len(found.start.plan.tensors) == 1
    if (attentive and (mixes or not single)) or (mixes and clean and not single):
        return
    why = (
        "each position of the answer depends on its own position alone"
        if not mixes
        else "it holds no softmax, and its inputs do not behave as query, key and value"
    )
    msg = (
        f"{header.path}: this is no attention: {why} (tried {found.start.base.probe.runs} calls); "
        f"if it is one, say what its inputs are in {_sidecar(header)}"
    )
    raise UsageError(msg)


def _mixes(found: Interpretation) -> bool:
    """Whether some position of the answer depends on several positions of an input."""
    length = found.assignment.length_axis
    return any(
        seen.matters and not seen.open[length] and seen.local[length] is None
        for seen in found.seen.values()
    ) or all(seen.open[length] for seen in found.seen.values())


def _about_tensors(found: Interpretation, told: Told) -> list[str]:
    """A sentence for each tensor: what it is, and how that was found."""
    sentences = []
    for name, role in found.assignment.roles.items():
        how = _how(role, found.seen[name], found.assignment)
        if told.inputs.get(name, {}).get("role"):
            how = f"declared in {told.where or 'the declaration'}"
        axes = found.assignment.layout
        sentences.append(f"input {name}: {role}, axes {axes} ({how})")
    return sentences


def _how(role: str, seen: Traits, assignment: Assignment) -> str:
    length = assignment.length_axis
    if not seen.matters:
        return "by name and place: the answer does not depend on it"
    facts = {
        "query": (
            "a change of one row changes that row of the answer alone",
            seen.local[length] is not None,
        ),
        "key": ("one vector added to all its rows changes nothing", seen.shift[length]),
        "value": ("the answer is affine in it", seen.affine),
        "context": (
            "a change of one row changes every row of the answer",
            seen.local[length] is None,
        ),
        "x": ("a change of one row changes other rows of the answer", seen.local[length] is None),
    }
    fact, true = facts[role]
    return f"by behaviour: {fact}" if true else "by name and place: its behaviour fits no role"
