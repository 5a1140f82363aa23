"""Finds the attention of a graph: one core, or one for each head, side by side."""

from __future__ import annotations

from collections.abc import Sequence

from .core import Core, softmax_cores
from .operators import node_cores
from .unreadable import UnreadableError
from .wiring import Wiring


def find_cores(wiring: Wiring, tokens: frozenset[str], output: str) -> list[Core]:
    """The cores of a graph's attention, in the order of their heads; raises UnreadableError."""
    cores = [*node_cores(wiring, tokens, output), *softmax_cores(wiring, tokens, output)]
    if not cores:
        msg = "no softmax between two products and no attention node lies between tokens and answer"
        raise UnreadableError(msg)
    if len(cores) == 1:
        return cores
    if _in_a_row(wiring, cores):
        msg = f"{len(cores)} attentions follow one another in the graph"
        raise UnreadableError(msg)
    return _ordered(wiring, cores)


def _in_a_row(wiring: Wiring, cores: Sequence[Core]) -> bool:
    """Whether one attention is computed from the answer of another."""
    heads = {core.heads for core in cores}
    return any(
        heads & wiring.above(operand.name)
        for core in cores
        for operand in (core.query, core.key, core.value)
    )


def _ordered(wiring: Wiring, cores: Sequence[Core]) -> list[Core]:
    """Cores in the order in which a node puts their heads side by side."""
    for node in wiring.graph.node:
        if node.op_type != "Concat" or len(node.input) < len(cores):
            continue
        above = [wiring.above(name) for name in node.input]
        places = [
            [number for number, names in enumerate(above) if core.heads in names] for core in cores
        ]
        if all(len(place) == 1 for place in places) and len({p[0] for p in places}) == len(cores):
            pairs = sorted(zip(places, cores, strict=True), key=lambda pair: pair[0])
            return [core for _, core in pairs]
    msg = f"{len(cores)} attentions run side by side, but are no heads of one"
    raise UnreadableError(msg)
