"""An ONNX file as a candidate: read, opened in a child process, its roles and weights found."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from torch import nn

from .._golden import golden
from ..base.record import SiteEntry
from ..declare.candidate import Candidate
from ..declare.decorators import core, fixed_layer
from ..errors import DeclarationError, UsageError
from ..graphs.opened import GraphProjections, OpenedGraph
from ..graphs.process import DEFAULT, Array, Feeds, GraphProcess, Setting
from ..graphs.protocol import GraphLost, GraphRefused
from ..graphs.reading import GraphReading, Header
from ..graphs.roles import read_roles, read_without_calls
from ..graphs.sidecar import GraphDeclaration, read_declaration, sidecar_of
from ..graphs.validation import read_header
from ..graphs.weights import find_weights, read_state_dict
from ..graphs.weights.projecting import UNKNOWN
from .graph_forward import GraphForward, mask_pairs
from .module import assuming
from .source import ExportSource, source_of

DOUBLES: Final = (
    "accumulate is float32: onnxruntime rounds the scale of doubles to float (docs/findings/012)"
)
LOWEST: Final = Setting(level="disabled")
_SATURATES: Final = (
    "this machine adds products of 8-bit integers in 16 bits and cuts off what does not fit: the "
    "graph was judged with its weights as unsigned integers, which avoids it, but run as it is its "
    "answers are wrong on such machines; quantise it with reduce_range=True, or set the session's "
    "option session.x64quantprecision to 1"
)
# The limit of weights recovered from the graph itself.
_OWN_WITNESS: Final = (
    "the weights are those that the graph stores: whether a matrix is exchanged, transposed or out "
    "of date shows only beside --source or --state-dict"
)
_QUANTISED: Final = ("DynamicQuantizeLinear", "MatMulInteger")


@dataclass(frozen=True, kw_only=True)
class GraphRequest:
    """What the user passed for a graph: files, the module it was exported from, promises.

    declared
        The declaration of a graph cut out of a model, in place of a file.
    site, file
        The graph's place in the model, and the object that keeps its file alive.
    warnings
        Sentences of warning, as in :class:`Candidate`.
    """

    declaration: Path | None = None
    state_dict: Path | None = None
    source: ExportSource | None = None
    name: str | None = None
    promises: Mapping[str, Any] = field(default_factory=dict)
    declared: GraphDeclaration | None = None
    site: SiteEntry | None = None
    file: object = None
    warnings: tuple[str, ...] = ()


def graph(
    path: str | Path,
    *,
    source: nn.Module | Candidate | None = None,
    state_dict: str | Path | None = None,
    declaration: str | Path | None = None,
    name: str | None = None,
    **promises: Any,
) -> Candidate:
    """Declare an ONNX file that computes attention; it runs on onnxruntime in a child process.

    ``declaration`` (by default the file ``NAME.conformance.toml`` beside it) gives the roles of
    inputs and outputs, else they are found by behaviour. Weights come from ``source`` or
    ``state_dict``, else they are recovered from the graph. The declaration's ``assumptions`` list
    the findings.

    source
        The exported module, or a candidate with its own weights.
    state_dict
        A file of weights: ``.pt``, read with ``weights_only=True``, or ``.safetensors``.
    promises
        As for :func:`conformance.layer`: ``empty_rows``, ``semantics``, ``expected_failures`` …

    Raises UsageError with a sentence for a file that cannot be opened or holds no attention, and
    for a declaration that contradicts the file.
    """
    return graph_candidate(
        Path(path),
        GraphRequest(
            declaration=None if declaration is None else Path(declaration),
            state_dict=None if state_dict is None else Path(state_dict),
            source=None if source is None else source_of(source, type(source).__name__),
            name=name,
            promises=promises,
        ),
    )


def graph_candidate(path: Path, request: GraphRequest) -> Candidate:
    """The candidate of an ONNX file; raises UsageError, see :func:`graph`."""
    header = read_header(path)
    declared = request.declared or _declaration(path, request)
    declared = dataclasses.replace(
        declared,
        name=request.name or declared.name,
        promises={**declared.promises, **request.promises},
    )
    process = GraphProcess(path)
    try:
        reading, weights, warnings = _read(header, process, declared, request)
        if process.saturates():
            warnings.append(_SATURATES)
        request = dataclasses.replace(request, warnings=(*request.warnings, *warnings))
    except GraphRefused as error:
        process.close()
        msg = f"{path} cannot be run: {error}"
        raise UsageError(msg) from None
    except BaseException:
        process.close()
        raise
    return _candidate(header, declared, process, reading, weights, request)


def _declaration(path: Path, request: GraphRequest) -> GraphDeclaration:
    file = request.declaration or sidecar_of(path)
    return GraphDeclaration() if file is None else read_declaration(file)


def _read(
    header: Header, process: GraphProcess, declared: GraphDeclaration, request: GraphRequest
) -> tuple[GraphReading, GraphProjections, list[str]]:
    """Roles, weights, and warnings.

    A graph that hangs or dies is read again without optimisation, then by its file alone; the
    missing answer is reported as a failure.
    """
    notes: list[str] = []
    for setting in (DEFAULT, LOWEST):
        process_at = _ProcessAt(process, setting)
        try:
            reading = read_roles(header, process_at.run, declared)
        except GraphLost as lost:
            at = "" if setting == DEFAULT else " with nothing optimised, too"
            notes.append(f"when its inputs were tried{at}, the graph {lost}")
            continue
        reading, warnings = _as_its_source(request.source, reading, header, declared)
        weights = _weights(header, process_at, reading, declared, request)
        return _noted(reading, notes), weights, warnings
    return _noted(read_without_calls(header, declared), notes), GraphProjections(gauge=UNKNOWN), []


# Pairs of mask roles with opposite polarity.
_OPPOSITES: Final = (
    {"keep", "drop"},
    {"keep_int", "drop_int"},
)


def _as_its_source(
    source: ExportSource | None, reading: GraphReading, header: Header, declared: GraphDeclaration
) -> tuple[GraphReading, list[str]]:
    """The reading with the causal rule of the source, and warnings; the graph's rule may be broken.

    Warnings name masks of opposite polarity in graph and source: the graph's polarity counts,
    except in comparisons with the source.
    """
    if source is None or source.module is None or source.lacking(reading)[0]:
        return reading, []
    refusals: list[str] = []
    try:
        meant = read_roles(header, source.runner(reading, refusals), declared)
    except UsageError:
        if not refusals:
            return reading, []
        msg = f"--source {source.shown} cannot be called with the graph's inputs: {refusals[-1]}"
        raise UsageError(msg) from None
    theirs = {role.name: role.role for role in meant.inputs}
    warnings = [
        f"{own.name} is read with the opposite polarity of the source's: what it hides is attended"
        for own in reading.inputs
        if {own.role, theirs.get(own.name)} in _OPPOSITES
    ]
    if meant.causal == reading.causal:
        return reading, warnings
    rule = "always applies a causal rule" if meant.causal else "applies no causal rule"
    causal = dataclasses.replace(reading, causal=meant.causal)
    return _noted(causal, [f"the source {rule}"]), warnings


def _noted(reading: GraphReading, notes: Sequence[str]) -> GraphReading:
    return dataclasses.replace(reading, assumptions=(*reading.assumptions, *notes))


class _ProcessAt(GraphProcess):
    """A process with another default setting for its runs."""

    def __init__(self, process: GraphProcess, setting: Setting) -> None:
        self.path, self.limits = process.path, process.limits
        self._process, self._setting = process, setting

    def request(self, do: str, feeds: Feeds | None = None, **how: Any) -> tuple[Any, Any]:
        """Forward a request to the underlying process."""
        if how.get("setting", DEFAULT) == DEFAULT:
            how["setting"] = self._setting
        return self._process.request(do, feeds, **how)


def _weights(
    header: Header,
    process: GraphProcess,
    reading: GraphReading,
    declared: GraphDeclaration,
    request: GraphRequest,
) -> GraphProjections:
    source = request.source
    of_source = None if source is None else source.projections

    def find(state_dict: Any, source: GraphProjections | None = None) -> GraphProjections:
        return find_weights(
            header, process, reading, declared, state_dict=state_dict, source=source
        )

    try:
        if request.state_dict is not None:
            return find(read_state_dict(request.state_dict), of_source)
        if source is None or of_source is not None or source.module is None:
            return find(None, of_source)
        try:  # the structure is unknown, but the module's tensors exist
            return find(dict(source.module.state_dict()))
        except UsageError as error:  # the clauses will show that the two differ
            weights = find(None)
            return dataclasses.replace(weights, assumptions=(*weights.assumptions, str(error)))
    except (GraphLost, GraphRefused) as error:  # no answer from which to recover weights
        note = f"the weights could not be read from the graph, which gave no answer: {error}"
        if of_source is None:
            return GraphProjections(gauge=UNKNOWN, assumptions=(note,))
        return dataclasses.replace(of_source, assumptions=(note, "its source's are taken"))


def _candidate(
    header: Header,
    declared: GraphDeclaration,
    process: GraphProcess,
    reading: GraphReading,
    weights: GraphProjections,
    request: GraphRequest,
) -> Candidate:
    source = request.source
    pinned = reading.pins.get("num_heads")
    heads = declared.num_heads or weights.num_heads or (pinned if isinstance(pinned, int) else None)
    shapes = {port.name: port.shape for port in header.inputs if port.shape is not None}

    def forward(setting: Setting) -> GraphForward:
        def run(feeds: Feeds) -> dict[str, Array]:
            return process.run(feeds, setting=setting)

        return GraphForward(run, reading, heads, shapes)

    needed, offered = ([], []) if source is None else source.lacking(reading)
    opened = OpenedGraph(
        header=header,
        declaration=declared,
        process=process,
        reading=reading,
        projections=weights,
        forward=forward,
        source=None if source is None else source.forward(reading, heads),
        exported=None if source is None else source.exported(reading, heads),
        lacking=tuple(needed),
        file=request.file,
    )
    candidate = _declared(forward(DEFAULT), opened, heads)
    notes = [*reading.assumptions, *weights.assumptions]
    if _dtype(reading) == "float64" and "accumulate" not in declared.promises:
        notes.append(DOUBLES)
    if weights.how == "graph":
        notes.append(_OWN_WITNESS)
    if source is not None and source.note:
        notes.append(f"{source.shown} tells its tensors alone: its structure is not understood")
    if source is not None and offered:
        notes.append(f"{source.shown} also takes {', '.join(offered)}, which the graph does not")
    opened_candidate = dataclasses.replace(
        candidate, graph=opened, warnings=request.warnings, site=request.site
    )
    return assuming(opened_candidate, *notes)


def _declared(forward: GraphForward, opened: OpenedGraph, heads: int | None) -> Candidate:
    """The candidate with the promises from roles and weights, overridden by the user's."""
    reading, declared = opened.reading, opened.declaration
    promises = {**_promises(opened), **declared.promises}
    name = declared.name or opened.header.path.stem
    try:
        if reading.kind == "core":
            made = core(name=name, **promises)(forward)
        else:
            made = fixed_layer(
                forward,
                opened.projections.weights,
                num_heads=heads,
                num_kv_heads=opened.projections.num_kv_heads,
                name=name,
                **promises,
            )
    except DeclarationError as error:
        where = f" ({declared.where})" if declared.where else ""
        msg = f"{opened.header.path}{where}: {error}"
        raise UsageError(msg) from None
    pairs = mask_pairs(reading)
    declaration = dataclasses.replace(made.declaration, mask_pairs=pairs)
    return dataclasses.replace(made, declaration=declaration)


def _promises(opened: OpenedGraph) -> dict[str, Any]:
    reading, projections = opened.reading, opened.projections
    pairs = mask_pairs(reading)
    features = []
    if any(role.role == "weights" and "H" in role.axes for role in reading.outputs):
        features.append("weights")  # a mean over heads is no table a head
    if reading.kind == "core" and reading.pins.get("num_kv_heads") != reading.pins.get("num_heads"):
        features.append("gqa")
    if reading.role("sinks") is not None:
        features.append("sinks")
    promises: dict[str, Any] = {
        "masks": list(dict.fromkeys(form for form, _ in pairs)),
        "batched": reading.batched,
        "features": features,
        "without": ["gradients"],
        "dtypes": [_dtype(reading)],
        "geometry": dict(reading.pins),
    }
    if pairs:
        promises["mask_shapes"] = list(dict.fromkeys(shape for _, shape in pairs))
    if reading.kind == "layer":
        promises["inputs"] = reading.mode
    if reading.causal is not None:
        promises.update(causal=reading.causal, always_causal=True)
    if projections.gauge and projections.weights is not None and projections.scale is not None:
        promises["semantics"] = golden.STANDARD.replace(scale=projections.scale)
    if _dtype(reading) == "float64":
        promises["accumulate"] = "float32"
    operators = {operator.rpartition("::")[2] for operator in opened.header.operators}
    if opened.declaration.precision or set(_QUANTISED) <= operators:
        promises["precision"] = opened.declaration.precision or "int8-dynamic"
    return promises


def _dtype(reading: GraphReading) -> str:
    names = ("query", "x")
    return next(role.dtype for role in reading.inputs if role.role in names)
