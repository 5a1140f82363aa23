"""A module's own cache: what it goes together with, and what is found out about it by calls."""

from __future__ import annotations

import dataclasses
import inspect
import itertools
import sys
from collections.abc import Callable, Iterator
from typing import Any, Final, Protocol

import torch
from torch import Tensor, nn

from ..base.parameter_names import option_of, words_of
from ..declare.declaration import STRUCTURED_FORMS
from ..declare.module_caches import Cache, required_parameters
from ..errors import DeclarationError
from .answers import parts_of
from .calling import Calling
from .multihead import is_multihead
from .projection_search import ModuleProjections, ModuleRequest
from .sequences import Sequence
from .trial import duplicate, is_same

# Tokens of a trial: those of the first two calls, and those behind them.
_BEFORE: Final = 3
_BEHIND: Final = 2
# The tokens of a longer trial, whose last one is asked behind the others.
_LONG: Final = 12
# The most items that are asked for: problems have fewer.
# Forms of places tried for a parameter, the likeliest first.
_FORMS: Final = ("L", "1L", "BL", "start", "B", "length")
_STARTS: Final = ("start", "offset", "step", "len", "length")
_MOST_TRIED: Final = 200


def with_cache(request: ModuleRequest, value: nn.Module | type[nn.Module]) -> ModuleRequest:
    """The request with what a cache implies; raises DeclarationError for what it excludes."""
    promises, cache = dict(request.promises), request.cache
    if not isinstance(cache, Cache):
        msg = (
            f"cache is {cache!r}: give a conformance.Cache, such as "
            "Cache(parameter='past_key_values', make=DynamicCache)"
        )
        raise DeclarationError(msg)
    if is_multihead(value):
        msg = f"cache is given for {request.shown}, and nn.MultiheadAttention keeps none: drop it"
        raise DeclarationError(msg)
    structured = [form for form in promises.get("masks", ()) if form in STRUCTURED_FORMS]
    excluded = {
        f"inputs={request.inputs!r}": request.inputs not in (None, "self"),
        "batched=False": not request.batched,
        "ranks": promises.get("ranks") is not None,
        "features=['kv_cache']": "kv_cache" in promises.get("features", ()),
        f"masks={structured}": bool(structured),
    }
    for words, is_given in excluded.items():
        if is_given:
            msg = (
                f"cache is given with {words}: a module's own cache is judged in self-attention "
                "over a batch, without it; drop one"
            )
            raise DeclarationError(msg)
    if promises.get("causal") == "top-left":  # of as many queries as keys, both are one rule
        promises["causal"] = "bottom-right"
    _check_parameters(cache, request, value)
    return dataclasses.replace(request, promises={**promises, "inputs": "self"})


def _check_parameters(
    cache: Cache, request: ModuleRequest, value: nn.Module | type[nn.Module]
) -> None:
    parameters = inspect.signature(value.forward).parameters
    if any(entry.kind is entry.VAR_KEYWORD for entry in parameters.values()):
        return
    for name in cache.parameters:
        if name not in parameters:
            msg = (
                f"cache of {request.shown} names {name!r}, which is no parameter of its forward "
                f"(it has {', '.join(one for one in parameters if one != 'self')}): drop it"
            )
            raise DeclarationError(msg)


def keeping(calling: Calling, built: nn.Module, finding: ModuleProjections) -> Calling:
    """The calling with what its cache leaves open found by trial: the first way that is right.

    Where none is, the first way in which earlier tokens matter, so that what is wrong is judged.
    """
    if calling.cache is None:
        return calling
    width = finding.recipe.widths(built, finding.sizes)[0]
    trial = CacheTrial(built, calling, width)
    matters: Cache | None = None
    for cache in itertools.islice(completed(calling.cache, trial), _MOST_TRIED):
        found = trial.of(cache)
        if found == "right":
            return calling.keeping(cache)
        matters = cache if found == "matters" and matters is None else matters
    return calling.keeping(matters or calling.cache)


class Trial(Protocol):
    """Calls of a module with a cache, and what they show."""

    module: nn.Module

    def of(self, cache: Cache) -> str:
        """Whether the later tokens are answered right; "matters" where earlier ones do count."""

    def holds(self, cache: Cache) -> bool:
        """Whether longer sequences are answered right, too."""

    def places(self, cache: Cache) -> list[int | str]:
        """Where in an answer to a first call a cache may lie, the likeliest first."""


class CacheTrial:
    """Calls of a copy of a module with a cache, and what they show.

    ``keywords`` makes the keywords of a call for some number of tokens.
    """

    def __init__(
        self,
        built: nn.Module,
        calling: Calling,
        width: int,
        keywords: Callable[[int], dict[str, Any]] = lambda _count: {},
    ) -> None:
        self.module, self.calling = duplicate(built).eval().float(), calling
        generator = torch.Generator().manual_seed(0)
        self.tokens = torch.randn(2, _BEFORE + _BEHIND, width, generator=generator)
        self.many = torch.randn(3, _LONG, width, generator=generator)
        self.keywords = keywords

    def of(self, cache: Cache) -> str:
        """Whether the later tokens are answered right; "matters" where earlier ones do count."""
        return self._found(cache, self.tokens, _BEFORE, {"past_calls": 2})

    def holds(self, cache: Cache) -> bool:
        """Whether it is right one by one, in a long sequence, and in turn with another."""
        singly = {"past_calls": _LONG - 1}
        in_turn = {"other_past": self.many.flip(1)}
        return all(
            self._found(cache, self.many, _LONG - 1, more) == "right" for more in (singly, in_turn)
        )

    def _found(self, cache: Cache, tokens: Tensor, before: int, more: dict[str, Any]) -> str:
        calling, count = self.calling.keeping(cache), tokens.shape[1]
        past, new = tokens[:, :before], tokens[:, before:]
        given = self.keywords(count)
        try:
            with torch.no_grad():
                whole = calling(self.module, (tokens,), given)[:, before:]
                alone = calling(self.module, (new,), self.keywords(count - before))
                behind = calling(self.module, (new,), {**given, "past": past, **more})
        except Exception:  # noqa: BLE001 (the user's code may raise anything)
            return ""
        if not isinstance(behind, Tensor) or behind.shape != whole.shape:
            return ""
        if is_same(behind, alone):
            return "answers"
        return "right" if is_same(whole, behind) else "matters"

    def places(self, cache: Cache) -> list[int | str]:
        """Where in an answer to a first call a cache may lie, no tensors first."""
        calling = self.calling.keeping(cache)
        sequence = Sequence(cache, calling.ask, self.module, self.tokens)
        try:
            with torch.no_grad():
                given = self.keywords(self.tokens.shape[1])
                _, answer = sequence.asked(_BEFORE, given, calling.fills)
        except Exception:  # noqa: BLE001 (the user's code may raise anything)
            return []
        return places_of_caches(answer)


def places_of_caches(answer: Any) -> list[int | str]:
    """Where in an answer a cache may lie, no tensors first."""
    tensors = {place: isinstance(part, Tensor) for place, part in _parts(answer).items()}
    return sorted(tensors, key=lambda place: tensors[place])


def _parts(answer: Any) -> dict[int | str, Any]:
    """The parts of an answer that hold tensors, by place, key or name."""
    if isinstance(answer, dict):
        parts: dict[int | str, Any] = dict(answer)
    elif isinstance(answer, (tuple, list)):
        parts = dict(enumerate(answer))
    elif not isinstance(answer, Tensor) and hasattr(answer, "__dict__"):
        parts = dict(vars(answer))
    else:
        parts = {}
    return {place: part for place, part in parts.items() if any(True for _ in parts_of(part))}


def completed(cache: Cache, trial: Trial) -> Iterator[Cache]:
    """The cache as it is given, then with options, positions and slots that it leaves open."""
    parameters = list(inspect.signature(trial.module.forward).parameters.values())
    switches: list[dict[str, Any]] = [dict(cache.options)]
    placed: list[dict[str, str]] = [dict(cache.positions)]
    if not cache.options:
        switches += [{entry.name: True} for entry in parameters if _is_switch(entry)]
    if not cache.positions:
        named = [entry.name for entry in parameters if _may_be_places(entry)]
        placed += [{name: form} for name in named for form in _forms(name)]
    slots = [cache.slots] if cache.slots is not None else [None, "sequence"]
    for many, positions, options in itertools.product(slots, placed, switches):
        open_ended = dataclasses.replace(cache, options=options, positions=positions, slots=many)
        if cache.parameter is None or cache.make is not None or cache.returned is not None:
            yield open_ended
            continue
        for place in trial.places(open_ended):
            yield dataclasses.replace(open_ended, returned=place)


def proposed(trial: Trial, mattering: list[Cache] | None = None) -> Iterator[Cache]:
    """The caches of a module that its parameters may mean, and that its answers show to be right.

    To ``mattering`` those are added with which earlier tokens count, and answers are wrong.

    A cache is what a call returned, a dict, or made by a class beside the module's own whose name
    speaks of a cache; or the module holds it, and is told where the new tokens stand.
    """
    names = caches_named(trial.module)
    makes = (None, dict, *_classes_of_caches(type(trial.module)))
    possible = [Cache(parameter=name, make=make) for name in names for make in makes]
    parameters = inspect.signature(trial.module.forward).parameters.values()
    placed = [one.name for one in parameters if _may_be_places(one)]
    possible += [Cache(positions={name: form}) for name in placed for form in _forms(name)]
    for cache in possible:
        for whole in itertools.islice(completed(cache, trial), _MOST_TRIED):
            found = trial.of(whole)
            if found == "right" and trial.holds(whole):
                yield whole
                break
            if mattering is not None and found in {"right", "matters"}:
                mattering.append(whole)


def caches_named(module: nn.Module) -> list[str]:
    """The parameters of a module's forward that speak of a cache."""
    parameters = list(inspect.signature(module.forward).parameters.values())
    names = [one.name for one in parameters if option_of(one) == "cache" and one.default is None]
    return names + [one.name for one in parameters if one.name not in names and _says_cache(one)]


def _says_cache(parameter: inspect.Parameter) -> bool:
    return "cache" in str(parameter.annotation).lower() and not _is_switch(parameter)


def _classes_of_caches(kind: type[nn.Module]) -> Iterator[type]:
    """The classes in a module class's file that are called caches and need no arguments."""
    for name, value in vars(sys.modules[kind.__module__]).items():
        called_so = isinstance(value, type) and "cache" in name.lower() and value is not Cache
        if called_so and not issubclass(value, nn.Module) and required_parameters(value) == 0:
            yield value


def _is_switch(parameter: inspect.Parameter) -> bool:
    """Whether a parameter that is off by default may be what asks for a cache."""
    words = words_of(parameter.name)
    is_off = parameter.default is False or (parameter.default is None and "use" in words)
    return is_off and "cache" in words


def _may_be_places(parameter: inspect.Parameter) -> bool:
    return option_of(parameter) == "positions" or parameter.name.lower().endswith("_indices")


def _forms(name: str) -> tuple[str, ...]:
    first = [form for form in ("start",) if set(words_of(name)) & set(_STARTS)]
    return tuple(dict.fromkeys((*first, *_FORMS)))
