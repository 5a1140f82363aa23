"""What the masks of a model hide when its caller hides nothing, and which inputs reach them."""

from __future__ import annotations

import contextlib
import re
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import onnx
from onnx import ModelProto, helper, numpy_helper

from ..base.files import scratch
from ..base.record import SiteEntry
from ..graphs.process import Array, GraphProcess
from ..graphs.protocol import GraphLost, GraphRefused
from ..graphs.weights.wiring import Node
from .in_place import HIDES
from .model_graph import ModelGraph
from .operands import MaskInput
from .site import Site
from .sites import Sites

# Sizes of the call that shows the masks: items, and positions.
_ITEMS: Final = 2
_POSITIONS: Final = 6
# Past positions: some, else none, where the name of an axis does not say that it counts them, too.
_PASTS: Final = (3, 0)
# What a query sees under causality with a mistake: no earlier keys, or all but its own.
_EARLIER_HIDDEN: Final = "its own key and later ones"
_OWN_HIDDEN: Final = "keys before its own alone"
_NOT_LATER: Final = "keys after its own alone"
MISPLACED: Final = (_EARLIER_HIDDEN, _OWN_HIDDEN, _NOT_LATER)


@dataclass(frozen=True, kw_only=True)
class MaskFacts:
    """What is known of the masks of one attention.

    causal
        Whether no query sees later keys than its own, and each sees its own, when the caller hides
        nothing; None where the masks could not be computed alone, or hide something else.
    window
        How many keys up to its own a query sees, where it is causal and that are fewer than the
        first few of a call; else None.
    misplaced
        One of ``MISPLACED``: what a query sees where that is causality with a mistake; else "".
    inputs
        The inputs of the model whose values reach a mask.
    """

    causal: bool | None
    window: int | None
    inputs: tuple[str, ...]
    misplaced: str = ""


def mask_facts(sites: Sites) -> dict[int, MaskFacts]:
    """The facts on the masks of each attention, by its index."""
    result = {}
    for graph in dict.fromkeys(site.graph or sites.graph for site in sites.sites):
        own = [site for site in sites.sites if (site.graph or sites.graph) is graph]
        values = _values(graph, list(dict.fromkeys(m.name for site in own for m in site.masks)))
        for site in own:
            reaching: set[str] = set()
            for mask in site.masks:
                reaching |= graph.wiring.reaching(mask.name, sites.graph.inputs)
            rule = _rule(site, values)
            inputs = tuple(sorted(reaching))
            result[site.index] = MaskFacts(**rule._asdict(), inputs=inputs)
    return result


class Rule(NamedTuple):
    """What a query sees while the caller hides nothing: fields of :class:`MaskFacts`."""

    causal: bool | None
    window: int | None = None
    misplaced: str = ""


def _rule(site: Site, values: dict[str, Array]) -> Rule:
    """Whether the masks together, or the node itself, hide the later keys, and in which window."""
    if site.causal:
        return Rule(causal=True)
    allowed: Any = np.ones((1, 1), dtype=bool)
    for mask in site.masks:
        if mask.role == "lengths":  # all of them, where the caller hides nothing
            continue
        value = values.get(mask.name)
        if value is None:
            return Rule(causal=None)
        shown = _shown_keys(mask, value)
        if shown.ndim < allowed.ndim:
            shown = shown.reshape((1,) * (allowed.ndim - shown.ndim) + shown.shape)
        try:
            allowed = allowed & shown
        except ValueError:
            return Rule(causal=None)
    return rule_of(allowed)


def rule_of(allowed: Any) -> Rule:
    """Whether keys ``[…, Lq, Lk]`` that may be seen are the earlier ones, and in which window."""
    if allowed.all():
        return Rule(causal=False)
    queries, keys = allowed.shape[-2:]
    causal = np.tri(queries, keys, keys - queries, dtype=bool)
    for window in range(1, keys + 1):
        lost = np.tri(queries, keys, keys - queries - window, dtype=bool)
        if bool((allowed == (causal & ~lost)).all()):
            return Rule(causal=True, window=window if window < keys else None)
    for ahead in dict.fromkeys((keys - queries, 0)):  # of the own key of the first query
        upto, before = (np.tri(queries, keys, ahead - less, dtype=bool) for less in (0, 1))
        for seen, words in zip((~before, before, ~upto), MISPLACED, strict=True):
            if keys > 1 and bool((allowed == seen).all()):
                return Rule(causal=None, misplaced=words)
    return Rule(causal=None)


def with_rules_told_apart(described: list[SiteEntry]) -> list[SiteEntry]:
    """Attentions that say which of those that are the same see other keys: masks are no part."""
    rules = {
        entry["index"]: {name: entry.get(name) for name in Rule._fields} for entry in described
    }
    for entry in described:
        own = rules[entry["index"]]
        other = [index for index in entry["same_as"] if rules[index] != own]
        if other:
            entry["otherwise"] = [{"index": index, **rules[index]} for index in other]
    return described


def misplaced_rules(described: Iterable[SiteEntry]) -> list[str]:
    """A sentence for each way in which attentions are causal but for a mistake."""
    found: dict[str, list[str]] = {}
    for entry in described:
        if words := entry.get("misplaced"):
            found.setdefault(words, []).append(f"#{entry['index']}")
    return [
        f"{'attentions' if len(own) > 1 else 'attention'} {', '.join(own)}: while the caller hides "
        f"nothing, a query sees {words}: unless that is meant, the causal mask is "
        + ("moved by one key" if words == _OWN_HIDDEN else "the wrong way round")
        for words, own in found.items()
    ]


def _shown_keys(mask: MaskInput, value: Array) -> Any:
    if mask.role == "bias":
        return mask.factor * value.astype(np.float64) > HIDES
    if mask.axes == "BK":
        value = value[:, None, None, :]
    return value.astype(bool) if mask.role.startswith("keep") else ~value.astype(bool)


def _values(graph: ModelGraph, names: Sequence[str]) -> dict[str, Array]:
    """The masks as the model makes them for a short call; {} where they cannot be made alone."""
    stored = {name: value for name in names if (value := graph.stored(name)) is not None}
    names = [name for name in names if name not in stored]
    model = _only(graph, names) if names else None
    if model is None:
        return stored
    calls: list[dict[str, Array]] = []
    for past in _PASTS:
        fed = {port.name: _fed(port, past) for port in model.graph.input}
        calls.append({name: value for name, value in fed.items() if value is not None})
        if len(calls[-1]) < len(fed):
            return stored
    with tempfile.TemporaryDirectory(prefix="conformance-masks-", dir=scratch()) as folder:
        path = Path(folder) / "masks.onnx"
        onnx.save(model, path)
        with GraphProcess(path) as process:
            for feeds in calls:
                with contextlib.suppress(GraphRefused, GraphLost):
                    return {**stored, **process.run(feeds)}
    return stored


def _only(graph: ModelGraph, names: Sequence[str]) -> ModelProto | None:
    """The part of a model that makes some tensors; None where it needs tensors left out."""
    above: set[str] = set()
    for name in names:
        above |= graph.wiring.above(name)
    nodes = [node for node in graph.wiring.ordered if above & set(node.output)]
    read = above | {name for node in nodes for name in _read(node)}
    values = {name: graph.stored(name) for name in sorted(read & set(graph.wiring.initializers))}
    stored = [
        numpy_helper.from_array(value, name) for name, value in values.items() if value is not None
    ]
    if len(stored) < len(values):
        return None
    ports = [port for port in graph.model.graph.input if port.name in read & graph.inputs]
    answers = [
        helper.make_tensor_value_info(name, graph.type(name) or onnx.TensorProto.FLOAT, None)
        for name in names
    ]
    body = helper.make_graph(nodes, "masks", ports, answers, initializer=stored)
    return helper.make_model(
        body,
        opset_imports=list(graph.model.opset_import),
        ir_version=graph.model.ir_version,
    )


def _read(node: Node) -> Iterator[str]:
    """What a node reads, its inner graphs included."""
    yield from node.input
    for attribute in node.attribute:
        for inner in attribute.g.node if attribute.HasField("g") else ():
            yield from _read(inner)


def _fed(port: Any, past: int) -> Array | None:
    """What an input gets: ones, which hide nothing, and positions in their order."""
    tensor = port.type.tensor_type
    if not tensor.HasField("shape"):
        return None
    caches = "past" in port.name.lower()  # exporters may give its axes names of their own
    sizes = [_size(axis, at, past, caches=caches) for at, axis in enumerate(tensor.shape.dim)]
    try:
        kind = helper.tensor_dtype_to_np_dtype(tensor.elem_type)
    except (KeyError, TypeError, ValueError):
        return None
    if "pad" in port.name.lower() and sizes:  # true for padding
        return np.zeros(sizes, kind)
    if "position" in port.name.lower() and sizes:
        return np.broadcast_to(np.arange(sizes[-1]), sizes).astype(kind)
    return np.ones(sizes, kind)


def _size(axis: Any, at: int, past: int, *, caches: bool) -> int:
    """A size of an axis: items first, then positions, of which some are past."""
    if axis.HasField("dim_value"):
        return int(axis.dim_value)
    terms = [term for term in re.split(r"\s*\+\s*", axis.dim_param) if term]
    if len(terms) > 1:
        return sum(past if "past" in term else _POSITIONS for term in terms)
    if "past" in axis.dim_param or (caches and at):
        return past
    return _ITEMS if at == 0 else _POSITIONS
