"""Reads a graph: finds a call that runs, then what each part of it is."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from ...errors import UsageError
from ..header import Header
from ..process import Array, Feeds
from ..reading import Reading, Role
from ..sidecar import check_told
from ..told import Told
from .assigning import MODES, ROLES, Assignment
from .causality import always_causal
from .interpreting import Interpretation, interpret, remedy
from .masks import read_masks
from .outputs import read_outputs
from .packing import read_packing
from .plans import FLOATS, LAYOUTS
from .positions import about_positions
from .probe import Probe
from .spans import read_spans
from .stretching import Stretch
from .structure import is_attentive, multiplies_itself
from .traits import Traits
from .widening import widened


def read_roles(header: Header, run: Callable[[Feeds], Mapping[str, Array]], told: Told) -> Reading:
    """What each input and output of a graph is; raises UsageError for what is no attention.

    ``run`` gives the outputs by name and raises GraphRefused; GraphLost goes through.
    """
    check_told(told, header)
    _check_ports(header)
    probe = Probe(header, run)
    found = interpret(header, probe, told)
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
            *about_positions(found.start.base, found.assignment),
            *about_outputs,
        ),
    )


def _in_order(header: Header, roles: list[Role]) -> tuple[Role, ...]:
    by_name = {role.name: role for role in roles}
    return tuple(by_name[port.name] for port in header.inputs if port.name in by_name)


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
    if found.assignment.told or (found.clean and len(found.seen) > 1):
        return
    if not (_mixes(found) or _ignores(found, header)):
        why = "each position of its answer depends on the same position of its inputs alone"
    elif not multiplies_itself(header):
        why = "it multiplies no two things that it computes from its inputs"
    elif not is_attentive(header) and not _resembles(found):
        why = "it holds no softmax, and its inputs do not behave as query, key and value"
    else:
        return
    runs = found.start.base.probe.runs
    msg = f"{header.path} is no attention: {why} (seen in {runs} calls); {remedy(header)}"
    raise UsageError(msg)


def _resembles(found: Interpretation) -> bool:
    """Whether three inputs behave nearly as query, key and value do."""
    everything = all(seen.matters for seen in found.seen.values())
    return len(found.seen) == len(ROLES) and everything and found.likely


def _ignores(found: Interpretation, header: Header) -> bool:
    """Whether an attention of several inputs does not depend on all of them: that is a mistake."""
    some = any(not seen.matters for seen in found.seen.values())
    return some and len(found.seen) > 1 and is_attentive(header)


def _mixes(found: Interpretation) -> bool:
    """Whether a part of the answer depends on several positions, or items, of an input."""
    outer = [at for at, letter in enumerate(found.assignment.layout) if letter in "BL"]
    return not found.tells or any(
        seen.matters and not seen.open[at] and seen.local[at] is None
        for seen in found.seen.values()
        for at in outer
    )


def _about_tensors(found: Interpretation, told: Told) -> list[str]:
    """A sentence for each tensor: what it is, and how that was found."""
    sentences = []
    assignment = found.assignment
    if not assignment.clean:
        sentences.append(
            f"the graph does not behave as attention in everything: {assignment.passed} of "
            f"{assignment.asked} facts about its inputs fit the roles that they are given"
        )
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
