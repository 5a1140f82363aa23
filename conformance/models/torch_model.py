"""A torch module that is a whole model: recognised, run, and every attention in it a candidate."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor, nn

from .._golden import golden
from ..adapters.graph_forward import FORMS
from ..adapters.idle import awake
from ..base.parameter_names import role_of
from ..base.record import SiteEntry
from ..declare.candidate import Candidate
from ..declare.decorators import core
from ..declare.module_caches import Cache
from ..errors import UsageError
from ..graphs.process import DEFAULT, Setting
from ..graphs.protocol import Array, GraphRefused
from ..graphs.weights.wiring import UnreadableError
from .candidates import (
    is_first,
    model_of_file,
    none_judged,
    promised_semantics,
    standing_for,
    whole_candidate,
)
from .in_place import Activations, as_heads, assembled
from .mask_facts import Rule, misplaced_rules, rule_of, with_rules_told_apart
from .model_inputs import ModelCall, UnknownInputError, library_of
from .opening import (
    ATTENTION_MASK,
    OFFERED_MASK,
    changes_nothing,
    is_decoder,
    is_padded,
    measured_model,
    sees_later_tokens,
)
from .recognition import is_torch_model
from .recording import ModuleRecording, record, tensors_in
from .replayed_core import ReplayedCore, digest, runnable
from .site import Uncut
from .token_rows import mixed_part, turns_values
from .torch_caches import with_cache
from .torch_edges import PARTED
from .torch_inputs import TorchCalling, as_array, refusing, source_calling, torch_calling
from .torch_sites import PARTS, TorchSite, find_torch_sites
from .whole_model import WholeModel

# Additional tokens of the longer call.
_MORE: Final = 3
_CHANNELS: Final = (
    "its softmax runs over channels, whose products are sums over tokens (cross-covariance), and "
    "the specification is of tokens that attend to tokens"
)
_ONE_KEY: Final = "its mask has no axis of keys, as it was called"
# Bytes of weights nudged at most, the smallest first: as for graphs.
_NUDGED: Final = 1 << 26


class TorchEngine:
    """A module of torch as what runs a whole model."""

    def __init__(self, module: nn.Module, calling: TorchCalling, shown: str) -> None:
        self.module, self.calling, self.shown = module, calling, shown
        self.quantised = self.rounds_to_integers = self.counts_keys = False
        self.sites: tuple[TorchSite, ...] = ()
        self.recording = ModuleRecording()
        self._weights: dict[int, list[tuple[Tensor, Tensor]]] = {}

    def run(
        self, feeds: Mapping[str, Array], *, setting: Setting = DEFAULT, taps: Sequence[str] = ()
    ) -> dict[str, Array]:
        """Return every answer by name, and attentions' answers; raises GraphRefused for exceptions.

        ``level="disabled"`` avoids torch's own fast paths for whole layers.
        """
        with self._nudged(setting.nudge), refusing():
            if not taps and setting.level != "disabled":
                with torch.no_grad():
                    return self.calling.answers(self.module(**self.calling.arguments(feeds)))
            recording = self.recorded(feeds)
        return self.answers_of(recording, taps)

    def answers_of(self, recording: ModuleRecording, taps: Sequence[str]) -> dict[str, Array]:
        """Return every answer of a recorded call by name, and attentions' answers."""
        answers = self.calling.answers(recording.answer)
        by_name = {site.output: site for site in self.placed(recording)}
        for name in taps:
            if name in by_name:
                answers[name] = as_array(recording.values[by_name[name].output_value].tensor)
        return answers

    def in_place(self, feeds: Mapping[str, Array]) -> Iterator[tuple[int, Activations]]:
        """Yield the activations of each attention in a call, by index; raises GraphRefused."""
        with refusing():
            recording = self.recorded(feeds)
        for site in self.placed(recording):
            inside = torch_activations(recording, site)
            if inside is not None:
                yield site.index, inside

    def keys_told(self, _feeds: Mapping[str, Array]) -> dict[int, Array]:
        """None: no function of torch is told a number of keys."""
        return {}

    def key_inputs(self, index: int) -> frozenset[str]:
        """The inputs that keys are computed from; what was made out of sight counts as another."""
        above = self.recording.values[self.sites[index].edges["key"].number].above
        return frozenset(name or "" for name in above)

    def table_sizes(self) -> frozenset[int]:
        """The sizes of weights: a table of positions ends where lengths end."""
        tensors = (*self.module.parameters(), *self.module.buffers())
        return frozenset(int(size) for tensor in tensors for size in tensor.shape)

    def mixing_tokens(self, feeds: Mapping[str, Array]) -> list[tuple[int, str]]:
        """Describe attentions whose heads mix tokens or whose values are rotated, by index.

        Raises GraphRefused.
        """
        tokens = {one.name for one in self.calling.inputs if one.role in ("tokens", "features")}
        equal = {
            name: np.broadcast_to(value[:, :1], value.shape) if name in tokens else value
            for name, value in feeds.items()
        }
        with refusing():
            recording, of_equal = self.recorded(feeds), self.recorded(equal)
        placed = list(self.placed(recording))
        mixed = ((site.index, mixed_part(recording, site)) for site in placed)
        turned = (site.index for site in self.placed(of_equal) if turns_values(of_equal, site))
        exchanged = (site.index for site in placed if _exchanges_inputs(recording, site))
        return [
            *((index, words) for index, words in mixed if words),
            *(
                (index, "keys are made of the values, and values of the keys")
                for index in exchanged
            ),
            *((index, "values are turned by their positions, too") for index in turned),
        ]

    def changed_inputs(self, feeds: Mapping[str, Array]) -> list[str]:
        """The inputs that a call changes, by name; raises GraphRefused."""
        arguments = self.calling.arguments(feeds)
        tensors = {name: one for name, one in arguments.items() if isinstance(one, Tensor)}
        before = {name: one.clone() for name, one in tensors.items()}
        with refusing(), torch.no_grad():
            self.module(**arguments)
        same = {name: as_array(one) for name, one in before.items()}
        return [
            name
            for name, one in tensors.items()
            if not np.array_equal(as_array(one), same[name], equal_nan=one.is_floating_point())
        ]

    def unused_weights(self, model: WholeModel) -> list[str]:
        """Return the module's matrices without influence on any answer, by name.

        Measured by gradients of a weighted sum of one call's answers; empty without gradients.
        """
        generator = torch.Generator().manual_seed(0)
        arguments = self.calling.arguments(model.call(*first_sizes(model), None, 1).feeds)
        try:
            module = awake(self.module)
            weights = {
                name: weight
                for name, weight in module.named_parameters()
                if weight.dim() > 1 and weight.is_floating_point() and weight.requires_grad
            }
            with torch.enable_grad():
                parts = [
                    (part * torch.randn(part.shape, generator=generator).to(part)).sum()
                    for part in tensors_in(module(**arguments))
                    if part.requires_grad
                ]
                total = torch.stack(parts).sum()
                slopes = torch.autograd.grad(total, [*weights.values()], allow_unused=True)
        except Exception:  # noqa: BLE001 (the user's module may raise anything; gradients are no must)
            return []
        return [
            name
            for name, slope in zip(weights, slopes, strict=True)
            if slope is None or not bool(slope.any())
        ]

    def exchanged_weights(self) -> list[str]:
        """Describe attentions with weights named after a different role than their own."""
        names = {id(weight): name for name, weight in self.module.named_parameters()}
        said = []
        for site in self.sites:
            above = {part: self.projections(site.edges[part].number) for part in PARTS}
            named = {
                part: [names[id(weight)] for weight in weights if id(weight) in names]
                for part, weights in above.items()
            }
            single = {part: own[0] for part, own in named.items() if len(own) == 1}
            roles = {part: role_of(name) for part, name in single.items()}
            clear = {part: role for part, (role, is_clear) in roles.items() if is_clear}
            moved = [part for part, role in clear.items() if role != part[0]]
            if moved and sorted(clear.values()) == sorted(part[0] for part in clear):
                said += [
                    f"{single[part]} makes the {part} of attention {site.index}" for part in moved
                ]
        return said

    def projections(self, number: int) -> list[Tensor]:
        """The nearest matrices among the weights that a value is computed from."""
        values, found = self.recording.values, dict[int, Tensor]()
        waiting, visited = [number], {number}
        while waiting:
            call = values[waiting.pop()].made_by
            if call is None:
                continue
            read = [values[one] for one in call.reads]
            matrices = [one for one in read if one.kind == "weight" and one.tensor.dim() > 1]
            found |= {one.number: one.tensor for one in matrices}
            fresh = {one.number for one in read if not matrices} - visited
            visited |= fresh
            waiting += sorted(fresh)
        return list(found.values())

    def recorded(self, feeds: Mapping[str, Array]) -> ModuleRecording:
        """Record the calls of torch in a call of the module; raises the module's exceptions."""
        return record(self.module, self.calling.arguments(feeds))

    def placed(self, recording: ModuleRecording) -> Iterator[TorchSite]:
        """Yield the attentions of a recorded call with their indices in the model."""
        every, _ = find_torch_sites(recording)
        by_place = {site.place: site for site in every}
        for own in self.sites:
            same = by_place.get(own.place)
            if same is not None:
                yield dataclasses.replace(same, index=own.index)

    @contextmanager
    def _nudged(self, seed: int) -> Iterator[None]:
        """Change every number of the weights by one unit in the last place meanwhile."""
        if not seed:
            yield
            return
        if seed not in self._weights:
            self._weights[seed] = list(self._moved(seed))
        before = [(weight, weight.data) for weight, _ in self._weights[seed]]
        try:
            for weight, moved in self._weights[seed]:
                weight.data = moved
            yield
        finally:
            for weight, own in before:
                weight.data = own

    def _moved(self, seed: int) -> Iterator[tuple[Tensor, Tensor]]:
        generator = torch.Generator().manual_seed(seed)
        every = (*self.module.parameters(), *self.module.buffers())
        left = _NUDGED
        for weight in sorted(every, key=lambda tensor: tensor.numel()):
            left -= weight.numel() * weight.element_size()
            if not weight.is_floating_point() or left < 0 or weight.is_meta:
                continue
            signs = torch.randint(0, 2, weight.shape, generator=generator) * 2 - 1
            step = signs.to(weight.device, weight.dtype) * torch.finfo(weight.dtype).eps
            moved = weight.data * (1 + step)
            yield weight, torch.where(moved.isfinite(), moved, weight.data)


class SourceEngine(TorchEngine):
    """The module that a graph was exported from, under the names of the graph's answers."""

    def __init__(self, module: nn.Module, shown: str, model: WholeModel) -> None:
        super().__init__(*source_calling(module.eval(), model.inputs), shown)
        self._names: list[str] = []
        generator = model.call(*first_sizes(model), None, 1)
        with refusing():
            recording = self.recorded(generator.feeds)
        self._names = list(model.engine.run(generator.feeds))
        found, _ = find_torch_sites(recording)
        if len(found) == len(model.engine.sites):
            self.sites = tuple(found)

    def run(
        self, feeds: Mapping[str, Array], *, setting: Setting = DEFAULT, taps: Sequence[str] = ()
    ) -> dict[str, Array]:
        """Run the module; answers are named after the model's answers in the same position."""
        answers = super().run(feeds, setting=setting, taps=taps)
        own = [name for name in answers if name not in taps]
        names = dict(zip(own, self._names, strict=False))
        return {names.get(name, name): value for name, value in answers.items()}


def _exchanges_inputs(recording: ModuleRecording, site: TorchSite) -> bool:
    above = {part: recording.values[site.edges[part].number].above for part in ("key", "value")}
    roles = {part: {role_of(name or "")[0] for name in names} for part, names in above.items()}
    return roles == {"key": {"v"}, "value": {"k"}}


def first_sizes(model: WholeModel) -> tuple[int, tuple[int, int]]:
    """The sizes of a call that a model takes."""
    batch = model.taken.get("batch", (2,))[0]
    length = model.taken.get("length", (5,))[-1]
    second = model.taken.get("second length", (4,))[-1]
    return batch, (length, second if model.has_two_sequences else length)


def with_source(
    made: Iterable[tuple[int | None, Candidate]], module: object, shown: str
) -> list[tuple[int | None, Candidate]]:
    """Add the module behind an exported model to the file's candidates.

    Raises UsageError for an object that is no module, or a module that rejects the graph's inputs.
    """
    if not isinstance(module, nn.Module):
        msg = f"--source {shown} is {module!r:.60}: name a torch.nn.Module, or what builds it"
        raise UsageError(msg)
    result = []
    for number, candidate in made:
        model = candidate.function
        if isinstance(model, WholeModel):
            try:
                source = SourceEngine(module, shown, model)
            except GraphRefused as refusal:
                msg = f"--source {shown} cannot be called with the graph's inputs: {refusal}"
                raise UsageError(msg) from None
            own = dataclasses.replace(model, source=source)
            candidate = dataclasses.replace(candidate, function=own)  # noqa: PLW2901 (with its source)
        result.append((number, candidate))
    return result


def torch_activations(recording: ModuleRecording, site: TorchSite) -> Activations | None:
    """Return an attention in its place; None for unordered axes or several formats."""
    values = recording.values
    tensors = {part: values[site.edges[part].number].tensor for part in PARTS}
    dtypes = {tensor.dtype for tensor in tensors.values()}
    if torch.bfloat16 in dtypes and len(dtypes) > 1:
        return None
    heads = {"query": site.heads, "key": site.kv_heads, "value": site.kv_heads}
    parts = {
        part: as_heads(as_array(tensor), site.edges[part].letters, heads[part])
        for part, tensor in tensors.items()
    }
    if site.factor is not None and parts["query"] is not None:
        parts["query"] = parts["query"] * as_array(values[site.factor].tensor)
    answer = as_heads(as_array(values[site.output_value].tensor), site.output_letters, site.heads)
    if PARTED in site.output_letters and any("B" in mask.axes for mask in site.masks):
        return None
    masks = [(mask, as_array(values[mask.number].tensor)) for mask in site.masks]
    causal = "top-left" if site.causal else site.alignment
    sinks = None if site.sinks is None else as_array(values[site.sinks].tensor)
    inside = assembled(parts, answer, masks, site.heads, causal=causal, sinks=sinks)
    own = "bfloat16" if torch.bfloat16 in dtypes else ""
    return None if inside is None else dataclasses.replace(inside, dtype=own)


@dataclasses.dataclass(frozen=True, kw_only=True)
class TorchModel:
    """A module of more than one attention, ready to be judged."""

    model: WholeModel
    engine: TorchEngine
    uncut: tuple[Uncut, ...]


def open_torch_model(
    module: nn.Module,
    shown: str,
    declared: Mapping[str, Any] | None = None,
    *,
    surely: bool = False,
    gives_masks: bool = True,
    cache: Cache | None = None,
) -> TorchModel | None:
    """Open a module as a whole model; None if it is a single attention or has none.

    surely: the user vouches for a model: the structure is not examined.
    gives_masks: optional masks of the module's own code are passed.
    cache: how the module keeps earlier tokens; else it is found by trial.

    Raises UnknownInputError where the calling cannot be found, UsageError for a contradicting
    declaration.
    """
    module.eval()
    calling, recording = torch_calling(
        module, declared or {}, gives_masks=gives_masks, makes=surely
    )
    sites, uncut = find_torch_sites(recording)
    if uncut and not sites:  # what was given may be no mask of the form that it takes
        calling, recording = torch_calling(module, declared or {}, gives_masks=False, makes=surely)
        sites, uncut = find_torch_sites(recording)
    if not surely and not is_torch_model(recording, sites, uncut, calling.inputs):
        return None
    engine = TorchEngine(module, calling, shown)
    model = WholeModel(engine=engine, described=(), inputs=calling.inputs)
    model = measured_model(model, declared or {}, library_of(module))
    engine.calling = dataclasses.replace(calling, inputs=model.inputs)
    described, uncut_now = _described(engine, model)
    if gives_masks and not engine.sites and _ONE_KEY in {one.reason for one in uncut_now}:
        return open_torch_model(
            module, shown, declared, surely=surely, gives_masks=False, cache=cache
        )
    model = _against_its_name(engine, dataclasses.replace(model, described=described), uncut_now)
    model = with_cache(engine, model, cache, is_documented=bool(library_of(module)))
    return TorchModel(model=model, engine=engine, uncut=uncut_now)


def _against_its_name(engine: TorchEngine, model: WholeModel, uncut: Sequence[Uncut]) -> WholeModel:
    """Add warnings: inputs accepted but ignored; behaviour that contradicts the model's class.

    A mask documented by a library is an input nevertheless, and judged.
    """
    module, known = engine.module, {entry.name for entry in model.inputs}
    takes = inspect.signature(module.forward).parameters
    warnings = list(model.warnings)
    ignores = ATTENTION_MASK in takes and ATTENTION_MASK not in known
    if ignores and any(map(is_padded, model.inputs)):
        calling = engine.calling
        inputs = (*model.inputs, OFFERED_MASK)
        engine.calling = dataclasses.replace(calling, inputs=inputs)
        masked = dataclasses.replace(model, inputs=inputs)
        if changes_nothing(masked, ATTENTION_MASK):
            warnings.append(
                f"{ATTENTION_MASK} changes nothing in any attention: its forward takes one, and "
                "whichever tokens it hides, no answer changes by a bit: padding is attended to"
            )
            model = masked if library_of(module) else model
        engine.calling = dataclasses.replace(calling, inputs=model.inputs)
    if not uncut and is_decoder(module) and sees_later_tokens(model):
        warnings.append(
            "no attention is causal, though its configuration is that of a decoder "
            f"({module.config.model_type}): the last token changes the answer to the first"  # type: ignore[union-attr]  # a decoder has one
        )
    return dataclasses.replace(model, warnings=tuple(warnings))


def _described(engine: TorchEngine, model: WholeModel) -> tuple[list[SiteEntry], tuple[Uncut, ...]]:
    """Describe a module's attentions, and the attentions that cannot be judged alone.

    The sites come from a call with padding, if the model has a mask; their masks from one without.
    """
    batch = max(
        size for size in model.taken.get("batch", (2,)) if size <= max(2, *_smallest(model))
    )
    lengths = model.taken.get("length", (5,))
    length = next((size for size in lengths if size >= 5), lengths[-1])  # noqa: PLR2004 (some tokens)
    seconds = model.taken.get("second length", (4,))
    second = next((size for size in seconds if size >= 4), seconds[-1])  # noqa: PLR2004 (the same)
    both = (length, second if model.has_two_sequences else length)
    keep = np.ones((batch, length), bool)
    keep[-1, -1:] = length == 1
    plain = _recording(engine, model.call(batch, both, None, 1))
    if isinstance(plain, GraphRefused):
        msg = f"it answers no batch of {batch} of length {length}: {plain}"
        raise UnknownInputError(msg)
    padded = _recording(engine, model.call(batch, both, keep, 1))
    engine.recording = plain if isinstance(padded, GraphRefused) else padded
    found, uncut = find_torch_sites(engine.recording)
    sites: list[TorchSite] = []
    lost = list(uncut)
    over_channels = _over_channels(engine, model, batch, both)
    lost += [
        Uncut(nodes=site.nodes, scope=site.scope, reason=_CHANNELS)
        for site in found
        if site.place in over_channels
    ]
    for site in (one for one in found if one.place not in over_channels):
        try:
            made = runnable(engine.recording, dataclasses.replace(site, index=len(sites)))
            if any("K" not in mask.axes for mask in made.masks if mask.role != "bias"):
                lost.append(Uncut(nodes=site.nodes, scope=site.scope, reason=_ONE_KEY))
                continue
        except UnreadableError as error:
            lost.append(Uncut(nodes=site.nodes, scope=site.scope, reason=str(error)))
        else:
            sites.append(made)
    engine.sites = tuple(sites)
    digests = {site.index: digest(engine.recording, site) for site in sites}
    shown = {site.index: site for site in engine.placed(plain)}
    described = (
        _entry(engine.recording, site, digests, _rule(plain, shown.get(site.index, site)))
        for site in sites
    )
    return with_rules_told_apart(list(described)), tuple(lost)


def _over_channels(
    engine: TorchEngine, model: WholeModel, batch: int, lengths: tuple[int, int]
) -> set[tuple[str, int]]:
    """Find the places of attentions whose head width, not row count, grows with the tokens."""
    found: list[dict[tuple[str, int], tuple[int, int]]] = []
    for more in (0, _MORE):
        longer = (lengths[0] + more, lengths[1] + more)
        if not model.takes(batch, longer):
            return set()
        recording = _recording(engine, model.call(batch, longer, None, 1))
        if isinstance(recording, GraphRefused):
            return set()
        sizes = {}
        for site in find_torch_sites(recording)[0]:
            edge = site.edges["key"]
            rows = recording.values[edge.number].tensor.shape[edge.letters.index("L")]
            sizes[site.place] = (rows, site.head_size)
        found.append(sizes)
    short, long = found
    return {
        place
        for place, (rows, size) in short.items()
        if place in long and rows == long[place][0] and size != long[place][1]
    }


def _recording(engine: TorchEngine, call: ModelCall) -> ModuleRecording | GraphRefused:
    try:
        with refusing():
            return engine.recorded(call.feeds)
    except GraphRefused as refusal:
        return refusal


def _smallest(model: WholeModel) -> tuple[int, ...]:
    return (min(model.taken.get("batch", (2,))),)


def _rule(plain: ModuleRecording, site: TorchSite) -> Rule:
    """Return the causal rule and window of an attention when the caller hides nothing."""
    if site.causal or site.alignment:
        return Rule(causal=True)
    # Whose items and heads are one axis may have one head: its masks are the same.
    alone = site if site.heads else dataclasses.replace(site, heads=1, kv_heads=1)
    inside = torch_activations(plain, alone)
    if inside is None:
        return Rule(causal=None)
    return rule_of(inside.shown)


def _entry(
    recording: ModuleRecording,
    site: TorchSite,
    digests: Mapping[int, str],
    rule: Rule,
) -> SiteEntry:
    above = {name for mask in site.masks for name in recording.values[mask.number].above}
    same = [index for index, own in digests.items() if own == digests[site.index]]
    return {
        "index": site.index,
        "nodes": list(site.nodes),
        "scope": site.scope,
        "same_as": [index for index in same if index != site.index],
        "heads": site.heads,
        "kv_heads": site.kv_heads,
        "head_size": site.head_size,
        "mask": [{"role": mask.role, "axes": mask.axes, "tensor": ""} for mask in site.masks],
        "mask_inputs": sorted(name for name in above if name is not None),
        "causal": rule.causal,
        "window": rule.window,
        "misplaced": rule.misplaced,
        "scale": site.scale,
        "softcap": site.cap,
    }


def torch_model_candidates(
    made: TorchModel, name: str, number: int | None = None
) -> list[tuple[int | None, Candidate]]:
    """Return a whole model (index None) and its distinct attentions with their indices.

    With ``number`` only this attention; raises UsageError if it does not exist.
    """
    engine, model = made.engine, made.model
    if number is not None:
        if number >= len(engine.sites):
            msg = f"{engine.shown} has no attention #{number}: it has {len(engine.sites)}"
            raise UsageError(msg)
        return [(number, _core(made, model.described[number], name))]
    cores = {
        entry["index"]: _core(made, entry, name) for entry in model.described if is_first(entry)
    }
    alike = standing_for(model.described, cores)
    whole = whole_candidate(dataclasses.replace(model, cores=alike), name)
    warnings = [*model.warnings, *(f"not judged: {entry.sentence}" for entry in made.uncut)]
    warnings += misplaced_rules(model.described)
    unjudged = "" if cores else none_judged(made.uncut)
    whole = dataclasses.replace(whole, warnings=tuple(warnings), unjudged=unjudged)
    return [(None, whole), *cores.items()]


def _core(made: TorchModel, entry: SiteEntry, name: str) -> Candidate:
    """Make a core candidate that replays one attention's recorded calls."""
    engine = made.engine
    site = engine.sites[entry["index"]]
    letters = {mask: site.mask_letters(mask) for mask in site.masks}
    pairs = tuple(dict.fromkeys((FORMS[mask.role], letters[mask]) for mask in site.masks))
    dtype = engine.recording.values[site.edges["query"].number].tensor.dtype
    features = ["sinks"] if site.sinks is not None else []
    if site.kv_heads != site.heads:
        features.append("gqa")
    promises: dict[str, Any] = {
        "masks": list(dict.fromkeys(form for form, _ in pairs)),
        "features": features,
        "dtypes": [str(dtype).removeprefix("torch.")],
        "geometry": {
            "head_size": site.head_size,
            "value_head_size": site.value_size,
            **({"num_heads": site.heads, "num_kv_heads": site.kv_heads} if site.heads else {}),
        },
        "semantics": golden.STANDARD.replace(**promised_semantics(engine.sites, site)),
        "without": ["gradients"],
    }
    if pairs:
        promises["mask_shapes"] = list(dict.fromkeys(axes for _, axes in pairs))
    if site.alignment is not None:
        promises.update(causal=site.alignment, always_causal=True)
    replayed = ReplayedCore(engine.recording, site)
    candidate = core(name=f"{name}#{site.index}", **promises)(replayed)
    declaration = dataclasses.replace(candidate.declaration, mask_pairs=pairs)
    return dataclasses.replace(candidate, declaration=declaration, site=entry)


def model(
    what: str | Path | nn.Module | Callable[[], nn.Module],
    *,
    declaration: str | Path | None = None,
    source: nn.Module | None = None,
    inputs: Mapping[str, Any] | None = None,
    name: str | None = None,
    cache: Cache | None = None,
) -> tuple[Candidate, ...]:
    """Declare a whole model: the model itself, then its distinct attentions.

    what
        The path of an ONNX file, a ``torch.nn.Module``, or a function without arguments that builds
        a module.
    declaration
        For a file: the roles of its inputs, by default ``NAME.conformance.toml`` near it.
    source
        For a file: the module it was exported from.
    inputs
        For a module: the roles of its forward's parameters where names and answers are not enough:
        ``{"ids": "tokens", "x": {"role": "features", "shape": [16]}}``; ``vocabulary`` is the
        number of different tokens.
    cache
        For a module: how it keeps keys and values of earlier tokens, a :class:`conformance.Cache`;
        without it, the cache with which trials in several calls are answered as in one.

    Raises UsageError with one sentence for an object that is no whole model, or cannot be called.
    """
    if isinstance(what, (str, Path)):
        if inputs is not None or name is not None or cache is not None:
            msg = (
                f"inputs, cache and name are for modules: {what} is a file, which declaration= "
                "describes"
            )
            raise UsageError(msg)
        made = model_of_file(what, declaration)
        if source is None:
            return made
        numbered = [(None, candidate) for candidate in made]
        return tuple(one for _, one in with_source(numbered, source, type(source).__name__))
    module = what if isinstance(what, nn.Module) else what()
    if inputs is not None and not isinstance(inputs, Mapping):
        msg = f"inputs is {inputs!r:.60}: give a table of the parameters of the module's forward"
        raise UsageError(msg)
    if not isinstance(module, nn.Module) or declaration or source:
        msg = f"conformance.model got {module!r:.60}: give a file, a torch.nn.Module or its builder"
        raise UsageError(msg)
    if cache is not None and not isinstance(cache, Cache):
        msg = f"cache is {cache!r:.60}: give a conformance.Cache"
        raise UsageError(msg)
    shown = name or str(getattr(what, "__name__", type(module).__name__))
    try:
        opened = open_torch_model(module, shown, inputs, surely=True, cache=cache)
    except UnknownInputError as unknown:
        msg = f"{shown} cannot be judged as a whole model: {unknown}"
        raise UsageError(msg) from None
    if opened is None or not (opened.engine.sites or opened.uncut):
        msg = f"{shown} holds no attention that is seen when it runs"
        raise UsageError(msg)
    return tuple(candidate for _, candidate in torch_model_candidates(opened, shown))
