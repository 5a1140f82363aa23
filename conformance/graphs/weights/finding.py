"""The weights of a graph: from its source, a state dict, its own tensors, or none.

A state dict or safetensors file is read whatever its content.
"""

from __future__ import annotations

import pickle
import re
import warnings
import zipfile
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

from ..._golden import golden
from ...base.parameter_names import role_of
from ...errors import UsageError
from ..opened import GraphProjections, Stages
from ..process import GraphProcess
from ..protocol import Array, GraphRefused
from ..reading import GraphReading, Header
from ..sidecar import GraphDeclaration
from .attention_core import find_cores, is_coarse, read_wiring
from .matching import NEAREST, SPOKEN, Reference, compare_projections, locate_projections
from .probing import FREE_SIZES, RunnableGraph
from .projecting import UNKNOWN, gauge_of, snapped
from .recovering import Recovered, recover, stages_of
from .wiring import UnreadableError, Wiring

# A foreign graph may have unexpected axes and attributes: it is left unread, and the run goes on
# without weights.
_UNUSUAL: Final = (UnreadableError, ValueError, KeyError, IndexError, TypeError)


@dataclass(frozen=True, kw_only=True)
class _Structure:
    """The findings from the nodes of a graph, and why there are no more."""

    stages: Stages = Stages()  # noqa: RUF009 (a frozen dataclass of texts)
    recovered: Recovered | None = None
    reason: str = ""


def find_weights(
    header: Header,
    process: GraphProcess,
    reading: GraphReading,
    declared: GraphDeclaration,
    *,
    state_dict: Mapping[str, Tensor] | None,
    source: GraphProjections | None,
) -> GraphProjections:
    """Find the projections of a layer's graph and their origin; a core has none.

    The exported module's weights in ``source`` come first, then the state dict, then the graph's
    stored tensors. Raises UsageError for a state dict unrelated to the graph, and GraphLost.
    """
    with read_wiring(header.path, process) as (wiring, runner, is_original):
        graph = RunnableGraph(header, runner, reading, declared.num_heads, is_coarse(wiring))
        structure = _structure(wiring, graph, core_only=reading.kind == "core")
        if not is_original:
            structure = replace(structure, stages=Stages())
        if reading.kind == "core":
            return GraphProjections(how="declared", stages=structure.stages)
        if source is not None and source.weights is not None:
            return _from_source(structure, source, coarse=graph.coarse)
        if state_dict is not None:
            result = from_state_dict(structure.recovered, state_dict, graph)
            if result is not None:
                return replace(result, stages=structure.stages)
        return _from_graph(structure, declared)


def _structure(wiring: Wiring, graph: RunnableGraph, *, core_only: bool) -> _Structure:
    """Read the structure, and why it is incomplete; broken graphs are tried at other sizes."""
    try:
        tokens = frozenset(role.name for role in graph.tokens.values())
        cores = find_cores(wiring, tokens, graph.reading.output.name)
    except _UNUSUAL as error:
        return _Structure(reason=_said(error))
    stages = stages_of(cores)
    reason = ""
    for sizes in () if core_only else FREE_SIZES:
        try:
            recovered = recover(wiring, replace(graph, sizes=sizes), cores)
            return _Structure(stages=stages, recovered=recovered)
        except (*_UNUSUAL, GraphRefused) as error:
            reason = reason or _said(error)
    return _Structure(stages=stages, reason=reason)


def _said(error: Exception) -> str:
    """Return on one line why a graph could not be read."""
    if isinstance(error, UnreadableError | GraphRefused):
        return " ".join(str(error).split())
    return f"its structure is unusual ({type(error).__name__}: {' '.join(str(error).split())})"


def _from_graph(structure: _Structure, declared: GraphDeclaration) -> GraphProjections:
    recovered = structure.recovered
    if recovered is None:
        return GraphProjections(
            how="none",
            gauge=UNKNOWN,
            stages=structure.stages,
            num_heads=declared.num_heads,
            num_kv_heads=declared.num_kv_heads,
            assumptions=(f"the weights could not be read from the graph: {structure.reason}",),
        )
    gauge = gauge_of(recovered.scale, len(recovered.weights.q) // recovered.num_heads)
    return GraphProjections(
        weights=recovered.weights,
        num_heads=recovered.num_heads,
        num_kv_heads=recovered.num_kv_heads,
        how="graph",
        scale=recovered.scale,
        gauge="; ".join(filter(None, (gauge, recovered.layout))),
        stages=structure.stages,
        assumptions=recovered.assumptions,
    )


def _from_source(
    structure: _Structure, source: GraphProjections, *, coarse: bool
) -> GraphProjections:
    """Return the source's weights, with their distance from the graph's.

    ``coarse``: weights the graph rounded to 8 bits are taken from the graph.
    """
    recovered = structure.recovered
    assert source.weights is not None  # noqa: S101 (the caller's condition)
    if recovered is None:
        note = f"the graph's own weights could not be read: {structure.reason}"
        return replace(
            source, how="source", stages=structure.stages, assumptions=(*source.assumptions, note)
        )
    reference = compare_projections(recovered.weights, source.weights, coarse=coarse)
    notes = list(recovered.assumptions) + list(reference.differences)
    if source.num_heads and recovered.num_heads != source.num_heads:
        notes.append(f"the graph has {recovered.num_heads} heads, the source {source.num_heads}")
    scale = recovered.scale
    if scale is not None:
        scale *= reference.factors["q"] * reference.factors["k"]
        size = len(source.weights.q) // (source.num_heads or recovered.num_heads)
        scale = snapped(scale, size, recovered.roundoff)
    return replace(
        source,
        how="source",
        weights=reference.weights,
        num_heads=source.num_heads or recovered.num_heads,
        num_kv_heads=source.num_kv_heads or recovered.num_kv_heads,
        scale=scale,
        stages=structure.stages,
        assumptions=(*source.assumptions, *notes),
    )


# Keys of the state dict in checkpoints with further content.
_WRAPPERS: Final = ("state_dict", "model_state_dict", "model", "module", "net", "params")
_DEPTH: Final = 3
# Undocumented exceptions of torch.load on foreign files.
_JUNK: Final = (
    pickle.UnpicklingError,
    zipfile.BadZipFile,
    RuntimeError,
    ValueError,
    KeyError,
    IndexError,
    AttributeError,
    EOFError,
    TypeError,
    OSError,
    ImportError,
    MemoryError,
    OverflowError,
    AssertionError,
)


def read_state_dict(path: Path) -> dict[str, Tensor]:
    """Return the float tensors of a file by name: safetensors by suffix, else torch's format.

    Never runs code of the file (``weights_only=True``). Raises UsageError.
    """
    if not path.is_file():
        msg = f"no state dict at {str(path)!r}: give the path of a .pt, .pth or .safetensors file"
        raise UsageError(msg)
    read = _read_safetensors if path.suffix == ".safetensors" else _read_torch
    result = {
        name: tensor
        for name, tensor in _tensors(read(path), _DEPTH).items()
        if tensor.is_floating_point() and tensor.layout is torch.strided and not tensor.is_meta
    }
    if not result:
        msg = f"{str(path)!r} holds no tensors by name: save it with torch.save(m.state_dict(), …)"
        raise UsageError(msg)
    return result


def _read_torch(path: Path) -> Any:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return torch.load(path, map_location="cpu", weights_only=True)
    except _JUNK as error:
        msg = (
            f"{str(path)!r} is no state dict that torch.load(weights_only=True) reads "
            f"({type(error).__name__}): save it with torch.save(module.state_dict(), …)"
        )
        raise UsageError(msg) from error


def _read_safetensors(path: Path) -> Any:
    from safetensors import SafetensorError  # noqa: PLC0415 (only files of this kind need it)
    from safetensors.torch import load_file  # noqa: PLC0415 (the same)

    try:
        return load_file(path, device="cpu")
    except (SafetensorError, *_JUNK) as error:
        msg = f"{str(path)!r} is no safetensors file ({type(error).__name__})"
        raise UsageError(msg) from error


def _tensors(result: Any, depth: int) -> dict[str, Tensor]:
    """Return the tensors of a mapping, or of a mapping wrapped in it."""
    if not isinstance(result, Mapping):
        return {}
    for key in _WRAPPERS if depth else ():
        if isinstance(result.get(key), Mapping) and (inner := _tensors(result[key], depth - 1)):
            return inner
    return {str(name): value for name, value in result.items() if isinstance(value, Tensor)}


_MATRIX: Final = 2
_KINDS: Final = re.compile(r"(.*?)[._]?(weight|bias|kernel)$")


def named_projections(
    tensors: Mapping[str, Tensor], widths: Mapping[str, int]
) -> dict[str, dict[str, Tensor]]:
    """Return ``q``, ``q_bias``, … by prefix, for each prefix with query, key and value.

    ``widths``: the widths of the tokens of ``q``, ``k`` and ``v``, which show the orientation of
    matrices.
    """
    result: dict[str, dict[str, Tensor]] = defaultdict(dict)
    for name, tensor in tensors.items():
        roles, clear = role_of(name)
        if not roles or (not clear and roles != "o"):
            continue
        prefix, bias = _prefix(name, tensor)
        for role, piece in _pieces(roles, tensor, widths):
            result[prefix].setdefault(f"{role}_bias" if bias else role, piece)
    return {prefix: parts for prefix, parts in result.items() if set("qkv") <= set(parts)}


def _prefix(name: str, tensor: Tensor) -> tuple[str, bool]:
    """Return the path of a tensor's attention, and whether the tensor is a bias."""
    match = _KINDS.match(name)
    stem, kind = match.groups() if match else (name, "")
    components = stem.split(".")
    while len(components) > 1 and components[-1].isdigit():
        components.pop()
    return ".".join(components[:-1]), kind == "bias" or tensor.ndim < _MATRIX


def _pieces(roles: str, tensor: Tensor, widths: Mapping[str, int]) -> Iterator[tuple[str, Tensor]]:
    """Yield a tensor cut into its roles, matrices as ``[out, in]``."""
    if tensor.ndim > _MATRIX:
        return
    width = widths.get(roles[0])
    if tensor.ndim == _MATRIX and tensor.shape[1] != width and tensor.shape[0] == width:
        tensor = tensor.T
    if tensor.shape[0] % len(roles) == 0:
        yield from zip(roles, tensor.chunk(len(roles)), strict=True)


def head_counts(
    graph: RunnableGraph, parts: Mapping[str, Tensor], declared: int | None
) -> tuple[int, int] | None:
    """``(heads, key/value heads)`` with which the golden comes near to the graph's answers."""
    weights = golden.ProjectionWeights(**parts)
    tokens = {
        role: np.random.default_rng(len(role)).standard_normal(graph.shape(role))
        for role in graph.tokens
    }
    answer = graph.answer(graph.run(tokens))
    inputs = [torch.from_numpy(tokens[graph.role_of(part)]) for part in ("query", "key", "value")]
    best: tuple[float, tuple[int, int]] | None = None
    for counts in _counts(weights, declared):
        error = _error(inputs, weights, counts, graph.reading.causal, answer)
        if error < NEAREST and (best is None or error < best[0]):
            best = error, counts
    return None if best is None else best[1]


def _counts(weights: golden.ProjectionWeights, declared: int | None) -> Iterator[tuple[int, int]]:
    """Yield all divisions of the rows into heads."""
    rows, shared = len(weights.q), len(weights.k)
    for heads in [declared] if declared else range(1, rows + 1):
        size, rest = divmod(rows, heads)
        if not rest and shared % size == 0 and heads % (shared // size or 1) == 0:
            yield heads, shared // size


def _error(
    inputs: list[Tensor],
    weights: golden.ProjectionWeights,
    counts: tuple[int, int],
    causal: str | None,
    answer: Array,
) -> float:
    semantics = golden.Semantics(causal_alignment=causal or "bottom-right")  # type: ignore[arg-type]  # an alignment or None
    try:
        result = golden.multi_head_attention(
            inputs[0],
            inputs[1],
            inputs[2],
            weights,
            num_heads=counts[0],
            num_kv_heads=counts[1],
            causal=causal is not None,
            semantics=semantics,
        ).output.numpy()
    except (ValueError, TypeError):
        return float("inf")
    if result.shape != answer.shape:
        return float("inf")
    size = float(np.linalg.norm(result)) or 1.0
    return float(np.linalg.norm(result - answer)) / size


def from_state_dict(
    recovered: Recovered | None, tensors: Mapping[str, Tensor], graph: RunnableGraph
) -> GraphProjections | None:
    """What a state dict says of a graph; None where its names and the graph's answers say nothing.

    Raises UsageError for a state dict without the projections of the graph.
    """
    widths = {part[0]: graph.shape(graph.role_of(part))[-1] for part in _PARTS}
    named = named_projections(tensors, widths)
    if recovered is None:
        return _by_names(named, graph)
    reference = locate_projections(recovered.weights, tensors, coarse=graph.coarse)
    if reference.missing:
        reference = _completed(reference, recovered, named)
    return _judged(recovered, _by_role(reference))


def _by_role(reference: Reference) -> Reference:
    """Return the reference with tensors in the roles of their names, where the graph swaps them."""
    named = {name: role_of(place) for name, place in reference.where.items()}
    crossed = {name: roles for name, (roles, clear) in named.items() if clear and roles != name}
    if not crossed or set(crossed) != set(crossed.values()):
        return reference
    raw, where = dict(reference.raw), dict(reference.where)
    for name, role in crossed.items():
        raw[role], where[role] = reference.raw[name], reference.where[name]
        raw[f"{role}_bias"] = reference.raw[f"{name}_bias"]
    declared = [
        f"the graph projects its {SPOKEN[name]} by {reference.where[name]}, which is called the "
        f"{SPOKEN[role]}'s"
        for name, role in crossed.items()
    ]
    return replace(reference, raw=raw, where=where, differences=(*reference.differences, *declared))


_PARTS = ("query", "key", "value")


def _judged(recovered: Recovered, reference: Reference) -> GraphProjections:
    weights = reference.weights
    scale = recovered.scale
    if scale is not None:
        scale *= reference.factors["q"] * reference.factors["k"]
        scale = snapped(scale, len(weights.q) // recovered.num_heads, recovered.roundoff)
    notes = [*recovered.assumptions, *reference.differences]
    factor = reference.factors["v"] * reference.factors["o"]
    if abs(factor - 1) > len(SPOKEN) * recovered.roundoff * len(weights.v):
        notes.append(f"the graph's values or answers are {factor:.4g} times the state dict's")
    where = ", ".join(f"{SPOKEN[name]} in {place}" for name, place in reference.where.items())
    return GraphProjections(
        weights=weights,
        num_heads=recovered.num_heads,
        num_kv_heads=recovered.num_kv_heads,
        how="state dict",
        scale=scale,
        gauge=recovered.layout,
        assumptions=(f"weights of the state dict: {where}", *notes),
    )


def _completed(
    reference: Reference, recovered: Recovered, named: Mapping[str, Mapping[str, Tensor]]
) -> Reference:
    """Fill in missing weights by name; raises UsageError where none fits."""
    prefixes = [prefix for prefix, parts in named.items() if _fits(parts, recovered, reference)]
    near = [
        prefix
        for prefix in prefixes
        if any(place.startswith(prefix) for place in reference.where.values())
    ]
    chosen = near or prefixes
    if len(chosen) != 1:
        missing = ", ".join(
            SPOKEN[name[0]] + name[1:].replace("_", " ") for name in reference.missing
        )
        why = (
            "none of its names says which it is" if not chosen else f"{len(chosen)} could be meant"
        )
        msg = (
            f"the state dict holds nothing equal to the graph's {missing} and {why}: give the "
            "state dict that the graph was exported with"
        )
        raise UsageError(msg)
    parts = named[chosen[0]]
    raw = dict(reference.raw)
    for name in reference.missing:
        own = raw[name]
        taken = parts.get(name)
        raw[name] = None if taken is None or own is None else taken.to(own.dtype).contiguous()
    whole = replace(reference, raw=raw, missing=())
    compared = compare_projections(recovered.weights, whole.weights, "the state dict")
    places = {**{name: chosen[0] or name for name in SPOKEN if name in parts}, **reference.where}
    return replace(whole, where=places, differences=compared.differences)


def _fits(parts: Mapping[str, Tensor], recovered: Recovered, reference: Reference) -> bool:
    """Tell whether named tensors have the shapes of the graph's missing weights."""
    own = recovered.weights
    return all(
        name in parts and parts[name].shape == getattr(own, name).shape
        for name in reference.missing
        if not name.endswith("bias")
    )


def _by_names(
    named: Mapping[str, Mapping[str, Tensor]], graph: RunnableGraph
) -> GraphProjections | None:
    """Return the single named attention with the graph's answers, and head counts."""
    fitting = []
    for prefix, parts in named.items():
        counts = head_counts(graph, parts, graph.num_heads)
        if counts is not None:
            fitting.append((prefix, parts, counts))
    if len(fitting) != 1:
        return None
    prefix, parts, (heads, kv_heads) = fitting[0]
    under = f" under {prefix}" if prefix else ""
    tried = f"{heads} heads: so the golden comes nearest to the graph's answers"
    return GraphProjections(
        weights=golden.ProjectionWeights(**parts),
        num_heads=heads,
        num_kv_heads=kv_heads,
        how="state dict",
        assumptions=(f"weights of the state dict by its names{under}", tried),
    )
