"""Finds a call that runs, and the roles of its outputs.

First shapes, then fills of the masks that let every key be attended.
"""

from __future__ import annotations

import itertools
import math
import re
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import onnx
from onnx import numpy_helper

from ...errors import UsageError
from ..process import Array, Feeds
from ..reading import Header, Port, Role, suggests, suggests_drop
from ..sidecar import GraphDeclaration
from .plans import FLOATS, INTEGERS, CallPlan, Shapes, frozen, plans, usual
from .probe import BaseCall, GraphProbe, Outputs, bend


def main_output(probe: GraphProbe, feeds: Feeds, plan: CallPlan) -> str:
    """Return the answer: the declared output, else the output of most inputs except weights."""
    header, declared = probe.header, probe.declared
    for name, said in declared.outputs.items():
        if said.get("role") == "output":
            return name
    open_ports = [
        port
        for port in header.outputs
        if port.dtype in FLOATS and "role" not in declared.outputs.get(port.name, {})
    ]
    if len(open_ports) == 1:
        return open_ports[0].name
    if not open_ports:
        return header.outputs[0].name
    answers = probe.call(feeds)
    if answers is None:
        return open_ports[0].name
    reach = _reach(probe, feeds, plan, answers, open_ports)
    rank = len(plan.layout)

    def likely(port: Port) -> tuple[bool, int, bool, bool]:
        answer = answers[port.name]
        return (
            not sums_to_one(answer, probe),
            reach[port.name],
            answer.ndim == rank,
            not suggests(port.name, "weights"),
        )

    return max(open_ports, key=likely).name


def _reach(
    probe: GraphProbe, feeds: Feeds, plan: CallPlan, answers: Outputs, outputs: Sequence[Port]
) -> Mapping[str, int]:
    """Count the tensors each output depends on."""
    reach = {port.name: 0 for port in outputs}
    for tensor in plan.tensors:
        values = feeds[tensor.name]
        others = probe.call({**feeds, tensor.name: probe.draw(values.shape, tensor.dtype)})
        for port in outputs:
            if others is not None:
                changed = probe.changed(answers[port.name], others[port.name])
                reach[port.name] += bool(changed.any())
    return reach


def sums_to_one(answer: Array, probe: GraphProbe) -> bool:
    """Whether every row is made of weights."""
    if not answer.size or answer.ndim == 0 or answer.shape[-1] == 1:
        return False
    sums = answer.astype(np.float64).sum(-1)
    return not probe.changed(sums, np.ones_like(sums)).any() and bool((answer >= 0).all())


def read_outputs(
    header: Header, declared: GraphDeclaration, answers: Outputs, output: Role, probe: GraphProbe
) -> tuple[tuple[Role, ...], list[str]]:
    """The role of every output, and what was assumed."""
    result: list[Role] = []
    sentences: list[str] = []
    for port in header.outputs:
        said = declared.outputs.get(port.name, {})
        if port.name == output.name:
            result.append(output)
            continue
        role, axes = _other_output(port, answers[port.name], probe)
        role, axes = str(said.get("role", role)), str(said.get("axes", axes))
        result.append(Role(name=port.name, role=role, axes=axes, dtype=port.dtype))
        if "role" not in said:
            sentences.append(_sentence(port.name, role))
    return tuple(result), sentences


def _other_output(port: Port, answer: Array, probe: GraphProbe) -> tuple[str, str]:
    if port.dtype in FLOATS and sums_to_one(answer, probe):
        return "weights", {2: "QK", 3: "BQK", 4: "BHQK"}.get(answer.ndim, "")
    if answer.ndim == len("BHLD") and suggests(port.name, "present"):
        is_value = suggests(port.name, "value")
        return ("present_value" if is_value else "present_key"), "BHLD"
    return "ignored", ""


def _sentence(name: str, role: str) -> str:
    if role == "weights":
        return f"output {name}: the attention weights (every row sums to 1)"
    if role == "ignored":
        return f"output {name}: ignored"
    return f"output {name}: {role} (by its name)"


_LARGEST: Final = 64
_MOST: Final = 8
# How onnxruntime writes shapes: "{2,5,4,4}", "5 by 7", "Got: 3 Expected: 2".
_REPORTED: Final = re.compile(r"\{([\d, ]+)\}|(\d+) by (\d+)|(?:Got|Expected): (\d+)")


@dataclass(frozen=True)
class Hints:
    """Numbers occurring in a graph, and the widths of its weights, the likely ones first."""

    counts: tuple[int, ...]
    widths: tuple[int, ...]

    def counted(self, refusals: Iterable[str]) -> tuple[int, ...]:
        """Return the counts worth trying, first those named by refusals."""
        named: Counter[int] = Counter()
        for text in refusals:
            for match in _REPORTED.finditer(text):
                named.update(int(number) for number in re.findall(r"\d+", match.group()))
        ordered = [number for number, _ in named.most_common()] + list(self.counts)
        small = [number for number in dict.fromkeys(ordered) if 0 < number <= _LARGEST]
        return tuple(small[:_MOST])


def read_hints(header: Header) -> Hints:
    """The numbers of a header and of a graph's file; of the header alone when the file is gone."""
    ports = [port.shape or () for port in header.inputs]
    outer = [size for shape in ports for size in shape[:-1] if isinstance(size, int)]
    last = [size for shape in ports for size in shape[-1:] if isinstance(size, int)]
    counts: dict[int, None] = dict.fromkeys(outer + last)
    widths: dict[int, None] = {}
    try:
        graph = onnx.load(header.path, load_external_data=False).graph
    except (OSError, ValueError):
        return Hints(tuple(counts), ())
    for tensor in _tensors(graph):
        if tensor.data_type == onnx.TensorProto.INT64 and not tensor.external_data:
            numbers = numpy_helper.to_array(tensor).reshape(-1)[:_LARGEST]
            counts.update(dict.fromkeys(int(number) for number in numbers))
        elif len(tensor.dims) == len("EO") and tensor.data_type != onnx.TensorProto.BOOL:
            widths.update(dict.fromkeys(tensor.dims))
    for tensor in _tensors(graph):  # after what reshapes name: constant masks and positions
        counts.update(dict.fromkeys(tensor.dims))
    return Hints(tuple(counts), tuple(widths))


def _tensors(graph: onnx.GraphProto) -> Iterator[onnx.TensorProto]:
    """Yield the initializers and constants of a graph, without subgraphs."""
    yield from graph.initializer
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.name == "value" and attribute.HasField("t"):
                yield attribute.t


# Larger inputs until the answer bends: weights of small initial values give tiny logits.
_AMPLITUDES: Final = (1.0, 4.0, 16.0, 64.0)
# The most calls of a graph whose roles remain unclear.
_MOST_RUNS: Final = 3000
# With this curvature the answer is visibly no average with fixed weights.
_BENT: Final = 1 / 16


@dataclass(frozen=True, kw_only=True)
class FirstCall:
    """A plan that runs, its call, and the fills of masks under which all keys are attended."""

    plan: CallPlan
    base: BaseCall
    fills: Mapping[str, float]
    bent: float


def starts(probe: GraphProbe, hints: Hints, *, frozen_too: bool) -> Iterator[FirstCall]:
    """Yield the calls the runtime accepts, the likely ones first, without repetitions.

    ``frozen_too``: at sizes the graph may be frozen at, not at the usual ones.
    """
    header, declared = probe.header, probe.declared
    some: Iterator[CallPlan] = plans(header, declared, usual(hints.widths))
    if frozen_too:
        counts = hints.counted(probe.refusals)
        some = itertools.chain(
            plans(header, declared, frozen(counts), likely=True),
            plans(header, declared, frozen(counts)),
        )
    tried: set[Hashable] = set()
    for plan in some:
        shapes = plan.shapes()
        if shapes is None or probe.runs > _MOST_RUNS:
            continue
        key = (tuple(port.name for port in plan.tensors), plan.lead, *shapes.items())
        if key not in tried:
            tried.add(key)
            start = _start(probe, plan, shapes)
            if start is not None:
                yield start


def _start(probe: GraphProbe, plan: CallPlan, shapes: Shapes) -> FirstCall | None:
    """Return a plan's call with the fill that keeps most keys alive, None if refused."""
    result: list[FirstCall] = []
    for fills in _fills(plan, shapes, probe.declared):
        feeds = _feeds(probe, plan, shapes, fills)
        answers = probe.call(feeds)
        if answers is None:
            if not result:
                return None
            continue
        output = main_output(probe, feeds, plan)
        base = BaseCall(probe, feeds, output, answers[output])
        result.append(_loud(FirstCall(plan=plan, base=base, fills=fills, bent=0.0)))
    return max(result, key=lambda start: start.bent > 0.0) if result else None


def _loud(start: FirstCall) -> FirstCall:
    """Return the call with inputs large enough that the answer is no plain average."""
    feeds = {port.name: start.base.feeds[port.name] for port in start.plan.tensors}
    best = start
    for amplitude in _AMPLITUDES:
        base = start.base.with_inputs(
            {name: (values * amplitude).astype(values.dtype) for name, values in feeds.items()}
        )
        if base is None:
            break
        bent = bend(base, list(feeds))
        if bent > best.bent:
            best = replace(start, base=base, bent=bent)
        if bent >= _BENT:
            break
    return best


def _fills(
    plan: CallPlan, shapes: Shapes, declared: GraphDeclaration
) -> Iterator[dict[str, float]]:
    """Yield possible fills of the masks, those likely to hide nothing first."""
    choices = [
        (float(constant(port, (), declared)),)
        if (said := declared.inputs.get(port.name, {})).get("role") == "constant"
        and "value" in said
        else (-math.inf,)  # no sink
        if said.get("role") == "sinks"
        else _fill_choices(port, axes, plan, shapes)
        for port, axes in plan.masks
    ]
    for values in itertools.product(*choices):
        yield {port.name: value for (port, _), value in zip(plan.masks, values, strict=True)}


def _fill_choices(port: Port, axes: str, plan: CallPlan, shapes: Shapes) -> tuple[float, ...]:
    if port.dtype in FLOATS:
        return (0.0, 1.0)
    either = (0.0, 1.0) if suggests_drop(port.name) else (1.0, 0.0)
    tensor = plan.tensors[-1 if plan.lead == 0 else 0]
    whole = float(shapes[tensor.name][plan.layout.index("L")])
    if port.dtype not in INTEGERS or len(axes) > len("BQ"):
        return either
    return (whole,) if "K" not in axes else (*either, whole)


def _feeds(
    probe: GraphProbe, plan: CallPlan, shapes: Shapes, fills: Mapping[str, float]
) -> dict[str, Array]:
    feeds: dict[str, Array] = {}
    for port in plan.tensors:
        feeds[port.name] = probe.draw(shapes[port.name], port.dtype)
    for port, _ in plan.masks:
        feeds[port.name] = np.full(shapes[port.name], fills[port.name], dtype=port.dtype)
    for port in plan.pasts:
        feeds[port.name] = np.zeros(shapes[port.name], dtype=port.dtype)
    for port in plan.constants:
        feeds[port.name] = constant(port, shapes[port.name], probe.declared)
    return feeds


def constant(port: Port, shape: tuple[int, ...], declared: GraphDeclaration) -> Array:
    """Return a scalar input's value in every call: the declared one, else False or 0."""
    value = declared.inputs.get(port.name, {}).get("value", 0)
    try:
        with np.errstate(invalid="ignore"):
            made = np.broadcast_to(np.asarray(value).astype(port.dtype), shape).copy()
    except (TypeError, ValueError):
        made = None
    if made is None or (port.dtype not in FLOATS and not np.all(made == value)):
        where = declared.where or "the declaration"
        msg = (
            f"{where} gives {port.name} the value {value!r}, which is no {port.dtype} of shape "
            f"{list(shape)}"
        )
        raise UsageError(msg)
    return made
