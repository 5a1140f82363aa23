"""Finding a call that runs: shapes, then fills of the masks that let every key be attended."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import onnx
from onnx import numpy_helper

from ...errors import UsageError
from ..process import Array
from ..reading import Header, Port
from ..sidecar import GraphDeclaration
from . import names
from .outputs import main_output
from .plans import FLOATS, INTEGERS, CallPlan, Shapes, frozen, plans, usual
from .probe import BaseCall, GraphProbe, bend

_LARGEST: Final = 64
_MOST: Final = 8
# How onnxruntime tells of shapes: "{2,5,4,4}", "5 by 7", "Got: 3 Expected: 2".
_TOLD: Final = re.compile(r"\{([\d, ]+)\}|(\d+) by (\d+)|(?:Got|Expected): (\d+)")


@dataclass(frozen=True)
class Hints:
    """Numbers that stand in a graph, and the widths of its weights, the likely ones first."""

    counts: tuple[int, ...]
    widths: tuple[int, ...]

    def counted(self, refusals: Iterable[str]) -> tuple[int, ...]:
        """The counts, those that refusals name before the others, as many as are worth trying."""
        named: Counter[int] = Counter()
        for text in refusals:
            for match in _TOLD.finditer(text):
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
    """The initializers and constants of a graph, without those of subgraphs."""
    yield from graph.initializer
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.name == "value" and attribute.HasField("t"):
                yield attribute.t


# Larger inputs until the answer bends: weights of small initial values give tiny logits.
_AMPLITUDES: Final = (1.0, 4.0, 16.0, 64.0)
# The most calls that are tried on a graph whose roles remain unclear.
_MOST_RUNS: Final = 3000
# As bent as this the answer is visibly no average with fixed weights.
_BENT: Final = 1 / 16


@dataclass(frozen=True, kw_only=True)
class FirstCall:
    """A plan that runs, its call, and with what the masks are filled so that all is attended."""

    plan: CallPlan
    base: BaseCall
    fills: Mapping[str, float]
    bent: float


def starts(probe: GraphProbe, hints: Hints, *, frozen_too: bool) -> Iterator[FirstCall]:
    """Every way to call the graph that the runtime accepts, the likely ones first; equal ones once.

    ``frozen_too``: at the sizes it may be frozen at, not at the usual ones.
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
    """A call of a plan with the fill that keeps most alive, None when it is refused."""
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
    """The call with inputs large enough that the answer is no plain average."""
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
    """What the masks may be filled with, what is likely to let everything through first."""
    choices = [
        (float(said["value"]),)
        if (said := declared.inputs.get(port.name, {})).get("role") == "constant"
        and "value" in said
        else _fill_choices(port, axes, plan, shapes)
        for port, axes in plan.masks
    ]
    for values in itertools.product(*choices):
        yield {port.name: value for (port, _), value in zip(plan.masks, values, strict=True)}


def _fill_choices(port: Port, axes: str, plan: CallPlan, shapes: Shapes) -> tuple[float, ...]:
    if port.dtype in FLOATS:
        return (0.0, 1.0)
    either = (0.0, 1.0) if names.suggests_drop(port.name) else (1.0, 0.0)
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
    """The value of a scalar input in every call: the declared one, else False or 0."""
    value = declared.inputs.get(port.name, {}).get("value", 0)
    try:
        return np.broadcast_to(np.asarray(value).astype(port.dtype), shape).copy()
    except (TypeError, ValueError) as error:
        where = declared.where or "the declaration"
        msg = (
            f"{where} gives {port.name} the value {value!r}, which is no {port.dtype} of shape "
            f"{list(shape)}"
        )
        raise UsageError(msg) from error
