"""A model's attentions as candidates: each distinct attention is a core ``stem#index``."""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

import torch
from torch import Tensor

from .._golden import golden
from ..adapters.graph import GraphRequest, graph_candidate
from ..base.expected import ExpectedFailure
from ..base.printable_text import few
from ..base.profile import NO_GRAPH_OPTIONS, GraphOptions
from ..base.record import SiteEntry
from ..declare.candidate import Candidate
from ..declare.promises import declare
from ..errors import DeclarationError, UsageError
from ..graphs.parsing import external_files
from ..graphs.process import DEFAULT, GraphProcess, Setting
from ..graphs.protocol import GraphLost, GraphRefused
from ..graphs.reading import MODEL_ROLES
from ..graphs.sidecar import GraphDeclaration, read_declaration, sidecar_of
from .cutting import Cut, CutFile, cut
from .mask_facts import (
    POSITIONS,
    MaskFacts,
    mask_facts,
    misplaced_rules,
    rule_of,
    with_rules_told_apart,
)
from .model_inputs import NoAnswerError, UnknownInputError
from .opening import BATCHES, LENGTHS, open_model
from .operands import FLOATS
from .recognition import model_sites
from .siblings import unlike_siblings, ways_of
from .site import Site, Uncut, is_standard
from .sites import Sites
from .whole_model import WholeModel


def model_of_file(path: str | Path, declaration: str | Path | None) -> tuple[Candidate, ...]:
    """Open a whole model in an ONNX file: the model itself, then its distinct attentions.

    The roles of its inputs come from ``declaration`` (by default ``NAME.conformance.toml`` beside
    the file), else from name, type and rank. With unknown roles the model itself is left out, and
    the first attention has a warning. Raises UsageError with one sentence for a file that cannot be
    opened or is no whole model.
    """
    path = Path(path)
    if not path.is_file():
        msg = f"there is no file {path}: check the path"
        raise UsageError(msg)
    sites = model_sites(path)
    if sites is None:
        msg = f"{path} is no whole model: conformance.graph is for a file of one attention"
        raise UsageError(msg)
    options = GraphOptions(declaration=None if declaration is None else str(declaration))
    return tuple(candidate for _, candidate in model_candidates(path, sites, None, options))


def model_candidates(
    path: Path, sites: Sites, number: int | None, options: GraphOptions = NO_GRAPH_OPTIONS
) -> list[tuple[int | None, Candidate]]:
    """Return a whole model (index None) and its distinct attentions with their indices.

    With ``number`` only this attention. A model with unknown inputs is left out: its first
    attention warns of it. Raises UsageError with one sentence if none can be judged, for a number
    out of range, and for options meant for a single attention.
    """
    allowed = {"--declaration"} | ({"--source"} if number is None else set())
    refused = [name for name in options.names() if name not in allowed]
    if refused:
        names = " and ".join(refused)
        msg = (
            f"{path} is a whole model: {names} can be given for one attention only, such as "
            f"{path}#0"
        )
        raise UsageError(msg)
    if number is not None and number >= len(sites.sites):
        last = len(sites.sites) - 1
        known = f"its attentions are #0 to #{last}" if sites.sites else _why_none(sites)
        msg = f"{path} has no attention #{number}: {known}"
        raise UsageError(msg)
    missing = _missing_weights(path, sites)
    if missing and number is None:
        msg = f"{path} {missing}; an attention alone needs no weights: {path}#0"
        raise UsageError(msg)
    process = None if missing else _opened(path)
    described = describe_sites(sites)
    declared = _declared(path, options)
    if number is not None:
        return [(number, _candidate(path, sites, described[number], declared))]
    cores, uncut = _cores(path, sites, described, declared)
    warnings = [f"not judged: {entry.sentence}" for entry in uncut]
    made: list[tuple[int | None, Candidate]] = list(cores.items())
    unjudged = "" if cores else none_judged(uncut)
    try:
        model = open_model(sites, described, declared.inputs, process)
    except UnknownInputError as unknown:
        warnings.append(f"the model as a whole is not judged: {unknown}")
        if isinstance(unknown, NoAnswerError):
            unjudged = warnings[-1]
    else:
        _read_in_place(described, model)
        warnings = [*model.warnings, *warnings]
        whole = dataclasses.replace(model, cores=standing_for(described, cores))
        name = declared.name or path.stem
        made.insert(0, (None, whole_candidate(whole, name, _expected(declared, of_model=True))))
    doubts = [
        *misplaced_rules(described),
        *unlike_siblings(described, ways_of(sites)),
        *_wide_scales(described),
        *_unread(sites),
    ]
    warnings += doubts
    if not made:
        why = f"{_why_none(sites)}; {warnings[-1]}"
        msg = f"{path} has no attention that can be judged alone ({why})"
        raise UsageError(msg)
    index, first = made[0]
    unjudged = "; ".join(filter(None, (unjudged, *doubts)))
    made[0] = (index, dataclasses.replace(first, warnings=tuple(warnings), unjudged=unjudged))
    return made


def _wide_scales(described: Sequence[SiteEntry]) -> Iterator[str]:
    """Yield a sentence for an attention whose scale is that of the width of all its heads."""
    for entry in described:
        scale, size, heads = entry["scale"], entry["head_size"], entry["heads"]
        if scale and size and heads:
            whole = scale * entry.get("scaled_above", 1.0)
            if is_standard(whole, heads * size) and not is_standard(whole, size):
                yield (
                    f"attention #{entry['index']} divides its scores by the root of the width of "
                    "all heads, not by the root of the head size"
                )


def _unread(sites: Sites) -> list[str]:
    """Say which stored numbers no answer is computed from, as where an input was taken off."""
    graph = sites.graph
    names = [
        tensor.name
        for tensor in graph.wiring.initializers.values()
        if tensor.data_type in FLOATS and math.prod(tensor.dims) > 1
        if tensor.name not in graph.answered
    ]
    said = f"no answer is computed from the stored {few(names, 3)}"
    return [f"{said}: unless that is meant, what reads them is lost"] if names else []


def _cores(
    path: Path, sites: Sites, described: Sequence[SiteEntry], declared: GraphDeclaration
) -> tuple[dict[int, Candidate], list[Uncut]]:
    """Each distinct attention by index, and those that cannot be judged alone."""
    uncut, cores = list(sites.uncut), dict[int, Candidate]()
    for entry in filter(is_first, described):
        try:
            cores[entry["index"]] = _candidate(path, sites, entry, declared)
        except DeclarationError:
            raise
        except UsageError as error:  # a runtime may refuse alone what it runs in its model
            reason = f"alone it {str(error).partition('.onnx ')[2] or error}"
            uncut.append(Uncut(nodes=tuple(entry["nodes"]), scope=entry["scope"], reason=reason))
    return cores, uncut


def _read_in_place(described: list[SiteEntry], model: WholeModel) -> None:
    """Complete the causal rules of attentions whose masks only a run of the model shows."""
    unknown = {e["index"]: e for e in described if e["causal"] is None and not e["misplaced"]}
    sizes = [size for size in model.taken.get("length", (POSITIONS,)) if size >= POSITIONS]
    if not unknown or not sizes or not model.is_sequential:
        return
    batch = model.taken.get("batch", BATCHES)[0]
    with contextlib.suppress(GraphRefused, GraphLost):
        for index, inside in model.in_place(model.call(batch, (sizes[0], sizes[0]), None, 1)):
            if index in unknown and inside.causal is None:
                rule = rule_of(inside.shown)
                unknown[index].update(rule._asdict())  # type: ignore[typeddict-item]  # its fields
    with_rules_told_apart(described)


def none_judged(uncut: Sequence[Uncut]) -> str:
    """Why a model of whose attentions none can be judged alone is no green one."""
    which = "its only attention" if len(uncut) == 1 else f"each of its {len(uncut)} attentions"
    return f"{which} is not judged ({uncut[0].sentence})" if uncut else "it has no attention"


def _missing_weights(path: Path, sites: Sites) -> str:
    try:
        # Tensors without any location were left out when the file was read.
        external_files(
            [one for one in sites.graph.model.graph.initializer if one.external_data], path
        )
    except GraphRefused as refusal:
        return str(refusal)
    return ""


def _opened(path: Path) -> GraphProcess:
    """Open a file's process; raises UsageError where no session opens the file."""
    process = GraphProcess(path)
    refusals = []
    for setting in (DEFAULT, Setting(level="disabled")):
        try:
            process.open(setting=setting)
        except (GraphRefused, GraphLost) as error:
            refusals.append(error)
        else:
            return process
    process.close()
    msg = f"{path} cannot be opened: {refusals[-1]}"
    raise UsageError(msg)


def _why_none(sites: Sites) -> str:
    return "; ".join(entry.sentence for entry in sites.uncut)


def _expected(declared: GraphDeclaration, *, of_model: bool) -> tuple[ExpectedFailure, ...]:
    every: tuple[ExpectedFailure, ...] = declared.promises.get("expected_failures", ())
    return tuple(one for one in every if one.clause.startswith("model.") == of_model)


def is_first(entry: SiteEntry) -> bool:
    """Tell whether an attention is the first among equal attentions."""
    return all(entry["index"] < other for other in entry["same_as"])


def standing_for(
    described: Sequence[SiteEntry], cores: Mapping[int, Candidate]
) -> dict[int, Candidate]:
    """Map every attention to the core judged for it: the first among equal attentions."""
    first = {entry["index"]: min([entry["index"], *entry["same_as"]]) for entry in described}
    return {index: cores[judged] for index, judged in first.items() if judged in cores}


def _declared(path: Path, options: GraphOptions) -> GraphDeclaration:
    file = Path(options.declaration) if options.declaration else sidecar_of(path)
    if file is None:
        return GraphDeclaration()
    declared = read_declaration(file)
    if declared.outputs:
        msg = (
            f"{file} gives roles to outputs, which only a graph of one attention has: {path} is a "
            "whole model, so take them out"
        )
        raise UsageError(msg)
    for name, entry in declared.inputs.items():
        if entry.get("role") not in MODEL_ROLES:
            msg = (
                f"{file} gives the input {name!r} the role {entry.get('role')!r}, but {path} is a "
                f"whole model: give one of {', '.join(MODEL_ROLES)}"
            )
            raise UsageError(msg)
    return declared


def _candidate(
    path: Path,
    sites: Sites,
    described: SiteEntry,
    declared: GraphDeclaration,
) -> Candidate:
    """Cut out one attention into a file living as long as the candidate."""
    site = sites.sites[described["index"]]
    made = cut(sites.graph, site)
    name = f"{declared.name or path.stem}#{site.index}"
    file = CutFile(made, path.stem)
    promises = dict(declared.promises)
    promises["expected_failures"] = _expected(declared, of_model=False)
    if "semantics" not in promises:
        promises["semantics"] = golden.STANDARD.replace(**promised_semantics(sites.sites, site))
    declaration = GraphDeclaration(
        inputs=made.inputs,
        outputs={"output": {"role": "output", "axes": made.output_axes}},
        promises=promises,
        num_heads=site.heads,
        num_kv_heads=site.kv_heads,
        name=name,
        precision=declared.precision,
        where=declared.where or path.name,
    )
    request = GraphRequest(declared=declaration, site=described, file=file)
    return graph_candidate(file.path, request)


def describe_sites(sites: Sites) -> list[SiteEntry]:
    """Each attention of a model as plain data, in order: the ``site`` of a record."""
    facts = mask_facts(sites)
    cuts = {site.index: cut(sites.graph, site) for site in sites.sites}
    return with_rules_told_apart(
        [_described(site, cuts, facts[site.index]) for site in sites.sites]
    )


def _described(site: Site, cuts: dict[int, Cut], facts: MaskFacts) -> SiteEntry:
    own = cuts[site.index].digest
    same = [index for index, made in cuts.items() if made.digest == own and index != site.index]
    entry: SiteEntry = {
        "index": site.index,
        "nodes": list(site.nodes),
        "scope": site.scope,
        "same_as": same,
        "heads": site.heads,
        "kv_heads": site.kv_heads,
        "head_size": site.head_size,
        "mask": [
            {"role": mask.role, "axes": mask.axes, "tensor": mask.name} for mask in site.masks
        ],
        "mask_inputs": list(facts.inputs),
        "causal": facts.causal,
        "window": facts.window,
        "misplaced": facts.misplaced,
        "scale": site.scale,
        "softcap": site.cap,
        "sinks": site.sinks is not None,
    }
    if site.scaled_above != 1:
        entry["scaled_above"] = float(site.scaled_above)
    if site.options:
        entry["options"] = dict(site.options)
    return entry


class ScaledSite(Protocol):
    """The facts of an attention that determine its semantics."""

    @property
    def head_size(self) -> int | None:
        """The size of a head, None where it is unknown."""

    @property
    def heads(self) -> int | None:
        """The number of heads, None if unknown."""

    @property
    def kv_heads(self) -> int | None:
        """How many of keys and values."""

    @property
    def scale(self) -> float | None:
        """The factor of its dot products, None if unknown."""

    @property
    def scaled_above(self) -> float:
        """The factor on query and key before they enter."""

    @property
    def cap(self) -> float | None:
        """The bound of its scores, None without one."""


# The longest sequence in calls of a model.
_LONGEST: Final = max(LENGTHS)


def whole_candidate(
    model: WholeModel, name: str, expected: tuple[ExpectedFailure, ...] = ()
) -> Candidate:
    """Make the model a candidate of kind ``model``, with the sizes it accepts."""
    taken = model.taken
    pins = {
        name: list(taken[axis])
        for axis, name in (("batch", "batch"), ("length", "key_length"))
        if axis in taken
    }
    if model.has_two_sequences and "second length" in taken:
        pins["query_length"] = list(taken["second length"])
    heads = ("num_heads", "num_kv_heads", "head_size", "value_head_size")
    widths = ("query_size", "key_size", "value_size", "output_size")
    declaration = declare(
        "model",
        masks=["keep"] if model.has_mask else [],
        mask_shapes=["B11K"],
        inputs="memory" if model.has_two_sequences else "self",
        features=["cross"] if model.has_two_sequences else [],
        geometry=pins | dict.fromkeys((*heads, *widths), 1),
        max_length=_LONGEST,
        expected_failures=expected,
    )
    return Candidate(
        name=name,
        declaration=declaration,
        function=model,
        weights_known=False,
    )


def promised_semantics(sites: Sequence[ScaledSite], site: ScaledSite) -> dict[str, Any]:
    """Return an attention's intended deviations from the standard: its scale and its cap.

    The scale (including factors on query and key above) is the standard's if any attention of the
    model with equal head sizes has the standard scale: a different attention then is a mistake, and
    shall fail. Otherwise the commonest scale is intended, a deviation. The rule for caps is the
    same.
    """
    size = site.head_size, site.heads, site.kv_heads
    alike = [other for other in sites if (other.head_size, other.heads, other.kv_heads) == size]
    cap = _commonest([other.cap for other in alike])
    capped = {} if cap is None else {"score_mod": SoftCap(cap)}
    return _promised_scale(sites, site) | capped


def _commonest(numbers: Sequence[float | None]) -> float | None:
    """Return the number agreeing with most of the numbers up to rounding; the first of several."""
    return max(numbers, key=lambda own: sum(_agree(own, other) for other in numbers), default=None)


def _agree(first: float | None, second: float | None) -> bool:
    if first is None or second is None:
        return first is second
    return is_standard(first / second, 1) if second else first == second


def _promised_scale(sites: Sequence[ScaledSite], site: ScaledSite) -> dict[str, Any]:
    size, scale = site.head_size, site.scale
    if scale is None or size is None:
        return {} if scale is None else {"scale": "none" if scale == 1 else scale}
    own = _whole_scale(site) or scale
    scales = [_whole_scale(other) for other in sites if other.head_size == size]
    by_layer = len(scales) > 1 and all(
        other is not None and is_standard(other * (at + 1), size) for at, other in enumerate(scales)
    )
    meant = own
    if not by_layer:
        known = [other for other in scales if other is not None]
        standard = any(is_standard(other, size) for other in known)
        meant = size**-0.5 if standard else _commonest(known) or own
    # Factors above the attention are not its own.
    above = site.scaled_above or 1.0
    promised = scale if above != 1 and _agree(own, meant) else meant / above
    if promised == 1:
        return {"scale": "none"}
    return {} if is_standard(promised, size) else {"scale": promised}


def _whole_scale(site: ScaledSite) -> float | None:
    """Return the factor on the dot products of the projections."""
    return None if site.scale is None else site.scale * site.scaled_above


@dataclass(frozen=True)
class SoftCap:
    """``cap * tanh(score / cap)`` as a ``score_mod``."""

    cap: float

    @property
    def __name__(self) -> str:
        """The name in declarations and records."""
        return f"softcap at {self.cap:g}"

    def __call__(self, score: Tensor, *_places: Tensor) -> Tensor:
        """The capped scores, of the shape of the scaled ones."""
        return self.cap * torch.tanh(score / self.cap)
