"""Turn undeclared code into candidates: read the code, then judge the reading.

A module with more than one attention is judged as a whole model, including the attentions.
"""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import linecache
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor, nn

from .._golden import golden
from ..adapters import multihead
from ..adapters.arrays import arrays_of
from ..adapters.construction import instance_of, materialised
from ..adapters.filling import shown_fill
from ..adapters.idle import awake, idle_tables
from ..adapters.matrices import as_module
from ..adapters.module import (
    assuming,
    broken_law,
    idle_streams,
    module,
    of_instance,
    understand,
    with_second_stream,
)
from ..adapters.projection_search import ModuleRequest
from ..adapters.unprojected import unprojected
from ..base.mistake import CHOSEN_UNDECLARED
from ..base.parameter_names import role_of, undeclared_options
from ..base.printable_text import few
from ..base.record import Reading
from ..calls import torch_state
from ..calls.integrity import watching_calls
from ..clauses.subject import Subject
from ..declare.candidate import Candidate
from ..declare.declaration import OF_TENSORS
from ..diagnosis.mistakes import NamedMistake, mistaken_conventions, named_mistakes
from ..diagnosis.ranks import diagnostician
from ..diagnosis.statement_search import Explanation
from ..errors import (
    ConstructionError,
    DeclarationError,
    OtherAttentionError,
    UsageError,
    fault_of,
)
from ..models.mask_facts import misplaced_rules
from ..models.model_inputs import UnknownInputError, library_of
from ..models.recognition import may_be_model
from ..models.site import is_standard
from ..models.torch_doubts import (
    growing_biases,
    idle_tables_of,
    mistaken_scales,
    packed_otherwise,
    scaled_before,
    standardised,
    unlike_rotations,
)
from ..models.torch_inputs import idle_inputs, items_stay_apart, queries_meet
from ..models.torch_model import TorchModel, open_torch_model, torch_model_candidates
from ..models.whole_model import WholeModel
from ..targets.declaring import declaration_lines, how_to_call_model, how_to_make, how_to_pass
from ..targets.loading import guarded
from ..targets.resolving import Undeclared
from ..targets.target_strings import split_target
from ..tolerance.model import SAME_FACTOR
from .by_signature import read_by_signature
from .deviations import Investigation, deviations
from .implementation import Implementation, implementation_of
from .job import OutOfTimeError, read_case, while_time_to_name
from .points import function_in
from .record import UNDETERMINED, Findings
from .statements import Beyond
from .writing import declaration_text, declared_name, read_tables

# The facts behind a verdict, in the order of the report.
_TOLD: Final = (
    "kind inputs axes heads scale softmax scores softcap mask causal positions position "
    "alternatives sizes".split()
)
_MISTAKES: Final = {mistake.name for mistake in named_mistakes()} - CHOSEN_UNDECLARED
# The largest head size to derive from a numeric scale.
_LARGEST_HEAD: Final = 512
# Luong et al. 2015, 3.1: products of tokens themselves have no scale.
_OF_TOKENS: Final = Reading(meant=("scale",))
# The name of the declared object inside a declaration.
_NAME: Final = "undeclared"


@torch_state.one_thread()
@watching_calls()
def read_undeclared(entry: Undeclared) -> list[Candidate]:
    """The candidates of an undeclared object; raises UsageError if none can be made.

    A whole model comes with its attentions; an attention gets the declaration that its behaviour
    shows. A module with unexplained answers yields the attention inside, else the plainest reading,
    without any certain failure.
    """
    built, how = _instance(entry)
    if built is None:
        return [_function(entry)]
    unknown = ""
    if entry.site is not None or not multihead.is_multihead(built):
        made, unknown = _whole_model(built, entry.target)
        if made is not None:
            _check_is_of_products(built, ModuleRequest(shown=type(built).__name__), made)
            return [_with_notes(one, how) for one in _of_model(made, entry)]
    if entry.site is not None:
        msg = f"{entry.target} is no whole model that has an attention #{entry.site}"
        raise UsageError(msg)
    if multihead.is_multihead(built):
        return [_plain(entry, entry.value, "")]
    shown = type(built).__name__
    if (both := with_second_stream(built, shown)) is not None:
        read = _read(entry, built, both)
        if isinstance(read, Candidate) and not read.reading.mistakes:  # type: ignore[union-attr]  # it was read
            return [_with_notes(read, how, "without its second input its tokens take the place")]
    request = ModuleRequest(shown=shown)
    read = _read(entry, built, request)
    if isinstance(read, Candidate):
        found = [_without_idle_streams(read, built, request)]
    elif (own := unprojected(built, shown)) is not None:
        found = [dataclasses.replace(own, target=entry.target, reading=_OF_TOKENS)]
    else:
        found = _unread(entry, built, read, unknown, request)
    return [_with_notes(_of_arrays(one, entry.value), how) for one in found]


def _check_is_of_products(
    built: nn.Module, request: ModuleRequest, opened: TorchModel | None
) -> None:
    """Raise UsageError for a module of another attention, such as that of sums, and no other."""
    if opened is None or opened.engine.sites or not opened.uncut:
        return
    with contextlib.suppress(DeclarationError):
        try:
            understand(built, request)
        except OtherAttentionError as error:
            raise UsageError(str(error)) from error


def _of_arrays(candidate: Candidate, value: Any) -> Candidate:
    """A layer around a function of NumPy arrays, without the features of tensors."""
    if isinstance(value, (nn.Module, type)) or arrays_of(value)[0] == "torch":
        return candidate
    declared = candidate.declaration
    shown = dataclasses.replace(declared, features=declared.features - OF_TENSORS)
    return dataclasses.replace(candidate, declaration=shown)


def _without_idle_streams(read: Candidate, built: nn.Module, request: ModuleRequest) -> Candidate:
    """A candidate with an open verdict if a second input or a table changes no answer."""
    if read.kind != "layer":  # a core has no projections to find
        return read
    calling, finding, _ = understand(built, request)
    width = finding.recipe.widths(built, finding.sizes)[0]
    said = []
    if idle := idle_streams(built, calling, width):
        said += [
            f"{few(idle, 3)} changes no answer: whatever is given, its tokens attend to themselves"
        ]
    tokens = torch.randn(2, 5, width, generator=torch.Generator().manual_seed(0))
    inputs = (tokens,) * {"self": 1, "memory": 2}.get(calling.inputs, 3)
    hides = read.declaration.always_causal
    if tables := idle_tables(built, lambda module: calling(module, inputs, {}), hides=hides):
        said += [_of_tables(tables)]
    reading = read.reading
    if reading is not None and not read.declaration.masks:
        reading = dataclasses.replace(reading, idle_masks=tuple(calling.guessed_masks))
    unjudged = "; ".join(filter(None, (read.unjudged, *said)))
    return dataclasses.replace(read, unjudged=unjudged, reading=reading)


def _of_tables(names: Sequence[str]) -> str:
    return f"no answer changes with the tables of {few(list(names), 3)}, which is called"


@dataclass(frozen=True)
class _NoDeclaration:
    """The reason why a reading makes no declaration.

    ``is_meant``: deliberate choices explain all answers.
    """

    why: str
    is_meant: bool = False


def _unread(
    entry: Undeclared, built: nn.Module, read: _NoDeclaration, unknown: str, request: ModuleRequest
) -> list[Candidate]:
    """Judge a module without a reading: as its mistake, else as a model, else plainly.

    ``unknown`` says why the module is no whole model, if asked.
    """
    opened = _opened(built, entry.target)
    inside = opened if opened is not None and opened.engine.sites else None
    if read.is_meant and inside is not None:
        return _of_model(inside, entry)
    # Nobody intends a replacement for a projection without effect, or for a causal rule.
    unmeant: list[str] = []
    if inside is not None and queries_meet(inside.engine.module, inside.engine.calling):
        unmeant.append("an answer changes with the queries of other rows, as if they were keys")
    try:
        plain = _plain(entry, built, read.why, request)
        if unknown and not understand(built, request)[1].answered:
            _check_is_layer(entry, built, unknown)
    except UsageError:
        _check_is_of_products(built, request, opened)
        if opened is not None and (inside is not None or opened.uncut):
            return _of_model(opened, entry, "; ".join(unmeant))
        if unknown:
            _check_is_layer(entry, built, unknown)
        raise
    if law := broken_law(built, *understand(built, request)[:2]):
        unmeant.append(law)
    explanations = [] if unmeant else _explained(plain)
    known = any(map(_is_certain, explanations))
    said = next((str(one.entry["text"]) for one in explanations), "")
    if inside is not None and said:
        unmeant += inside.engine.unused_weights(inside.model)
        unmeant += misplaced_rules(inside.model.described)
    if inside is not None and not known and not unmeant:
        return _of_model(inside, entry)
    mistakes = (said or unmeant[0],) if unmeant else ()
    why = opened.uncut[0].sentence if opened is not None and opened.uncut else read.why
    unread = "" if unmeant else said or why
    reading = Reading(unread=unread, mistakes=mistakes, unnamed=not (unmeant or explanations))
    return [dataclasses.replace(plain, reading=reading)]


def _is_certain(explanation: Explanation) -> bool:
    """Whether an explanation has a certain mistake and no deliberate choice around an attention."""
    chosen = any(mistake.name in CHOSEN_UNDECLARED for mistake in explanation.made)
    return not chosen and any(map(_is_unmeant, explanation.made))


def _is_unmeant(mistake: NamedMistake) -> bool:
    return mistake.name in _MISTAKES or mistake.misplaces


def _explained(candidate: Candidate) -> list[Explanation]:
    """The mistakes that explain a candidate's answers, searched for some seconds."""
    try:
        with while_time_to_name():
            return diagnostician(Subject(candidate, "float32"), named_mistakes()).explanations
    except OutOfTimeError:
        return []
    except Exception:  # noqa: BLE001 (what cannot be named is no certain mistake)
        return []


def _instance(entry: Undeclared) -> tuple[nn.Module | None, str]:
    """The module or an instance of the class, and a note on the construction.

    A function of matrices becomes a module that holds the matrices; None for other functions.
    """
    if not isinstance(entry.value, (nn.Module, type)):
        made, how = as_module(entry.value, _short_name(entry.target)) or (None, "")
        return made, how and f"taken as {how}"
    if isinstance(entry.value, nn.Module):
        return materialised(entry.value), ""
    try:
        return instance_of(entry.value, None)
    except ConstructionError as error:
        raise UsageError(how_to_make(error, entry.target)) from error


def _whole_model(built: nn.Module, target: str) -> tuple[TorchModel | None, str]:
    """The whole model in a module, or None; and a doubt in words, or ""."""
    if not may_be_model(built):
        return None, ""
    try:
        return open_torch_model(built, target), ""
    except UnknownInputError as unknown:
        return None, str(unknown)
    except UsageError:
        raise
    except Exception as error:  # noqa: BLE001 (whatever we fail at in reading, it is still judged)
        return None, f"reading it as one failed ({fault_of(error)})"


def _opened(built: nn.Module, target: str) -> TorchModel | None:
    """The module called as a model, without recognition; None if the call fails."""
    try:
        return open_torch_model(built, target, surely=True)
    except Exception:  # noqa: BLE001 (whatever we fail at in reading, it is still judged)
        return None


def _of_model(made: TorchModel, entry: Undeclared, doubt: str = "") -> list[Candidate]:
    """The candidates of a module with more than one attention; doubts leave their verdicts open."""
    name = _short_name(entry.target)
    target = entry.target
    made, drawn = _awake(made, target)
    numbered = torch_model_candidates(made, name, entry.site)
    located = (
        candidate.located(target if number is None else f"{target}#{number}")
        for number, candidate in numbered
    )
    if library_of(made.engine.module):  # the library's documentation tells the meaning
        return list(located)
    length = made.model.taken.get("length", (5,))[-1]
    unused = made.engine.unused_weights(made.model)
    unused += idle_inputs(made.engine.module, made.engine.calling, length)
    exchanged = made.engine.exchanged_weights()
    tables = idle_tables_of(made.engine, made.model)
    scaled = mistaken_scales(made.engine, made.model)
    doubts = "; ".join(
        [
            *([f"no answer changes with {few(unused, 3)}"] if unused else []),
            *([f"{few(exchanged, 3)}: its name says another role"] if exchanged else []),
            *([_of_tables(tables)] if tables else []),
            *packed_otherwise(made.engine, made.model),
            *misplaced_rules(made.model.described),
            *growing_biases(made.engine),
            *unlike_rotations(made.engine, made.model),
            *([doubt] if doubt else []),
        ]
    )
    apart = items_stay_apart(made.engine.module, made.engine.calling, length)
    unread = "" if apart else "an item of a batch changes the answer to another, as it was called"
    scale_is_meant = standardised(made.engine, made.model) | scaled_before(made.engine)
    masks = {entry.name for entry in made.model.inputs if entry.role == "mask"}
    fills = [f"{name}={shown_fill(source)}" for name, source in made.engine.calling.fills]
    given = f"besides its tokens it gets {', '.join(fills)}" if fills else ""
    return [
        _with_notes(
            _with_own_fill(
                _held_to_standard(_as_it_works(candidate, doubts), unread, scaled, scale_is_meant),
                masks,
            ),
            drawn,
            given,
        )
        for candidate in located
    ]


def _awake(made: TorchModel, target: str) -> tuple[TorchModel, str]:
    """A model with answers that depend on its inputs, and a note on random numbers in a copy.

    The copy replaces zero weights that would keep the inputs from having an effect.
    """
    length = made.model.taken.get("length", (5,))[-1]
    module, calling = made.engine.module, made.engine.calling
    if not idle_inputs(module, calling, length):
        return made, ""
    copied = awake(module)
    other = None if idle_inputs(copied, calling, length) else _opened(copied, target)
    if other is None or not other.engine.sites:
        return made, ""
    return (other, "with random numbers in weights that are zero")


def _as_it_works(candidate: Candidate, doubts: str) -> Candidate:
    """A model without refused sizes and with masks as observed, since nothing else is declared."""
    model = candidate.function
    if not isinstance(model, WholeModel):
        return candidate
    axes = dict.fromkeys(entry.axis for entry in model.refused)
    taken = [f"its {axis} is {few(list(map(str, model.taken[axis])), 6)} alone" for axis in axes]
    own = dataclasses.replace(
        candidate,
        function=dataclasses.replace(model.turned, refused=()),
        unjudged="; ".join(filter(None, (candidate.unjudged, doubts))),
    )
    return assuming(own, *taken)


def _held_to_standard(
    candidate: Candidate,
    unread: str,
    scaled: Mapping[int, str],
    scale_is_meant: Collection[int],
) -> Candidate:
    """A candidate read in a module; the standard scale replaces a mistaken scale.

    A scale of one is left: some models are trained without any scale. ``unread`` becomes part of
    the reading; ``scaled`` maps indices of attentions to sentences on a wrong size in the scale;
    attentions in ``scale_is_meant`` may have any scale.
    """
    reading, site = Reading(unread=unread), candidate.site
    point = golden.STANDARD
    if site is not None and site["index"] in scaled:
        said = scaled[site["index"]]
        semantics = candidate.declaration.semantics.replace(scale=point.scale)
        return dataclasses.replace(
            candidate,
            declaration=dataclasses.replace(candidate.declaration, semantics=semantics),
            reading=Reading(mistakes=(said,)),
            warnings=(said, *candidate.warnings),
        )
    size, heads = (None, None) if site is None else (site["head_size"], site["heads"])
    if site is not None and site["index"] in scale_is_meant:
        reading, size = dataclasses.replace(reading, meant=("scale",)), None
    if site is None or size is None or site["scale"] is None:
        return dataclasses.replace(candidate, reading=reading)
    mistaken = {
        str(mistake.changes["scale"])
        for mistake in named_mistakes()
        if mistake.changes.keys() == {"scale"} and mistake.changes["scale"] != "none"
    }

    def value(rule: str, count: int) -> float:
        return golden.scale_value(
            point.replace(scale=rule), head_size=size, value_head_size=size, num_heads=count
        )

    # If heads and items share an axis, only rules without the number of heads can be told.
    numbers = [
        value(rule, heads or 1)
        for rule in mistaken
        if heads is not None or value(rule, 1) == value(rule, 2)
    ]
    semantics = candidate.declaration.semantics
    own = semantics.scale if isinstance(semantics.scale, float) else site["scale"]
    if any(is_standard(number / own, 1) for number in numbers):
        semantics = semantics.replace(scale=point.scale)
        if not is_standard(own, size):
            said = f"its scores are multiplied by {own:.4g}: the standard is {size**-0.5:.4g}"
            reading = dataclasses.replace(reading, mistakes=(said,))
    declaration = dataclasses.replace(candidate.declaration, semantics=semantics)
    return dataclasses.replace(candidate, declaration=declaration, reading=reading)


def _with_own_fill(candidate: Candidate, masks: Collection[str]) -> Candidate:
    """A candidate with a deliberate finite fill, if neither causality nor a known mask input hides.

    ``masks`` are the inputs that hide tokens.
    """
    site, reading = candidate.site, candidate.reading
    if site is None or reading is None or not site["mask"]:
        return candidate
    if site["causal"] or site["misplaced"] or not {*site["mask_inputs"]}.isdisjoint(masks):
        return candidate
    meant = (*reading.meant, "mask_fill")
    return dataclasses.replace(candidate, reading=dataclasses.replace(reading, meant=meant))


def _short_name(target: str) -> str:
    return split_target(target)[1] or target


def _with_notes(candidate: Candidate, *notes: str) -> Candidate:
    said = [note for note in notes if note]
    return assuming(candidate, *said) if said else candidate


def _function(entry: Undeclared) -> Candidate:
    """An undeclared function; raises UsageError, with lines to declare it, if reading fails."""
    known = read_by_signature(entry.value, entry.target)
    if known is not None:
        return known
    read = _read(entry, entry.value, None)
    if isinstance(read, Candidate):
        return read
    msg = (
        f"{entry.target} declares nothing, and what it computes cannot be read: {read.why}; "
        f"decorate it with @conformance.core or @conformance.layer"
    )
    lines = declaration_lines(entry.value, entry.target) if ":" in entry.target else ""
    raise UsageError(msg + lines)


def _read(
    entry: Undeclared, value: Any, request: ModuleRequest | None
) -> Candidate | _NoDeclaration:
    """The candidate from the declaration of a reading, or the reason for having no declaration."""
    name = getattr(value, "__name__", "") or type(value).__name__
    findings = Findings()
    try:
        implementation = implementation_of(
            value, target=entry.target, name=name, imports=(), expression=_NAME, whole=False
        )
        implementation = dataclasses.replace(implementation, request=request)
        case = read_case(implementation, findings, {}, _silent, states=False)
        if isinstance(case, str):
            return _NoDeclaration(case)
        if isinstance(case, Beyond):
            return _NoDeclaration(case.text, is_meant=_is_meant(case.nearest.point))
        return _of_case(entry, implementation, case)
    except UsageError as error:
        return _NoDeclaration(str(error))
    except Exception as error:  # noqa: BLE001 (whatever we fail at in reading, it is still judged)
        return _NoDeclaration(f"reading it failed ({fault_of(error)})")


def _of_case(
    entry: Undeclared, implementation: Implementation, case: Investigation
) -> Candidate | _NoDeclaration:
    if not _acts(case, query=-1.0, key=2.0):
        return _NoDeclaration("its answers depend on neither queries nor keys")
    if idle := _idle_inputs(case, implementation.value):
        return _NoDeclaration(f"no answer changes with {' and '.join(idle)}")
    if case.point.scale != "none":  # some models are trained without any
        case.held = frozenset({"scale"})
    size = _size_of_scale(case)
    if size is not None:
        case.caller = case.caller.with_head_size(size)
        case.point = case.point.replace(scale=golden.STANDARD.scale)
    made = case.judge.made
    unmeant = [one for one in made if _is_unmeant(one)]
    if case.beyond and len(unmeant) < len(made):
        meant = not (unmeant or any(one.mistaken for one in deviations(case)))
        return _NoDeclaration(f"it computes {'; '.join(case.beyond)}", is_meant=meant)
    said = dict.fromkeys(one.sentence for one in made)
    read = _declared(entry, implementation, case, tuple(said))
    function, tables = function_in(case.point), read_tables(case, idle=True)
    doubts = [
        read.unjudged,
        function.doubt if function is not None else "",
        f"no answer changes with the tables that {' and '.join(tables)} takes" * bool(tables),
    ]
    if size is not None and not _is_built_for(implementation.value, size):
        doubts += [f"its scale is that of heads of {size} channels whatever their size"]
    return dataclasses.replace(read, unjudged="; ".join(filter(None, doubts)))


def _size_of_scale(case: Investigation) -> int | None:
    """The only head size at which a core's numeric scale equals the scale of equation 1."""
    scale = case.point.scale
    if case.caller.kind != "core" or not isinstance(scale, float) or scale <= 0.0:
        return None
    size = round(scale**-2)
    fits = 1 < size <= _LARGEST_HEAD and abs(size * scale**2 - 1.0) <= SAME_FACTOR
    return size if fits and case.caller.draw().geometry.head_size != size else None


def _is_built_for(value: Any, size: int) -> bool:
    """Whether a module stores the root of a head size, or its inverse."""
    parts = value.modules() if isinstance(value, nn.Module) else ()
    kept = [own for part in parts for own in (*vars(part).values(), *part.buffers(recurse=False))]
    kept = [own.item() if isinstance(own, Tensor) and own.numel() == 1 else own for own in kept]
    held = (float(own) for own in kept if isinstance(own, float) and own > 0)
    squares = (square for own in held for square in (own**2, own**-2))
    return any(abs(square - size) <= SAME_FACTOR * size for square in squares)


def _is_meant(point: golden.Semantics) -> bool:
    """Whether people choose a point; some models are trained without any scale."""
    return not any(mistake.changes != {"scale": "none"} for mistake in mistaken_conventions(point))


def _acts(case: Investigation, **factors: float) -> bool:
    """Whether an answer changes with factors on tokens; of layers their weights tell."""
    inputs = case.caller.draw()
    if inputs.is_layer:
        return True
    scaled = {role: factor * getattr(inputs, role) for role, factor in factors.items()}
    own, other = case.caller.answer(inputs), case.caller.answer(inputs.with_tokens(**scaled))
    return own is None or other is None or not torch.equal(own.output, other.output)


def _idle_inputs(case: Investigation, value: Any) -> list[str]:
    """The inputs taken for tokens that change no answer, and whose names say no role, either.

    A kernel that ignores its keys is wrong; other inputs may be switches, or tables, in disguise.
    Normalised heads hide a positive factor.
    """
    names = case.caller.convention.names
    if case.caller.convention.inputs != "separate":
        return []
    try:
        own = inspect.signature(value.forward if isinstance(value, nn.Module) else value)
    except (TypeError, ValueError):  # written in C
        return []
    taken = zip(names or own.parameters, ("query", "key", "value"), strict=False)
    return [
        name for name, role in taken if not role_of(name)[0] and not _acts(case, **{role: -2.0})
    ]


def _silent(_step: str, _what: str) -> None:
    """Report no progress."""


def _declared(
    entry: Undeclared, implementation: Implementation, case: Investigation, made: tuple[str, ...]
) -> Candidate:
    """The candidate that identify's declaration makes, under the object's own name.

    The verdict compares the object with this declaration; ``made`` are the mistakes in the reading.
    """
    right = case.promises.get("dtypes") or ["float32"]
    case.promises["dtypes"] = ["float32"] if "float32" in right else right[:1]
    text = declaration_text(implementation, case)
    file = f"<declaration of {entry.target}>"
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    scope: dict[str, Any] = {_NAME: implementation.value}
    exec(compile(text, file, "exec"), scope)  # noqa: S102 (the text is ours)
    candidate: Candidate = scope[declared_name(implementation)]
    if candidate.kind == "core":
        _show_what_is_not_given(candidate, implementation.value, case)
    facts = case.findings.facts
    told = [
        f"{name}: {facts[name].description}"
        if not name.startswith("mask ")  # name and description both begin with the parameter
        else f"{name.removeprefix('mask ')}: {facts[name].description.partition(': ')[2]}"
        for name in facts
        if name.split()[0] in _TOLD and facts[name].confidence != UNDETERMINED
    ]
    mistaken = [one for one in deviations(case) if one.mistaken]
    warnings = [f"{one.text} ({one.observed})" for one in mistaken]
    own = (one.observed for one in mistaken if one not in case.observed)
    reading = Reading(mistakes=(*made, *own))
    semantics = candidate.declaration.semantics
    if semantics.score_mod is not None:  # the same function, with a description
        semantics = semantics.replace(score_mod=case.point.score_mod or semantics.score_mod)
    candidate = dataclasses.replace(
        candidate,
        declaration=dataclasses.replace(candidate.declaration, semantics=semantics),
        target=entry.target,
        reading=reading,
        warnings=(*warnings, *candidate.warnings),
    )
    return assuming(candidate, *told)


def _show_what_is_not_given(candidate: Candidate, value: Any, case: Investigation) -> None:
    """Add the user's unused parameters to the signature of a core's function.

    A mask or a cache among them then leaves the verdict open, as in a layer.
    """
    convention, function = case.caller.convention, candidate.function
    given = {*case.unchecked, *(convention.names or ())}
    given |= {use.parameter for use in convention.masks}
    given |= {name for name in vars(convention).values() if isinstance(name, str)}
    given |= {name for name, _ in (*(convention.weights or ()), convention.scale or ("", ""))}
    try:
        theirs = inspect.signature(value.forward if isinstance(value, nn.Module) else value)
        own = inspect.signature(function)
    except (TypeError, ValueError):  # written in C
        return
    left = [
        inspect.Parameter(one.name, inspect.Parameter.KEYWORD_ONLY, default=None)
        for one in undeclared_options(theirs, given)
        if one.name not in own.parameters
    ]
    function.__signature__ = own.replace(  # type: ignore[attr-defined]  # a function of Python
        parameters=[*own.parameters.values(), *left]
    )


def _plain(
    entry: Undeclared,
    value: Any,
    unread: str,
    request: ModuleRequest | None = None,
) -> Candidate:
    """A module in its plainest reading; ``request`` holds earlier searches of an instance."""

    def wrap() -> Candidate:
        try:
            return module(value) if request is None else of_instance(value, request)
        except ConstructionError as error:
            raise UsageError(how_to_make(error, entry.target)) from error
        except DeclarationError as error:
            raise UsageError(how_to_pass(error, entry.value, entry.target)) from error

    wrapped: Candidate = guarded(f"{entry.target} cannot be taken as a layer", wrap)
    reading = Reading(unread=unread) if unread else None
    return dataclasses.replace(wrapped, target=entry.target, reading=reading)


def _check_is_layer(entry: Undeclared, built: nn.Module, unknown: str) -> None:
    """Raise UsageError for a module of token ids, which cannot be a layer.

    ``unknown`` says why the module is no whole model.
    """
    if any(isinstance(part, nn.Embedding) for part in built.modules()):
        lines = how_to_call_model(entry.value, entry.target)
        msg = f"{entry.target} cannot be judged as a whole model: {unknown}{lines}"
        raise UsageError(msg)
