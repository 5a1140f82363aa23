"""The keys hidden by a model's masks when the caller hides nothing, and the masks' inputs."""

from __future__ import annotations

import contextlib
import re
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
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
from ..graphs.reading import Axis
from ..graphs.weights.wiring import Node, Wiring, attributes
from .in_place import HIDES
from .model_graph import ModelGraph
from .model_inputs import LOOKING_AHEAD
from .operands import MaskInput
from .site import Site
from .sites import Sites
from .sizes import Sizes

# Sizes of the call that shows the masks: items, and positions.
_ITEMS: Final = 2
POSITIONS: Final = 6
# Past positions: several, else none, if axis names do not say that an axis counts them.
_PASTS: Final = (3, 0)
# Visible keys under a mistaken causal rule: no earlier keys, or all but its own.
_EARLIER_HIDDEN: Final = "its own key and later ones"
_OWN_HIDDEN: Final = "keys before its own alone"
_NOT_LATER: Final = "keys after its own alone"
# Keys too many under a causal rule that ends too late.
_AHEAD: Final = dict(enumerate(LOOKING_AHEAD, start=1))
MISPLACED: Final = (_EARLIER_HIDDEN, _OWN_HIDDEN, _NOT_LATER)


@dataclass(frozen=True, kw_only=True)
class MaskFacts:
    """The known facts on the masks of one attention.

    causal: with no mask from the caller, a query sees its own and no later keys; None where the
        masks could not be computed alone, or hide differently.
    window: the number of keys, the query's own included, seen by a causal query, if fewer than a
        call's first few; else None.
    misplaced: one of ``MISPLACED`` or ``LOOKING_AHEAD``: a causal rule with a mistake; else "".
    inputs: the inputs of the model whose values reach a mask.
    """

    causal: bool | None
    window: int | None
    inputs: tuple[str, ...]
    misplaced: str = ""


def mask_facts(sites: Sites) -> dict[int, MaskFacts]:
    """Return the facts on the masks of each attention, by index."""
    result = {}
    for graph in dict.fromkeys(site.graph or sites.graph for site in sites.sites):
        own = [site for site in sites.sites if (site.graph or sites.graph) is graph]
        values = _values(graph, own)
        for site in own:
            reaching: set[str] = set()
            for name in filter(None, (site.counted, *(mask.name for mask in site.masks))):
                reaching |= graph.wiring.reaching(name, sites.graph.inputs)
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
    """Return the causal rule and window of the combined masks, or of the node itself."""
    if site.causal:
        window = site.options.get("local_window_size", -1)
        return Rule(causal=True, window=window if window >= 0 else None)
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
    """Return the causal rule and window of visible keys ``[…, Lq, Lk]``."""
    if allowed.all():
        return Rule(causal=False)
    queries, keys = allowed.shape[-2:]
    # An empty mask shows no rule, and a single query none about later keys.
    if not allowed.any() or queries == 1:
        return Rule(causal=None)
    aligned = max(keys - queries, 0)  # a stored mask may have fewer keys than a call has queries
    causal = np.tri(queries, keys, aligned, dtype=bool)
    most = max(queries, keys)
    for window in range(1, most + 1):
        lost = np.tri(queries, keys, aligned - window, dtype=bool)
        if bool((allowed == (causal & ~lost)).all()):
            return Rule(causal=True, window=window if window < most else None)
    for count, words in _AHEAD.items():
        seen = np.tri(queries, keys, aligned + count, dtype=bool)
        if count < queries - 1 and bool((allowed == seen).all()):
            return Rule(causal=None, misplaced=words)
    for ahead in dict.fromkeys((aligned, 0)):  # of the own key of the first query
        upto, before = (np.tri(queries, keys, ahead - less, dtype=bool) for less in (0, 1))
        for seen, words in zip((~before, before, ~upto), MISPLACED, strict=True):
            if keys > 1 and bool((allowed == seen).all()):
                return Rule(causal=None, misplaced=words)
    return Rule(causal=None)


def with_rules_told_apart(described: list[SiteEntry]) -> list[SiteEntry]:
    """Note in attentions, equal but for masks, which of their equals have a different rule."""
    rules = {
        entry["index"]: {name: entry.get(name) for name in Rule._fields} for entry in described
    }
    for entry in described:
        own = rules[entry["index"]]
        other = [index for index in entry["same_as"] if rules[index] != own]
        entry.pop("otherwise", None)
        if other:
            entry["otherwise"] = [{"index": index, **rules[index]} for index in other]
    return described


_MOVED: Final = {
    _OWN_HIDDEN: "moved by one key",
    **{words: f"moved by {count} key{'s' * (count > 1)}" for count, words in _AHEAD.items()},
}


def misplaced_rules(described: Iterable[SiteEntry]) -> list[str]:
    """Return a sentence for each mistake in the causal rules of the attentions."""
    found: dict[str, list[str]] = {}
    for entry in described:
        if words := entry.get("misplaced"):
            found.setdefault(words, []).append(f"#{entry['index']}")
    return [
        f"{'attentions' if len(own) > 1 else 'attention'} {', '.join(own)}: while the caller hides "
        f"nothing, a query sees {words}: unless that is meant, the causal mask is "
        + (_MOVED.get(words) or "the wrong way round")
        for words, own in found.items()
    ]


def _shown_keys(mask: MaskInput, value: Array) -> Any:
    if mask.role == "bias":
        return mask.factor * value.astype(np.float64) > HIDES
    if mask.axes == "BK":
        value = value[:, None, None, :]
    return value.astype(bool) if mask.role.startswith("keep") else ~value.astype(bool)


def _values(graph: ModelGraph, sites: Sequence[Site]) -> dict[str, Array]:
    """Compute the masks in a short call whose caller hides nothing.

    {} where they cannot be computed apart from the model.
    """
    masks = list(dict.fromkeys(mask for site in sites for mask in site.masks))
    names = list(dict.fromkeys(mask.name for mask in masks))
    stored = {name: value for name in names if (value := graph.stored(name)) is not None}
    names = [name for name in names if name not in stored]
    for past in _PASTS if names else ():
        fed = {
            port.name: _fed(port, past)
            for port in graph.model.graph.input
            if port.name in graph.inputs
        }
        model = _only(graph, names, _shapes_of(graph, fed))
        if model is None:
            return stored
        read = {port.name for port in model.graph.input}
        feeds = {name: value for name, value in fed.items() if name in read and value is not None}
        if len(feeds) < len(read):
            return stored
        with tempfile.TemporaryDirectory(prefix="conformance-masks-", dir=scratch()) as folder:
            path = Path(folder) / "masks.onnx"
            onnx.save(model, path)
            with GraphProcess(path) as process, contextlib.suppress(GraphRefused, GraphLost):
                return {**stored, **_most_seen(process, feeds, masks, sites, stored)}
    return stored


def _most_seen(
    process: GraphProcess,
    feeds: dict[str, Array],
    masks: Sequence[MaskInput],
    sites: Sequence[Site],
    stored: dict[str, Array],
) -> dict[str, Array]:
    """Compute the masks with every input set to ones or zeros, whichever hides least.

    An input that hides later keys when counting holds positions. Raises GraphRefused and GraphLost
    where the first call is refused.
    """
    best = process.run(feeds)
    for name, value in feeds.items():
        tried = [np.ones_like(value), np.zeros_like(value)]
        if value.dtype.kind in "iu" and value.ndim:
            tried.append(_counted(value.shape).astype(value.dtype))
        for place, other in enumerate(tried):
            if not value.size or np.array_equal(other, value):
                continue
            try:
                own = process.run({**feeds, name: other})
            except (GraphRefused, GraphLost):  # such as a number that no table has
                continue
            counts = place == len((True, False))
            more = (
                _causal_sites(sites, stored | own) > _causal_sites(sites, stored | best)
                if counts
                else _seen(masks, own) > _seen(masks, best)
            )
            if more:
                feeds[name], best = other, own
    return best


def _seen(masks: Sequence[MaskInput], values: dict[str, Array]) -> float:
    """Return the mean share of keys that the masks show."""
    shown = [_shown_keys(m, values[m.name]).mean() for m in masks if m.name in values]
    return float(np.mean(shown)) if shown else 0.0


def _causal_sites(sites: Sequence[Site], values: dict[str, Array]) -> int:
    return sum(_rule(site, values).causal is True for site in sites)


def _shapes_of(
    graph: ModelGraph, fed: dict[str, Array | None]
) -> Callable[[str], tuple[int, ...] | None]:
    """Return a function giving a tensor's shape in a call, None where it must be computed."""
    named: dict[Any, int] = {}
    for name, value in fed.items():
        shape = graph.shape(name)
        if value is not None and len(shape) == value.ndim:
            named |= dict(zip(shape, value.shape, strict=True))
    known: dict[str, tuple[int, ...]] = {
        name: value.shape for name, value in fed.items() if value is not None
    }
    in_call: list[Sizes] = []

    def shape_of(name: str) -> tuple[int, ...] | None:
        if name in known:
            return known[name]
        sizes: Sequence[Axis] = [named.get(size, size) for size in graph.shape(name)]
        if not sizes or not all(isinstance(size, int) for size in sizes):
            in_call[:] = in_call or [_sizes_in_call(graph, known)]
            sizes = in_call[0].shapes.get(name) or (None,)
        whole = tuple(size for size in sizes if isinstance(size, int))
        return whole if len(whole) == len(sizes) else None

    return shape_of


def _sizes_in_call(graph: ModelGraph, known: dict[str, tuple[int, ...]]) -> Sizes:
    """Infer sizes of a graph with given input shapes; weights enter with their shapes alone."""
    own = graph.model.graph
    ports = [
        helper.make_tensor_value_info(port.name, port.type.tensor_type.elem_type, known[port.name])
        if port.name in known
        else port
        for port in own.input
        if port.name in graph.inputs
    ]
    small = [tensor for tensor in own.initializer if graph.numbers(tensor.name) is not None]
    kept = {tensor.name for tensor in small}
    ports += [
        helper.make_tensor_value_info(tensor.name, tensor.data_type, list(tensor.dims))
        for tensor in own.initializer
        if tensor.name not in kept
    ]
    body = helper.make_graph(list(own.node), "sizes", ports, [], initializer=small)
    model = helper.make_model(body, opset_imports=list(graph.model.opset_import))
    return Sizes(model, Wiring(model.graph, graph.path.parent), graph.stored)


def _only(
    graph: ModelGraph, names: Sequence[str], shape_of: Callable[[str], tuple[int, ...] | None]
) -> ModelProto | None:
    """Extract the part of a model computing some tensors; None if it needs missing tensors.

    Tensors read only for their shape are replaced if ``shape_of`` knows the shape.
    """
    found: dict[str, Node] = {}
    read, waiting = set(names), list(names)
    while waiting:
        node = graph.wiring.producer.get(waiting.pop())
        if node is None or node.output[0] in found:
            continue
        shape = shape_of(node.input[0]) if node.op_type == "Shape" else None
        if shape is not None:
            own = attributes(node)
            sizes = np.array(shape[own.get("start", 0) : own.get("end", len(shape))], np.int64)
            node = helper.make_node(
                "Constant", [], list(node.output), value=numpy_helper.from_array(sizes)
            )
        found[node.output[0]] = node
        fresh = set(_read(node)) - read
        read |= fresh
        waiting += sorted(fresh)
    firsts = (node.output[0] for node in graph.wiring.ordered)
    nodes = [found[name] for name in firsts if name in found]
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
    """Yield a node's inputs, including those of its inner graphs."""
    yield from node.input
    for attribute in node.attribute:
        for inner in attribute.g.node if attribute.HasField("g") else ():
            yield from _read(inner)


def _fed(port: Any, past: int) -> Array | None:
    """Return an input's first value: ones, which mostly hide nothing, or positions in order."""
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
        return _counted(sizes).astype(kind)
    return np.ones(sizes, kind)


def _counted(sizes: Sequence[int]) -> Array:
    return np.broadcast_to(np.arange(sizes[-1]), sizes)


def _size(axis: Any, at: int, past: int, *, caches: bool) -> int:
    """Return the size of an axis: items first, then positions, including past ones."""
    if axis.HasField("dim_value"):
        return int(axis.dim_value)
    terms = [term for term in re.split(r"\s*\+\s*", axis.dim_param) if term]
    if len(terms) > 1:
        return sum(past if "past" in term else POSITIONS for term in terms)
    if "past" in axis.dim_param or (caches and at):
        return past
    return _ITEMS if at == 0 else POSITIONS
