"""Tell whether a graph or module is a whole model: more than a projected attention."""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from pathlib import Path
from typing import Final

from torch import nn

from ..graphs.protocol import GraphRefused
from ..graphs.weights.attention_core import Core, contraction_of
from ..graphs.weights.wiring import SHAPE_OPERATORS, Node
from .model_graph import ModelGraph, read_graph
from .model_inputs import ModelInput
from .recording import ModuleRecording
from .site import Uncut
from .sites import Sites, attention_cores, branches, sites_of
from .torch_sites import TorchSite

_NORMS: Final = frozenset(
    "LayerNormalization SimplifiedLayerNormalization SkipLayerNormalization "
    "SkipSimplifiedLayerNormalization EmbedLayerNormalization RMSNormalization GroupNormalization "
    "BatchNormalization InstanceNormalization LpNormalization".split()
)
_BENDS: Final = frozenset(
    "BiasGelu Celu Elu Erf FastGelu Gelu HardSigmoid HardSwish LeakyRelu Mish PRelu QuickGelu Relu "
    "Selu Sigmoid Silu Softplus Swish Tanh".split()
)
_RECURRENT: Final = frozenset({"GRU", "LSTM", "RNN"})
_FLOATS: Final = frozenset({1, 10, 11, 16})  # onnx' numbers of the types that heads have
_STORED: Final = _FLOATS | {2, 3}  # and those of their integers
# A residual sum, a normalisation, an activation: a single attention may have one of them.
_ENOUGH: Final = 2


def model_sites(path: Path) -> Sites | None:
    """Return the attentions of a graph that is a whole model; None for any other file.

    Also None for an unreadable file or no graph: opening the file will give the reason.
    """
    if not path.is_file():
        return None
    try:
        graph = read_graph(path)
    except (GraphRefused, OSError, MemoryError):
        return None
    return sites_of(graph) if is_model(graph) else None


def is_model(graph: ModelGraph) -> bool:
    """Tell whether a graph is more than one attention with its projections.

    The graph attends to tensors made of integers, such as tokens; or embeds integers beside floats;
    or computes one attention from another's answer; or answers weights alone; or is a layer of a
    model: with at least two of a residual sum, a normalisation and an activation such as ReLU.
    """
    cores = [core for _, core in attention_cores(graph)]
    good = [core for core in cores if isinstance(core, Core)]
    if not good:
        inner = [part for part, _ in branches(graph)]
        numbers = _of_numbers(graph, graph.inputs)
        parts = [graph, *inner] if cores or inner else []
        return any(numbers or _embeds(part, name) for part in parts for name in graph.inputs)
    if _of_numbers(graph, graph.wiring.reaching(good[0].query.name, graph.inputs)):
        return True
    if any(_embeds(graph, name) for name in graph.inputs):
        return True
    heads = {core.heads for core in good}
    if heads.isdisjoint(graph.answered):
        return True
    last = good[-1]
    above = [graph.wiring.above(part.name) for part in (last.query, last.key, last.value)]
    return any(heads & names for names in above) or _is_layer(graph, last)


def _of_numbers(graph: ModelGraph, names: Iterable[str]) -> bool:
    """Tell whether inputs are given and none of them holds floats."""
    types = [graph.input_types.get(name, 0) for name in names]
    return bool(types) and _FLOATS.isdisjoint(types)


def _embeds(graph: ModelGraph, name: str) -> bool:
    """Tell whether an input chooses rows of a stored table that weights multiply later.

    Tables of rotations are indexed, too, but not multiplied by weights.
    """
    if graph.input_types.get(name, 0) in _FLOATS:
        return False
    wiring, stored = graph.wiring, graph.wiring.initializers
    waiting, visited, embedded = [name], {name}, set[str]()
    while waiting:
        own = waiting.pop()
        for node in wiring.consumers[own]:
            if own in embedded and (node.op_type in _RECURRENT or _weighs(node, stored)):
                return True
            if node.op_type in SHAPE_OPERATORS or contraction_of(node) is not None:
                continue
            table = stored.get(node.input[0]) if node.op_type == "Gather" else None
            fresh = {made for made in node.output if made} - visited
            if own in embedded or (table is not None and table.data_type in _STORED):
                embedded |= fresh
            visited |= fresh
            waiting += sorted(fresh)
    return False


def _weighs(node: Node, stored: Container[str]) -> bool:
    product = contraction_of(node)
    return product is not None and any(name in stored for name in product.operands)


def _is_layer(graph: ModelGraph, core: Core) -> bool:
    wiring = graph.wiring
    below, waiting, operators = {core.heads}, [core.heads], set[str]()
    while waiting:
        for node in wiring.consumers[waiting.pop()]:
            operators.add(node.op_type)
            fresh = {name for name in node.output if name} - below
            below |= fresh
            waiting += sorted(fresh)
    residual = any(
        wiring.reaching(name, graph.inputs)
        for node in wiring.graph.node
        if node.op_type in ("Add", "Sum") and below & set(node.input)
        for name in node.input
        if name not in below
    )
    anywhere = {node.op_type for node in wiring.graph.node}
    norms = bool(_NORMS & (anywhere if residual else operators))
    return residual + norms + bool(_BENDS & operators) >= _ENOUGH


_CALLED_NORMS: Final = frozenset(
    "layer_norm rms_norm group_norm batch_norm instance_norm rsqrt".split()
)
_CALLED_BENDS: Final = frozenset(
    "gelu relu silu tanh sigmoid elu softplus mish leaky_relu hardswish selu celu glu".split()
)
_SUMS: Final = frozenset({"add"})
_MANY_MATRICES: Final = 5


def may_be_model(module: nn.Module) -> bool:
    """Tell whether a module has parts no attention needs, and is worth running to find out."""
    parts = list(module.modules())
    names = {type(part).__name__ for part in parts}
    matrices = sum(isinstance(part, nn.Linear) for part in parts)
    attentions = sum(isinstance(part, nn.MultiheadAttention) for part in parts)
    others = (nn.Embedding, nn.Conv1d, nn.Conv2d)
    return (
        matrices >= _MANY_MATRICES
        or attentions > 1
        or any(isinstance(part, others) for part in parts)
        or any("Norm" in name or name in _MODULES_THAT_BEND for name in names)
    )


_MODULES_THAT_BEND: Final = frozenset("GELU ReLU SiLU Tanh Sigmoid ELU Mish LeakyReLU".split())


def is_torch_model(
    recording: ModuleRecording,
    sites: Sequence[TorchSite],
    uncut: Sequence[Uncut],
    inputs: Sequence[ModelInput],
) -> bool:
    """Tell whether a recording is more than one attention with its projections, as for graphs.

    The module attends to tensors made of integers or pictures; or computes one attention from
    another's answer; or has at least two of a residual sum, a normalisation and an activation.
    """
    attends_to_data = any(entry.role in ("tokens", "image") for entry in inputs)
    if not sites:
        return bool(uncut) and attends_to_data
    if attends_to_data:
        return True
    last = sites[-1]
    before = {site.output_value for site in sites[:-1]}
    above = _values_above(recording, [edge.number for edge in last.edges.values()])
    return bool(before & above) or _is_torch_layer(recording, last)


def _values_above(recording: ModuleRecording, numbers: Sequence[int]) -> set[int]:
    waiting, visited = list(numbers), set(numbers)
    while waiting:
        call = recording.values[waiting.pop()].made_by
        if call is None:
            continue
        fresh = {*call.reads, *(before for before, _ in call.renewed)} - visited
        visited |= fresh
        waiting += sorted(fresh)
    return visited


def _is_torch_layer(recording: ModuleRecording, site: TorchSite) -> bool:
    below = {site.output_value}
    names: set[str] = set()
    residual = False
    for call in recording.calls:
        reads = set(call.reads)
        if not reads & below:
            continue
        names.add(call.name)
        below |= {*call.results, *(after for _, after in call.renewed)}
        others = [recording.values[number] for number in reads - below]
        residual |= call.name in _SUMS and any(value.above for value in others)
    anywhere = {call.name for call in recording.calls}
    norms = bool(_CALLED_NORMS & (anywhere if residual else names))
    return residual + norms + bool(_CALLED_BENDS & names) >= _ENOUGH
