"""Which output is the answer, and what the others are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from ..process import Array, Feeds
from ..reading import Header, Port, Role
from ..sidecar import GraphDeclaration
from . import names
from .plans import FLOATS, CallPlan
from .probe import GraphProbe, Outputs


def main_output(probe: GraphProbe, feeds: Feeds, plan: CallPlan) -> str:
    """The answer: the declared output, else the one of most inputs that is no weights."""
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
            not names.suggests(port.name, "weights"),
        )

    return max(open_ports, key=likely).name


def _reach(
    probe: GraphProbe, feeds: Feeds, plan: CallPlan, answers: Outputs, outputs: Sequence[Port]
) -> Mapping[str, int]:
    """Of how many tensors each output is a function."""
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
    if answer.ndim == len("BHLD") and names.suggests(port.name, "present"):
        is_value = names.suggests(port.name, "value")
        return ("present_value" if is_value else "present_key"), "BHLD"
    return "ignored", ""


def _sentence(name: str, role: str) -> str:
    if role == "weights":
        return f"output {name}: the attention weights (every row sums to 1)"
    if role == "ignored":
        return f"output {name}: ignored"
    return f"output {name}: {role} (by its name)"
