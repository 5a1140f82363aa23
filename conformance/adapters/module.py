"""``conformance.module``: a torch module, built or not, as a candidate."""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import time
from collections.abc import Callable, Mapping
from itertools import product
from typing import Any, Final, cast

import torch
from torch import nn

from .._golden import golden
from ..base.geometry import Geometry, read_pins
from ..base.parameter_names import option_of
from ..base.printable_text import raised_text
from ..declare.candidate import Candidate
from ..declare.declaration import ALIGNMENTS, GIVEN_POSITIONS
from ..declare.decorators import fixed_layer, layer
from ..declare.keywords import read_keywords
from ..declare.module_caches import Cache
from ..errors import DeclarationError, OtherAttentionError
from . import multihead
from .additive import ADDITIVE, adds_queries
from .calling import (
    AdaptedModule,
    CallAdapter,
    Calling,
    check_keywords,
    mask_parameters,
    read_calling,
    ways_to_call,
)
from .construction import instance_of
from .filling import shown_fill
from .idle import awake
from .module_caches import keeping, with_cache
from .packing import HeadSizes, StoredProjections, blank_weights, pinned_sizes, sizes_of
from .projection_search import (
    ModuleProjections,
    ModuleRequest,
    answers_golden,
    check_number,
    check_promises,
    find,
    is_causal_with_masks,
    recipe_notes,
    trial_notes,
    with_masks,
)
from .trial import PROBES, Trial, duplicate, put_in_dtype, with_plain_weights


def without_biases(
    semantics: golden.Semantics | None, recipe: StoredProjections
) -> golden.Semantics:
    """The declared point, minus the biases that the module lacks."""
    words = {"q": "query", "k": "key", "v": "value", "o": "output"}
    absent = {f"{word}_bias": False for role, word in words.items() if not recipe.has_bias(role)}
    return (semantics or golden.STANDARD).replace(**absent)


def loaded(
    fresh: nn.Module,
    calling: Calling,
    recipe: StoredProjections,
    sizes: HeadSizes,
    weights: golden.ProjectionWeights,
) -> AdaptedModule:
    """An adapted module with a problem's weights, in their dtype and on their device."""
    fresh = put_in_dtype(fresh.to(weights.q.device), weights.q.dtype)
    recipe.write(fresh, sizes, weights)
    return AdaptedModule(fresh, calling)


def finished(
    candidate: Candidate, built: nn.Module, calling: Calling, finding: ModuleProjections
) -> Candidate:
    """Check that the module takes the declared keywords, and add assumptions to the candidate."""
    declaration, notes = candidate.declaration, finding.assumptions
    if not isinstance(calling, multihead.MultiheadCalling):
        check_keywords(candidate.name, built.forward, calling, declaration)
    elif calling.function is None:
        multihead.check_mask_shapes(candidate.name, declaration)
    if not declaration.masks and calling.function is None:
        words = mask_parameters(built.forward)
        unused = f" (its {', '.join(words)} is left alone)" if words else ""
        notes = (*notes, f"no mask declared{unused}: mask clauses are not applicable")
    if calling.cache is not None:
        if GIVEN_POSITIONS in declaration.features:
            msg = (
                f"{candidate.name} is declared with a cache and features=[{GIVEN_POSITIONS!r}], "
                "which are judged one by one: drop one"
            )
            raise DeclarationError(msg)
        notes = (*notes, f"its cache: {calling.cache.in_words}")
        kept = dataclasses.replace(declaration, cache=calling.cache)
        candidate = dataclasses.replace(candidate, declaration=kept)
    return assuming(dataclasses.replace(candidate, warnings=finding.warnings), *notes)


def assuming(candidate: Candidate, *assumptions: str) -> Candidate:
    """A candidate with further assumptions, placed first."""
    everything = (*assumptions, *candidate.declaration.assumptions)
    declaration = dataclasses.replace(candidate.declaration, assumptions=everything)
    return dataclasses.replace(candidate, declaration=declaration)


Understood = tuple[Calling, ModuleProjections, dict[str, Any]]
_WHOLE: Final = "understood"


def understand(built: nn.Module, request: ModuleRequest) -> Understood:
    """The calling, the finding with every assumption, and the completed promises.

    Undeclared properties are assumed where only they make answers golden: tokens before batch,
    causal calls, single sequences. Without golden answers, evidence decides on causality. Results
    are kept in ``request.known``. Raises DeclarationError with what to pass.
    """
    if _WHOLE not in request.known:
        try:
            request.known[_WHOLE] = _searched(built, request)
        except DeclarationError as error:
            request.known[_WHOLE] = error
    found = request.known[_WHOLE]
    if isinstance(found, DeclarationError):
        raise found
    calling, finding, promises = found
    return calling, finding, {**promises}


def _searched(built: nn.Module, request: ModuleRequest) -> Understood:
    if multihead.is_multihead(built):
        return _multihead(cast("nn.MultiheadAttention", built), request)
    try:
        understood = _as_declared(built, request)
    except DeclarationError:
        _check_multiplies(built, request)
        assumed = (
            _assumed(built, request)
            or _prepared(built, request)
            or _golden_but_for_one(built, request)
            or _alone(built, request)
        )
        if assumed is None:
            raise
        return assumed
    if understood[1].golden:
        return understood
    _check_multiplies(built, request)
    if not understood[1].answered:  # whatever else is assumed
        golden = _assumed(built, request, _ASSUMED[len(_CAUSAL) :])
        return golden or _alone(built, request) or understood
    return (
        _assumed(built, request)
        or _prepared(built, request)
        or _golden_but_for_one(built, request)
        or _meant_causal(built, request, understood)
        or understood
    )


def _alone(built: nn.Module, request: ModuleRequest) -> Understood | None:
    """The module called with single sequences ``[L, E]``, where its answers are not golden."""
    assumed, words = _ALONE
    if not request.promises.keys().isdisjoint(assumed):
        return None
    asked = request.promising(assumed)
    with contextlib.suppress(DeclarationError):
        understood = _as_declared(built, asked)
        calling, finding, promises = _meant_causal(built, asked, understood) or understood
        if finding.answered and not _takes_items(built, finding, calling):
            finding = dataclasses.replace(finding, assumptions=(words, *finding.assumptions))
            return calling, finding, promises
    return None


def _check_multiplies(built: nn.Module, request: ModuleRequest) -> None:
    if adds_queries(built, _ways(built, request)):
        raise OtherAttentionError(ADDITIVE.format(request.shown))


# Promises that may be assumed when the user declares none of them, and a text.
_Assumption = tuple[dict[str, Any], str]
_CAUSAL: Final[tuple[_Assumption, ...]] = tuple(
    ({"causal": alignment, "always_causal": True}, f"every call is causal, {alignment}")
    for alignment in ALIGNMENTS
)
_ALONE: Final[_Assumption] = ({"batched": False}, "it takes one sequence, [L, E]")
_ASSUMED: Final[tuple[_Assumption, ...]] = (
    *_CAUSAL,
    _ALONE,
    *(({**causal, **_ALONE[0]}, f"{_ALONE[1]}; {words}") for causal, words in _CAUSAL),
)


def _assumed(
    built: nn.Module, request: ModuleRequest, assumptions: tuple[_Assumption, ...] = _ASSUMED
) -> Understood | None:
    """The module under the first assumption with golden answers, else None."""
    for assumed, words in assumptions:
        if not request.promises.keys().isdisjoint(assumed):
            continue
        asked = request.promising(assumed)
        with contextlib.suppress(DeclarationError):
            calling, finding, promises = _as_declared(built, asked)
            if finding.golden and not (
                "batched" in assumed and _takes_items(built, finding, calling)
            ):
                note = f"{words}: so it agrees with the golden reference"
                if "causal" in assumed and not is_causal_with_masks(
                    built, finding, calling, asked
                ):  # no causality is declared, and calls with a mask have none
                    note = f"{words}, but for those with a mask: its weights are read so"
                    finding = dataclasses.replace(finding, golden=False)
                    promises = {word: promises[word] for word in promises if word not in assumed}
                finding = dataclasses.replace(finding, assumptions=(note, *finding.assumptions))
                return calling, finding, promises
    return None


# Legitimate choices of semantics for the preparation of queries and keys.
_PREPARED: Final[tuple[_Assumption, ...]] = tuple(
    ({"rotary": rotary, "qk_norm": norm}, words)
    for (rotary, turned), (norm, normed) in product(
        (
            ("none", ""),
            ("interleaved", "rotary positions, pair by pair"),
            ("halves", "rotary positions, half by half"),
        ),
        (("none", ""), ("rms", "RMS norms"), ("layer", "layer norms"), ("l2", "l2 norms")),
    )
    if (words := " and ".join(filter(None, (normed, turned))))
)


def _prepared(built: nn.Module, request: ModuleRequest) -> Understood | None:
    """The module with golden answers after rotation or norms of queries and keys, else None."""
    if "semantics" in request.promises:
        return None
    for (assumed, words), (changes, prepared) in product((({}, ""), _CAUSAL[0]), _PREPARED):
        if not request.promises.keys().isdisjoint(assumed):
            continue
        own = {**request.promises, **assumed, "semantics": golden.STANDARD.replace(**changes)}
        with contextlib.suppress(DeclarationError):
            calling, finding, promises = _as_declared(built, request.promising(own))
            if finding.golden:
                note = f"its queries and keys have {prepared}"
                note += f"; {words}" if words else ""
                notes = (f"{note}: so it agrees with the golden reference", *finding.assumptions)
                return calling, dataclasses.replace(finding, assumptions=notes), promises
    return None


# Possible mistakes and a text: weights are read as if everything else were right.
_BUT_FOR: Final[tuple[_Assumption, ...]] = (
    *(
        ({"scale": rule}, "its scale")
        for rule in (
            "none",
            "inverse-sqrt-model-width",
            "inverse-sqrt-num-heads",
            "inverse-head-size",
            "sqrt-head-size",
        )
    ),
    ({"head_merge": "reinterpret"}, "how it merges its heads"),
    ({"head_split": "reinterpret"}, "how it splits its heads"),
    ({"head_split": "interleaved", "head_merge": "interleaved"}, "which channels are a head"),
    *(({"softmax_axis": axis}, "the axis of its softmax") for axis in ("query", "head")),
    ({"group_order": "tile"}, "which heads share keys and values"),
)


def _golden_but_for_one(built: nn.Module, request: ModuleRequest) -> Understood | None:
    """The module with golden answers but for one mistake of ``_BUT_FOR``, else None."""
    declared = request.promises.get("semantics") or golden.STANDARD
    for (assumed, words), (changes, what) in product((({}, ""), *_CAUSAL), _BUT_FOR):
        if not request.promises.keys().isdisjoint(assumed):
            continue
        own = {**request.promises, **assumed}
        mistaken = {**own, "semantics": declared.replace(**changes)}
        with contextlib.suppress(DeclarationError):
            calling, finding, promises = _as_declared(built, request.promising(mistaken))
            if finding.golden:
                read = words or "its weights are read as follows"
                note = f"{read}: so it agrees with the golden reference but for {what}"
                notes = (note, *finding.assumptions)
                finding = dataclasses.replace(finding, assumptions=notes, golden=False)
                return calling, finding, {**promises, "semantics": own.get("semantics")}
    return None


def with_second_stream(built: nn.Module, shown: str) -> ModuleRequest | None:
    """The request that passes optional streams as inputs, where the answers are golden.

    None as well where a call without the streams differs from a call with the tokens in their
    place.
    """
    streams = _streams(built)
    modes = ("memory", "separate")[: len(streams)]
    requests = (_with_streams(built, shown, mode, streams) for mode in modes)
    return next((request for request in requests if request is not None), None)


def _with_streams(
    built: nn.Module, shown: str, mode: str, streams: list[str]
) -> ModuleRequest | None:
    request = ModuleRequest(shown=shown, promises={"inputs": mode})
    with contextlib.suppress(DeclarationError):
        understood = _as_declared(built, request)
        calling, finding, _ = understood
        if not finding.golden or calling.guessed:
            return None
        count = {"memory": 2}.get(mode, 3)
        names = calling.names or tuple(inspect.signature(built.forward).parameters)[:count]
        if not {*names[1:]} <= {*streams}:
            return None
        width = finding.recipe.widths(built, finding.sizes)[0]
        tokens = torch.randn(2, 5, width, generator=torch.Generator().manual_seed(0))
        alone = dataclasses.replace(calling, inputs="self", names=names[:1])
        with contextlib.suppress(Exception), torch.no_grad():
            module = duplicate(built).eval()
            one, other = alone(module, (tokens,), {}), calling(module, (tokens,) * count, {})
            if torch.equal(one, other):
                request.known[_WHOLE] = understood
                return request
    return None


def idle_streams(built: nn.Module, calling: Calling, width: int) -> list[str]:
    """Optional streams without influence on any bit of an answer, alone or beside other streams."""
    generator = torch.Generator().manual_seed(0)
    tokens, other = (torch.randn(2, size, width, generator=generator) for size in (5, 7))
    idle: list[str] = []
    streams = _streams(built)
    for name in streams:
        rest = {one: other for one in streams if one != name}
        with contextlib.suppress(Exception), torch.no_grad():
            module = awake(built)
            inputs = (tokens,) * {"self": 1, "memory": 2}.get(calling.inputs, 3)
            pairs = (
                (calling(module, inputs, more), calling(module, inputs, {**more, name: other}))
                for more in ({}, rest)
            )
            idle += [name] if all(torch.equal(own, given) for own, given in pairs) else []
    return idle


def broken_law(built: nn.Module, calling: Calling, finding: ModuleProjections) -> str:
    """A law of attention that the module breaks under every reading, in words; else "".

    Equal calls have equal answers, and no item changes another item's answer, in either order of
    batch and tokens.
    """
    if calling.function is not None:
        return ""
    widths = finding.recipe.widths(built, finding.sizes)
    for turned in (False, True):
        way = dataclasses.replace(calling, sequence_first=turned)
        trial = Trial(built, way, batched=True, names=())
        if trial.answer(widths) is None or trial.keeps_items_apart(widths):
            return ""
        if not trial.repeats(widths):
            return "equal calls are answered differently, though it is in evaluation mode"
    return "an item of a batch changes the answer to another"


def _streams(built: nn.Module) -> list[str]:
    """The optional parameters that take a further input."""
    parameters = inspect.signature(built.forward).parameters.values()
    return [
        entry.name for entry in parameters if entry.default is None and option_of(entry) == "input"
    ]


def _takes_items(built: nn.Module, finding: ModuleProjections, calling: Calling) -> bool:
    """Whether a module answers a batch; a wrong answer to a batch is a mistake of the module."""
    widths = finding.recipe.widths(built, finding.sizes)
    return Trial(built, calling, batched=True, names=()).answer(widths) is not None


def _meant_causal(built: nn.Module, request: ModuleRequest, plain: Understood) -> Understood | None:
    """The module with every call causal, where evidence besides golden answers says so."""
    assumed, words = _CAUSAL[0]
    if plain[0].inputs != "self" or not request.promises.keys().isdisjoint((*assumed, "masks")):
        return None
    trial = Trial(built, plain[0], request.batched, names=())
    if not (why := trial.why_causal(plain[1].recipe.widths(built, plain[1].sizes))):
        return None
    with contextlib.suppress(DeclarationError):
        calling, finding, promises = _as_declared(built, request.promising(assumed))
        notes = (f"{words}: {why}", *finding.assumptions)
        return calling, dataclasses.replace(finding, assumptions=notes), promises
    return None


# Processor seconds for trying ways of calling before the first answer.
_SECONDS: Final = 6.0


def _as_declared(built: nn.Module, request: ModuleRequest) -> Understood:
    """The first golden way of calling, else the first with a row per query."""
    likeliest: ModuleProjections | None = None
    why: DeclarationError | None = None
    place = ("ways", request.batched)
    ways: list[Calling] = request.known.get(place) or _ways(built, request)
    answered: list[Calling] = []
    # The time runs once for all assumptions, which only change what an answer is compared with.
    ends = request.known.setdefault(("ends", request.batched), time.process_time() + _SECONDS)
    for calling in ways:
        some = place in request.known or (likeliest is not None and likeliest.answered)
        if time.process_time() > ends and not some:
            break
        if calling.guessed and likeliest is not None and likeliest.answered:
            continue
        try:
            finding = find(built, request, calling)
        except DeclarationError as error:
            why = why or error
            continue
        if finding.golden:
            return _understood(finding, request)
        answered += [calling] if finding.answered else []
        better = likeliest is None or (finding.answered and not likeliest.answered)
        likeliest = finding if better else likeliest
    if answered:  # the others need not be asked again
        request.known[place] = answered
    if likeliest is None:
        raise why or DeclarationError(f"{request.shown} cannot be called")
    return _understood(likeliest, request)


def _understood(finding: ModuleProjections, request: ModuleRequest) -> Understood:
    calling = finding.calling or Calling(inputs="self")
    return _complete(calling, finding, request.promises)


def _ways(built: nn.Module, request: ModuleRequest) -> list[Calling]:
    """Ways to call an instance, in both orders of batch and tokens."""
    own = callable(request.call)
    ways = [calling_of(built, request)] if own else callings(built, request)
    ways = [calling.keeping(request.cache) for calling in ways]
    turned = [
        dataclasses.replace(calling, sequence_first=True)
        for calling in ways
        if calling.function is None and request.batched
    ]
    if getattr(built, "batch_first", None) is False:
        ways, turned = turned or ways, ways if turned else []
    # Ways that fill a possible place of tokens with made values come last.
    return sorted([*ways, *turned], key=lambda calling: bool(calling.guessed))


def calling_of(built: nn.Module | type[nn.Module], request: ModuleRequest) -> Calling:
    """How to call an instance, or the instances of a class."""
    if multihead.is_multihead(built) and request.call is None:
        return Calling(inputs=request.inputs or "separate")
    forward: Callable[..., Any] = built.forward
    if isinstance(built, type):
        forward = forward.__get__(object())
    return read_calling(request.shown, forward, request.call, request.inputs)


def callings(built: nn.Module, request: ModuleRequest) -> list[Calling]:
    """The possible ways to call an instance, the likeliest first."""
    if multihead.is_multihead(built):
        return [calling_of(built, request)]
    renamed = request.call if isinstance(request.call, Mapping) else None
    return ways_to_call(request.shown, built.forward, renamed, request.inputs)


def _multihead(built: nn.MultiheadAttention, request: ModuleRequest) -> Understood:
    request = request.promising(multihead.beside_more_keys(built, request.promises))
    promises = request.promises
    if request.call is None:
        calling: Calling = multihead.calling(built, request.inputs)
        promises = multihead.promises(promises)
    else:
        calling = calling_of(built, request)
        own = calling.function is not None
        calling = dataclasses.replace(calling, sequence_first=not (own or built.batch_first))
    recipe, sizes = multihead.recipe(built), multihead.sizes(built)
    trial = Trial(built, calling, request.batched, ())
    is_golden = answers_golden(recipe, sizes, trial, request)
    notes = (*recipe_notes(recipe), *trial_notes(trial))
    finding = ModuleProjections(recipe=recipe, sizes=sizes, golden=is_golden, assumptions=notes)
    return _complete(calling, finding, promises)


def _complete(
    calling: Calling, finding: ModuleProjections, promises: Mapping[str, Any]
) -> Understood:
    notes = [*finding.assumptions, f"inputs: {calling.inputs}"]
    if calling.sequence_first:
        notes.append("its tensors are [L, B, E]: tokens before batch")
    absent = [name for name, source in calling.fills if source == "None"]
    if absent:
        notes.append(f"without a mask it gets None for {', '.join(absent)}")
    given = [f"{name}={shown_fill(source)}" for name, source in calling.fills if source != "None"]
    if given:
        notes.append(f"besides its tokens it gets {', '.join(given)}")
    finding = dataclasses.replace(finding, assumptions=tuple(notes))
    limits: dict[str, Any] = {} if finding.longest is None else {"max_length": finding.longest}
    pins: dict[str, Any] = {}
    if finding.only is not None:
        pins |= {"query_length": finding.only, "key_length": finding.only}
    if finding.most_items is not None:
        pins["batch"] = [*range(1, finding.most_items + 1)]
    if pins and not promises.get("geometry"):
        limits["geometry"] = pins
    return calling, finding, {**promises, **limits, "inputs": calling.inputs}


Construct = Callable[[Geometry], nn.Module]


def of_constructor(
    kind: type[nn.Module], construct: Construct, request: ModuleRequest
) -> Candidate:
    """A candidate that calls ``construct(geometry)`` for each problem.

    Projections are found once, on a probe. Raises DeclarationError when a module lacks the sizes of
    its geometry.
    """
    if request.num_heads is not None or request.num_kv_heads is not None:
        msg = (
            "num_heads is given along with construct=, which gets it from each geometry: pin "
            "geometry= instead"
        )
        raise DeclarationError(msg)
    first, second = (_probe(geometry, kind, request) for geometry in PROBES)
    built = _construct(construct, first, request.shown)
    sized = dataclasses.replace(request, num_heads=first.num_heads, num_kv_heads=first.num_kv_heads)
    calling, finding, promises = understand(built, sized)
    if not finding.recipe.has_output:
        msg = (
            f"{request.shown} has no output projection: give an instance, whose own weights are "
            "then kept"
        )
        raise DeclarationError(msg)
    promises["semantics"] = without_biases(promises.get("semantics"), finding.recipe)

    def build(geometry: Geometry, weights: golden.ProjectionWeights) -> AdaptedModule:
        fresh = _construct(construct, geometry, request.shown)
        recipe = finding.recipe
        if multihead.is_multihead(fresh):  # fused or separate, by its widths
            recipe = multihead.recipe(fresh)  # type: ignore[arg-type]  # an instance, as seen
        return loaded(fresh, calling, recipe, sizes_of(geometry), weights)

    calling = keeping(calling, built, finding)
    for geometry in (first, second):
        build(geometry, blank_weights(geometry))
    candidate = layer(name=request.shown, **promises)(build)
    return finished(candidate, built, calling, finding)


def _construct(construct: Construct, geometry: Geometry, shown: str) -> nn.Module:
    try:
        built = construct(geometry)
    except Exception as error:  # a user's function may raise anything
        msg = (
            f"construct {raised_text(error)} (for {geometry}): pin the sizes "
            f"that {shown} cannot have with geometry="
        )
        raise DeclarationError(msg) from error
    if not isinstance(built, nn.Module):
        msg = f"construct returned {built!r}: return a torch.nn.Module"
        raise DeclarationError(msg)
    return with_plain_weights(built)


def _probe(geometry: Geometry, kind: type[nn.Module], request: ModuleRequest) -> Geometry:
    if "gqa" in request.promises.get("features", ()):
        geometry = geometry.replace(num_heads=2 * geometry.num_kv_heads)
    pinned = read_pins(request.promises.get("geometry")).apply(geometry)
    inputs = calling_of(kind, request).inputs
    if inputs == "self":
        pinned = pinned.replace(key_size=pinned.query_size, value_size=pinned.query_size)
    if inputs == "memory":
        pinned = pinned.replace(value_size=pinned.key_size)
    return pinned


# Attention within residuals, norms and a feed-forward part.
_TRANSFORMERS: Final = (
    *(nn.Transformer, nn.TransformerEncoder, nn.TransformerEncoderLayer),
    *(nn.TransformerDecoder, nn.TransformerDecoderLayer),
)


def module(
    cls_or_instance: type[nn.Module] | nn.Module,
    *,
    num_heads: int | None = None,
    num_kv_heads: int | None = None,
    construct: Construct | None = None,
    call: CallAdapter | None = None,
    keywords: Mapping[str, str | tuple[str, ...]] | None = None,
    projections: Mapping[str, str] | None = None,
    cache: Cache | None = None,
    name: str | None = None,
    **promises: Any,
) -> Candidate:
    """Declare a ``torch.nn.Module`` that is multi-head attention: an instance or a class.

    The four projections are found by name; where names are ambiguous, agreement with the golden
    reference decides. Weights of problems are loaded into copies, never into the instance. The
    declaration's ``assumptions`` list everything that was assumed.

    num_heads, num_kv_heads
        Numbers of heads, for a module without an attribute such as ``num_heads``.
    construct
        For a class: ``construct(geometry)`` makes a module with these sizes, and problems vary the
        sizes (``geometry=`` restricts them). Without it a class is constructed once.
    call
        A dict from our keywords to the module's, such as ``{"keep": "mask"}``, or a function
        ``call(module, query, key, value, **keywords)`` with the inputs that ``inputs=`` says.
    keywords
        The dict form of ``call``, under its name in the decorators.
    projections
        Names where the search fails: ``{"q": "a", "k": "b", "v": "c", "o": "d"}``, or ``"qkv"`` and
        ``"kv"`` for fused matrices.
    cache
        A :class:`conformance.Cache`: how the module keeps the keys and values of earlier tokens.
        Sequences are then given in several calls, too.
    promises
        As for :func:`conformance.layer`.

    Raises DeclarationError (a ValueError) with a sentence on what to pass.
    """
    shown = _shown(cls_or_instance, name)
    check_number("num_heads", num_heads)
    check_number("num_kv_heads", num_kv_heads)
    check_promises(promises)
    if keywords is not None:
        if call is not None:
            msg = f"call and keywords are both given for {shown}: drop one"
            raise DeclarationError(msg)
        call = read_keywords(keywords).names
    request = ModuleRequest(
        shown=shown,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        call=call,
        projections=projections,
        cache=cache,
        promises=with_masks(promises, call),
    )
    if cache is not None:
        request = with_cache(request, cls_or_instance)
    if isinstance(cls_or_instance, nn.Module):
        if construct is not None:
            msg = f"construct is given, but {shown} is an instance: give its class, or drop it"
            raise DeclarationError(msg)
        return of_instance(cls_or_instance, request)
    if construct is None and multihead.is_multihead(cls_or_instance) and "geometry" not in promises:
        request = request.promising({"geometry": multihead.nearest})
        construct = multihead.construct
    if construct is not None:
        return of_constructor(cls_or_instance, construct, request)
    built, how = instance_of(cls_or_instance, num_heads)
    return assuming(of_instance(built, request), how)


def _shown(value: object, name: str | None) -> str:
    if isinstance(value, nn.Module):
        return name or type(value).__name__
    if isinstance(value, type) and issubclass(value, nn.Module):
        return name or value.__name__
    msg = f"conformance.module takes a torch.nn.Module class or instance, not {value!r}"
    raise DeclarationError(msg)


_COMPUTED: Final = "weights that it computes from other parameters are judged as its parameters"
# Formats in which applying two factors stays within the error bound of their product.
_EXACT_ENOUGH: Final = ("float32", "float64")


def of_instance(built: nn.Module, request: ModuleRequest) -> Candidate:
    """The candidate of an instance; raises DeclarationError with what to pass."""
    if isinstance(built, torch.jit.ScriptModule):
        msg = (
            f"{request.shown} is scripted: give the module it was scripted from, or use fixed_layer"
        )
        raise DeclarationError(msg)
    if isinstance(built, _TRANSFORMERS):
        msg = (
            f"{request.shown} is more than an attention: conformance.model judges it as a whole, "
            "and conformance.module one of its attentions, such as .self_attn of a layer"
        )
        raise DeclarationError(msg)
    given, built = built, with_plain_weights(built)
    calling, finding, promises = understand(built, request)
    sizes, recipe = finding.sizes, finding.recipe
    calling = keeping(calling, built, finding)
    if recipe.has_products and not {*promises.get("dtypes", ())} <= {*_EXACT_ENOUGH}:
        msg = (
            f"{request.shown} multiplies by matrices of low rank one after the other, and the "
            f"bounds know one rounding in half precision: promise dtypes={list(_EXACT_ENOUGH)}"
        )
        raise DeclarationError(msg)
    weights = recipe.read(built, sizes)
    declared = promises.get("geometry") or {}
    if not isinstance(declared, Mapping):
        msg = (
            f"geometry is {declared!r}, but {request.shown} is built already: give a dict of the "
            "lengths it can have"
        )
        raise DeclarationError(msg)
    promises["geometry"] = {**declared, **pinned_sizes(weights, sizes)}
    promises["semantics"] = without_biases(promises.get("semantics"), recipe)
    if sizes.num_kv_heads != sizes.num_heads:
        promises["features"] = [*promises.get("features", ()), "gqa"]
    if recipe.has_output and recipe.is_free:

        def build(_geometry: Geometry, weights: golden.ProjectionWeights) -> AdaptedModule:
            return loaded(duplicate(built), calling, recipe, sizes, weights)

        candidate = layer(name=request.shown, **promises)(build)
    else:
        kept = AdaptedModule(duplicate(built), calling)
        heads = sizes.num_heads
        candidate = fixed_layer(kept, weights, num_heads=heads, name=request.shown, **promises)
        candidate = dataclasses.replace(candidate, function=_copying_builder(kept))
    candidate = finished(candidate, built, calling, finding)
    return candidate if built is given else assuming(candidate, _COMPUTED)


def _copying_builder(
    kept: AdaptedModule,
) -> Callable[[Geometry, golden.ProjectionWeights], AdaptedModule]:
    """A builder of copies of one module with its own weights, for each dtype and device."""
    copies: dict[tuple[torch.dtype, torch.device], AdaptedModule] = {}

    def build(_geometry: Geometry, weights: golden.ProjectionWeights) -> AdaptedModule:
        place = weights.q.dtype, weights.q.device
        if place not in copies:
            copies[place] = AdaptedModule(duplicate(kept.module), kept.calling).to(place[1])
            put_in_dtype(copies[place], place[0])
        return copies[place]

    return build
