"""A graph run as a whole model, and the inputs and outputs of its attentions."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import torch

from ..adapters.graph_forward import spelled
from ..graphs.process import DEFAULT, GraphProcess, Setting
from ..graphs.protocol import Array
from ..graphs.weights.wiring import Wiring
from .model_graph import ModelGraph
from .operands import Edge, MaskInput
from .site import Site, Step, unpaired
from .sites import Sites
from .token_rows import MovedHeads, mixed_heads
from .torch_edges import PARTED

_HEADS: Final = "BHLD"
_MASK: Final = "BHQK"
# A mask's addend below this hides a key.
HIDES: Final = -1e3


@dataclass(frozen=True, kw_only=True, eq=False)
class Activations:
    """One attention of a model on the model's own activations.

    query, key, value, answer: heads ``[B, H, L, D]``; key and value may have fewer heads.
    keep, bias: the combined masks: bool, True attends, and the bias of the scores; four axes,
        constant along axes of size 1. None without a mask.
    causal: the alignment of its own causal rule in this call, None without one.
    sinks: one more score for each head, None without sinks.
    steps: the places where scores or weights become integers of known steps.
    dtype: the format of the heads if numpy has none: the arrays are float32 then.
    """

    query: Array
    key: Array
    value: Array
    answer: Array
    keep: Array | None
    bias: Array | None
    causal: str | None = None
    sinks: Array | None = None
    steps: tuple[Step, ...] = ()
    dtype: str = ""

    @property
    def judged(self) -> Array:
        """The queries with a key that neither mask hides, ``[B, H, Lq, 1]``; axes may be 1.

        A finite fill turns a row without keys into a mean: any answer is right there.
        """
        seen: Array = np.ones((1, 1, 1, 1), dtype=bool) if self.keep is None else self.keep
        if self.bias is not None:
            seen = seen & (self.bias > HIDES)
        return np.asarray(seen.any(axis=-1, keepdims=True))

    @property
    def shown(self) -> Array:
        """The keys visible to each query, ``[B or 1, H or 1, Lq, Lk]``."""
        sizes = (self.query.shape[2], self.key.shape[2])
        shown: Array = np.ones((1, 1, *sizes), bool) if self.keep is None else self.keep
        shown = shown if self.bias is None else shown & (self.bias > HIDES)
        return np.broadcast_to(shown, (*shown.shape[:2], *sizes))


class GraphEngine:
    """The graph of a file in its process, as the engine of a whole model."""

    def __init__(self, sites: Sites, process: GraphProcess | None = None) -> None:
        self._graph, self._every = sites.graph, sites.sites
        # A tensor in a branch of a node cannot be tapped.
        self.sites = tuple(site for site in sites.sites if site.graph is None)
        self.process = process or GraphProcess(sites.graph.path)

    @property
    def shown(self) -> str:
        """The path of the file."""
        return str(self._graph.path)

    @property
    def quantised(self) -> bool:
        """Whether activations become integers by the range of a whole tensor, which joins items."""
        nodes = self._graph.wiring.graph.node
        return any(node.op_type.startswith("DynamicQuantize") for node in nodes)

    @property
    def rounds_to_integers(self) -> bool:
        """Tell whether activations become 8-bit integers, of any range.

        onnxruntime quantises activations of integer weights, too, at its higher levels.
        """
        return any("uantize" in node.op_type for node in self._graph.wiring.graph.node)

    def run(
        self, feeds: Mapping[str, Array], *, setting: Setting = DEFAULT, taps: Sequence[str] = ()
    ) -> dict[str, Array]:
        """Every answer by name, and the tensors inside; raises GraphRefused and GraphLost."""
        return self.process.run(dict(feeds), setting=setting, taps=taps)

    def in_place(self, feeds: Mapping[str, Array]) -> Iterator[tuple[int, Activations]]:
        """Yield each attention's activations in a call.

        Attentions whose axes cannot be distinguished or whose tensors have no name in the file are
        left out. Raises GraphRefused and GraphLost.
        """
        sites = [site for site in self.sites if self._graph.named.issuperset(tapped(site))]
        names = dict.fromkeys(name for site in sites for name in tapped(site))
        stored = {name: self._graph.stored(name) for name in names}
        known = {name: value for name, value in stored.items() if value is not None}
        values = known | self.run(feeds, taps=[name for name in names if name not in known])
        for site in sites:
            inside = activations(site, values)
            if inside is not None:
                yield site.index, inside

    @property
    def counts_keys(self) -> bool:
        """Whether a mask becomes a number of keys, as GroupQueryAttention takes them."""
        inputs = self._graph.inputs
        return any(self._graph.wiring.reaching(site.counted, inputs) for site in self.sites)

    def keys_told(self, feeds: Mapping[str, Array]) -> dict[int, Array]:
        """How many keys of each item an attention is told of; raises GraphRefused, GraphLost."""
        named = self._graph.named
        told = {site.index: site.counted for site in self.sites if site.counted in named}
        values = self.run(feeds, taps=list(dict.fromkeys(told.values()))) if told else {}
        return {index: values[name].reshape(-1) + 1 for index, name in told.items()}

    def mixing_tokens(self, feeds: Mapping[str, Array]) -> list[tuple[int, str]]:
        """Describe attentions whose heads mix tokens, by index; raises GraphRefused, GraphLost."""
        wiring, named = self._graph.wiring, self._graph.named
        ways: dict[int, dict[str, list[str]]] = {}
        for site in self.sites:
            own = {
                part: _way_up(wiring, _before_positions(self._graph, edge))
                for part, edge in site.edges.items()
            }
            own["answer"] = _way_down(wiring, site.output)
            if not site.opaque and named.issuperset(itertools.chain(*own.values())):
                ways[site.index] = own
        taps = dict.fromkeys(name for own in ways.values() for way in own.values() for name in way)
        stored = {name: self._graph.stored(name) for name in taps}
        known = {name: value for name, value in stored.items() if value is not None}
        values = known | self.run(feeds, taps=[name for name in taps if name not in known])
        said = []
        for index, own in ways.items():
            moved = {
                part: _moved(self._every[index], part, way, values) for part, way in own.items()
            }
            answer = moved.pop("answer")
            if words := mixed_heads(moved, answer):
                said.append((index, words))
        return said

    def key_inputs(self, index: int) -> frozenset[str]:
        """The inputs that the keys of an attention are computed from."""
        site = self._every[index]
        wiring = (site.graph or self._graph).wiring
        return frozenset(wiring.reaching(site.key.name, self._graph.inputs))

    def table_sizes(self) -> frozenset[int]:
        """The sizes of stored tensors: a table of positions ends where lengths end."""
        stored = self._graph.wiring.initializers.values()
        return frozenset(int(size) for tensor in stored for size in tensor.dims)


# Nodes whose result has the numbers of their first input, in other places.
_MOVES: Final = frozenset(
    "Flatten Gather Identity Reshape Slice Split Squeeze Transpose Unsqueeze".split()
)


# Nodes that norms and positions are made of, which keep the axes of heads.
_CHANGES: Final = frozenset(
    "Add Cast Concat Div LayerNormalization Mul Neg Pow RMSNormalization Reciprocal ReduceMean "
    "RotaryEmbedding SimplifiedLayerNormalization Slice Split Sqrt Sub".split()
)


def _before_positions(graph: ModelGraph, edge: Edge) -> str:
    """The heads that a tensor of heads is made of by norms and positions, else this tensor."""
    waiting, visited, found = [edge.name], {edge.name}, list[str]()
    sizes = [edge.size(graph, letter) for letter in "HD"]
    while waiting and None not in sizes:
        name = waiting.pop()
        node = graph.wiring.producer.get(name)
        if node is not None and node.op_type in ("Reshape", "Transpose"):
            same = replace(edge, name=name)
            found += [name] if [same.size(graph, letter) for letter in "HD"] == sizes else []
        elif node is not None and node.op_type in _CHANGES:
            fresh = {own for own in node.input if own} - visited
            visited |= fresh
            waiting += sorted(fresh)
    return found[0] if len(found) == 1 else edge.name


def _way_up(wiring: Wiring, name: str) -> list[str]:
    """A tensor, and those that it is made of by nodes that only move numbers, nearest first."""
    way = [name]
    while (node := wiring.producer.get(way[-1])) is not None and node.op_type in _MOVES:
        way.append(node.input[0])
    return way


def _way_down(wiring: Wiring, name: str) -> list[str]:
    """A tensor, and those that nodes only moving numbers make of it, while one node does."""
    way = [name]
    while True:
        below = [
            node
            for node in wiring.consumers[way[-1]]
            if node.op_type in _MOVES and node.input[0] == way[-1]
        ]
        if len(below) != 1 or len(below[0].output) != 1:
            return way
        way.append(below[0].output[0])


def _moved(site: Site, part: str, way: Sequence[str], values: Mapping[str, Array]) -> MovedHeads:
    """Return the heads of a part on their way; the places are the reshaped tensors."""
    letters = site.output_letters if part == "answer" else site.edges[part].letters
    tensors = [torch.from_numpy(values[name].copy()) for name in way]
    pairs = zip(way, itertools.pairwise(tensors), strict=False)
    folds = [name for name, (one, other) in pairs if one.dim() != other.dim()]
    where = f" (at {', '.join(folds)})" if folds else ""
    return MovedHeads(heads=tensors[0], letters=letters, way=tensors, where=where)


def tapped(site: Site) -> list[str]:
    """The tensors inside the model that :func:`activations` needs of an attention."""
    edges = [*(edge.name for edge in site.edges.values()), *site.cache]
    edges += [] if site.sinks is None else [site.sinks.stored]
    return list(dict.fromkeys([*edges, *(mask.name for mask in site.masks), site.output]))


def activations(site: Site, values: dict[str, Array]) -> Activations | None:
    """Return an attention's tensors in a call; None where its axes cannot be distinguished.

    values
        The tensors of :func:`tapped` by name, and stored masks.
    """
    if site.opaque:
        return None
    kv_heads = site.kv_heads or site.heads
    heads = {"query": site.heads, "key": kv_heads, "value": kv_heads}
    parts = {
        part: as_heads(values[edge.name], edge.letters, heads[part])
        for part, edge in site.edges.items()
    }
    answer = as_heads(values[site.output], site.output_letters, site.heads)
    for part, tensor in zip(("key", "value"), site.cache, strict=False):
        earlier = values[tensor].astype(values[site.edges[part].name].dtype)
        own = parts[part]
        parts[part] = None if own is None else np.concatenate([earlier, own], 2)
    masks = [(mask, values[mask.name]) for mask in site.masks]
    sinks = None if site.sinks is None else values[site.sinks.stored].reshape(-1)
    causal = CAUSAL_NODE if site.causal else None
    made = assembled(parts, answer, masks, site.heads, causal=causal, sinks=sinks)
    return None if made is None else replace(made, steps=site.steps)


# The alignment of causal attention nodes where lengths differ.
CAUSAL_NODE: Final = "top-left"


def assembled(
    parts: Mapping[str, Array | None],
    answer: Array | None,
    masks: Sequence[tuple[MaskInput, Array]],
    heads: int | None,
    *,
    causal: str | None,
    sinks: Array | None,
) -> Activations | None:
    """Combine an attention's tensors; None where axes cannot be ordered.

    Sinks are one number, or one for each head.
    """
    query, key, value = (parts[part] for part in ("query", "key", "value"))
    if query is None or key is None or value is None or answer is None:
        return None
    if unpaired(query.shape[1], key.shape[1], value.shape[1]):
        return None
    query, key, value = (  # an item that all share, such as learned keys, is one of each
        own if len(own) == len(answer) else np.repeat(own, len(answer), axis=0)
        for own in (query, key, value)
    )
    # onnxruntime's nodes also take lengths in other forms, with more numbers than items.
    if any(mask.role == "lengths" and given.size != len(answer) for mask, given in masks):
        return None
    scores = (*query.shape[:3], key.shape[2])
    ordered = [(mask.role, _as_mask(given, mask, heads, key.shape[2])) for mask, given in masks]
    fitting = [(role, own) for role, own in ordered if own is not None]
    if len(fitting) < len(masks) or not all(_spreads_over(own.shape, scores) for _, own in fitting):
        return None
    keep, bias = _together(fitting)
    spread = None if sinks is None else np.broadcast_to(sinks, (heads or sinks.size,))
    own = {"query": query, "key": key, "value": value, "answer": answer}
    return Activations(**own, keep=keep, bias=bias, causal=causal, sinks=spread)  # type: ignore[arg-type]  # arrays


def _spreads_over(shape: Sequence[int], scores: Sequence[int]) -> bool:
    return all(own in (1, size) for own, size in zip(shape, scores, strict=True))


def as_heads(value: Array, letters: str, heads: int | None) -> Array | None:
    """A tensor with its axes in the order of heads; blocks of tokens are items."""
    if PARTED in letters:
        value = np.moveaxis(value, letters.index(PARTED), 0)
        letters = letters.replace(PARTED, "")
        value = np.moveaxis(value, 1 + letters.index("B"), 0)
        rest = letters.replace("B", "")
        value, letters = value.reshape(-1, *value.shape[2:]), f"B{rest}"
    if "M" in letters:  # heads and features in one axis, the last
        if letters != "BLM" or not heads or value.shape[-1] % heads:
            return None
        apart = value.reshape(*value.shape[:2], heads, -1)
        return np.moveaxis(apart, 2, 1)
    folded = next((letter for letter in letters if letter in "FW"), "")
    if folded:  # items and heads in one axis
        if not heads or value.shape[letters.index(folded)] % heads:
            return None
        ordered = np.transpose(value, [letters.index(letter) for letter in f"{folded}LD"])
        leads = folded == "W"
        apart = ordered.reshape(*((heads, -1) if leads else (-1, heads)), *ordered.shape[1:])
        return apart.swapaxes(0, 1) if leads else apart
    if sorted(letters) != sorted(_HEADS):
        return None
    return np.transpose(value, [letters.index(letter) for letter in _HEADS])


def _as_mask(value: Array, mask: MaskInput, heads: int | None, keys: int) -> Array | None:
    axes = mask.axes
    if mask.role == "lengths":
        value, axes = np.arange(keys) < value.reshape(-1, 1), "BK"
    elif mask.role == "bias":  # whole numbers may be added, too
        value = mask.factor * (value if value.dtype.kind == "f" else value.astype(np.float32))
    if value.ndim != len(axes):
        return None
    if axes[:1] in ("F", "W"):
        if not heads or value.shape[0] % heads:
            return None
        lead = (-1, heads) if axes[0] == "F" else (heads, -1)
        value, axes = value.reshape(*lead, *value.shape[1:]), f"{spelled(axes[0])}{axes[1:]}"
    sizes = dict(zip(axes, value.shape, strict=True))
    varying = [letter for letter in axes if letter != "1"]
    ordered = sorted(varying, key=_MASK.find)
    if not set(varying) <= set(_MASK) or math.prod(sizes[one] for one in varying) != value.size:
        return None
    turned = np.transpose(
        value.reshape([sizes[one] for one in varying]), [varying.index(one) for one in ordered]
    )
    return turned.reshape([sizes[letter] if letter in varying else 1 for letter in _MASK])


def _together(masks: list[tuple[str, Array]]) -> tuple[Array | None, Array | None]:
    """Combine masks into one that keeps and one that is added."""
    keep: Array | None = None
    bias: Array | None = None
    for role, value in masks:
        if role == "bias":
            bias = value if bias is None else bias + value
        else:
            shown = value != 0 if role.startswith("keep") else value == 0
            keep = shown if keep is None else keep & shown
    if bias is not None and not np.isfinite(bias).all():
        shown = bias > -np.inf
        keep, bias = shown if keep is None else keep & shown, np.where(shown, bias, 0)
    return keep, bias
