"""Calls of a module with its own cache: the first tokens of a sequence, then those behind them."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import torch
from torch import Tensor, nn

from ..declare.declaration import TABLE_KEYWORDS
from ..declare.module_caches import Cache, required_parameters
from .filling import Fills, filled

# How a module is asked for one call: the module, its inputs, our keywords and its fills.
Ask = Callable[[Any, tuple[Tensor, ...], dict[str, Any], Mapping[str, Any]], Any]
# The keywords of a call behind earlier tokens: those tokens, in how many calls they were given,
# the axes of its mask, and the tokens of another sequence, whose first call comes between.
PAST: Final = ("past", "past_calls", "past_axes", "other_past")
_TABLES: Final = frozenset(word for words in TABLE_KEYWORDS.values() for word in words)
_NOTHING_HIDDEN: Final[dict[str, Callable[[Tensor], Tensor]]] = {
    "keep": torch.ones_like,
    "keep_int": torch.ones_like,
    "drop": torch.zeros_like,
    "bias": torch.zeros_like,
}


class Asked:
    """A module in one call of a sequence: it also gets the arguments of its cache.

    ``given`` are these arguments, ``answer`` is what the call returned.
    """

    def __init__(self, module: nn.Module, given: Mapping[str, Any]) -> None:
        self._module, self.given = module, dict(given)
        self.answer: Any = None

    def __call__(self, *positional: Any, **keywords: Any) -> Any:
        """Call the module; what its caller says of the cache gives way."""
        names = list(inspect.signature(self._module.forward).parameters)
        placed = dict(zip(names, positional, strict=False))
        if self.given.keys() & placed.keys():
            keywords, positional = {**placed, **keywords}, ()
        self.answer = self._module(*positional, **{**keywords, **self.given})
        return self.answer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)


class Sequence:
    """One sequence of tokens ``[B, L, E]`` (or ``[L, E]``) with one cache, call by call."""

    def __init__(self, cache: Cache, ask: Ask, module: nn.Module, tokens: Tensor) -> None:
        self.cache, self.module, self.tokens, self._ask = cache, module, tokens, ask
        self.axes, self.start, self.rows = "", 0, tokens.shape[-2]
        reset = cache.reset
        if isinstance(reset, str):
            getattr(module, reset)()
        elif reset is not None:
            reset(module, tokens)
        self.held: Any = None
        if cache.make is not None:
            both = required_parameters(cache.make) > 0
            self.held = cache.make(module, tokens) if both else cache.make()

    def ask(
        self, count: int, keywords: Mapping[str, Any], fills: Fills = (), *, last: bool = False
    ) -> Any:
        """The answer to the next ``count`` tokens; masks of earlier calls hide nothing."""
        return self.asked(count, keywords, fills, last=last)[0]

    def asked(
        self, count: int, keywords: Mapping[str, Any], fills: Fills = (), *, last: bool = False
    ) -> tuple[Any, Any]:
        """The answer as :meth:`ask` gives it, and what the module itself returned."""
        stop = self.start + count
        tokens = self.tokens[..., self.start : stop, :]
        slots = self.cache.slots
        keys = slots if isinstance(slots, int) else self.tokens.shape[-2] if slots else stop
        ours = {
            word: self._part(word, value, stop, free=keys - stop, last=last)
            for word, value in keywords.items()
        }
        asked = Asked(self.module, self._given(tokens, stop))
        theirs = _behind(fills, self.tokens[..., :stop, :], tokens, keys - stop)
        answer = self._ask(asked, (tokens,), ours, theirs)
        if self.cache.parameter is not None and not self._writes:
            self.held = _taken(asked.answer, self.cache.returned)
        self.start = stop
        return answer, asked.answer

    @property
    def _writes(self) -> bool:
        """Whether all calls get one object that they write into."""
        return self.cache.make is not None and self.cache.returned is None

    def _given(self, tokens: Tensor, stop: int) -> dict[str, Any]:
        cache, start = self.cache, self.start
        given = dict(cache.options)
        if cache.parameter is not None and (cache.make is not None or start):
            given[cache.parameter] = self.held
        places = torch.arange(start, stop, device=tokens.device)
        batch = tokens.shape[0]
        forms: dict[str, Callable[[], Any]] = {
            "start": lambda: start,
            "length": lambda: stop,
            "L": lambda: places,
            "1L": lambda: places[None],
            "BL": lambda: places.expand(batch, -1),
            "B": lambda: places[:1].expand(batch).clone(),
        }
        return given | {name: forms[form]() for name, form in cache.positions.items()}

    def _part(self, word: str, value: Any, stop: int, *, free: int, last: bool) -> Any:
        """A keyword of the whole call, as the call for the tokens from ``start`` on gets it."""
        if not isinstance(value, Tensor):
            return value
        if word in _TABLES:
            return _rows(value, self.rows, self.start, stop)
        if word in _NOTHING_HIDDEN:
            return self._mask(word, value, stop, free=free, last=last)
        if word == "lengths" and not last:
            return torch.full_like(value, stop)
        return value

    def _mask(self, form: str, mask: Tensor, stop: int, *, free: int, last: bool) -> Tensor:
        """A mask with a column for each key so far, or for each slot; free slots are hidden."""
        if not last:
            sizes = {"Q": stop - self.start, "K": stop}
            shape = [sizes.get(*pair) for pair in zip(self.axes, mask.shape, strict=True)]
            mask = _NOTHING_HIDDEN[form](mask.new_empty(shape))
        return _padded(mask, free, {"drop": True, "bias": -torch.inf}.get(form, 0))


def in_sequence(
    cache: Cache,
    ask: Ask,
    module: nn.Module,
    inputs: tuple[Tensor, ...],
    keywords: dict[str, Any],
    fills: Fills,
) -> Any:
    """The answer to the tokens behind earlier ones that the cache holds."""
    past, calls, axes, other = (keywords.pop(word, None) for word in PAST)
    (tokens,) = inputs
    sequence = Sequence(cache, ask, module, torch.cat([past, tokens], dim=-2))
    sequence.axes = axes or ""
    for count in counts(past.shape[-2], calls or 1):
        sequence.ask(count, keywords, fills)
    if other is not None:
        alone = copy.deepcopy(module) if cache.is_within else module
        between = Sequence(cache, ask, alone, other)
        between.rows = sequence.rows
        tables = {word: keywords[word] for word in _TABLES & keywords.keys()}
        between.ask(other.shape[-2], tables, fills)
    return sequence.ask(tokens.shape[-2], keywords, fills, last=True)


def plainly(
    cache: Cache,
    ask: Ask,
    module: nn.Module,
    inputs: tuple[Tensor, ...],
    keywords: dict[str, Any],
    fills: Fills,
) -> Any:
    """The answer to tokens that nothing precedes; with an empty cache only if there must be."""
    parameters = inspect.signature(module.forward).parameters
    must = [name for name in cache.parameters if _is_required(parameters.get(name))]
    if must or cache.reset is not None or cache.slots is not None or cache.is_within:
        return Sequence(cache, ask, module, inputs[0]).ask(
            inputs[0].shape[-2], keywords, fills, last=True
        )
    return ask(module, inputs, keywords, filled(fills, inputs))


def counts(total: int, calls: int) -> Iterator[int]:
    """Nearly equal numbers of tokens for some calls, the larger ones first."""
    for call in range(min(calls, total)):
        yield total // min(calls, total) + (call < total % min(calls, total))


def _is_required(parameter: inspect.Parameter | None) -> bool:
    return parameter is not None and parameter.default is parameter.empty


def _taken(answer: Any, place: int | str | None) -> Any:
    """The cache in an answer."""
    if place is None:
        return None
    if isinstance(place, int) or isinstance(answer, Mapping):
        return answer[place]
    return getattr(answer, place)


def _rows(table: Tensor, length: int, start: int, stop: int) -> Tensor:
    """The rows of some tokens in a table for all of them: along the last axis but one or two."""
    axes = [axis for axis in range(table.dim() - 1) if table.shape[axis] == length]
    return table.narrow(axes[-1], start, stop - start) if axes else table


def _padded(mask: Tensor, free: int, hidden: float) -> Tensor:
    """A mask that also hides the slots of a cache which are not in use."""
    return nn.functional.pad(mask, (0, free), value=hidden)


def _hiding(source: str, mask: Tensor) -> float:
    """What hides a key in a mask that hides nothing."""
    shows = "new_ones" in source
    return float(not shows) if shows or not mask.is_floating_point() else -torch.inf


def _behind(fills: Fills, so_far: Tensor, new: Tensor, free: int) -> dict[str, Any]:
    """Fills for new tokens: masks with a column for each key, and rows of tables."""
    masks = tuple(fill for fill in fills if "{key}" in fill[1])
    others = tuple(fill for fill in fills if fill not in masks)
    whole, alone = filled(others, (so_far,)), filled(others, (new,))
    cut = {name: _last_rows(value, alone[name]) for name, value in whole.items()}
    made = filled(masks, (new, so_far))
    sources = dict(masks)
    return cut | {
        name: _padded(mask, free, _hiding(sources[name], mask)) for name, mask in made.items()
    }


def _last_rows(whole: Any, alone: Any) -> Any:
    """What was made for all tokens, cut to the new ones along the axis in which both differ."""
    if isinstance(whole, (tuple, list)):
        return type(whole)(map(_last_rows, whole, alone))
    if not isinstance(whole, Tensor) or whole.dim() != alone.dim():
        return whole
    for axis, (size, wanted) in enumerate(zip(whole.shape, alone.shape, strict=True)):
        if size != wanted:
            whole = whole.narrow(axis, size - wanted, wanted)
    return whole
