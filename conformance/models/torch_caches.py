"""A whole torch model with its own cache: which it is, and its calls for a sequence of tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, Final, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from ..adapters.module_caches import caches_named, completed, places_of_caches, proposed
from ..adapters.sequences import Sequence as CachedSequence
from ..adapters.trial import is_same
from ..declare.module_caches import Cache
from ..graphs.protocol import Array, GraphRefused
from .model_inputs import ATTENDING, PADDED, ModelCall
from .recording import ModuleRecording, record
from .torch_inputs import TorchCalling, refusing
from .whole_model import WholeModel

# Tokens of a trial, and how many of them come first; a longer trial asks them one by one.
_TOKENS: Final = 5
_FIRST: Final = 3
_MOST_TRIED: Final = 200


class ModuleRunner(Protocol):
    """Runs a module that is a whole model."""

    module: nn.Module
    calling: TorchCalling

    def run(self, feeds: Mapping[str, Array]) -> dict[str, Array]:
        """Every answer by name; raises GraphRefused."""

    def answers_of(self, recording: ModuleRecording, taps: Sequence[str]) -> dict[str, Array]:
        """Every answer of a recorded call by name, and attentions' answers."""


@dataclass(frozen=True, kw_only=True)
class KeptCache:
    """The cache of a module that is a whole model, and how its calls get it.

    along: the sequence that it holds the earlier tokens of, as in :class:`ModelInput`.
    """

    engine: ModuleRunner
    cache: Cache
    along: int

    def run(self, call: ModelCall, taps: Sequence[str] = ()) -> dict[str, Array]:
        """As of :class:`ModelCache`."""
        return _Calls(self, call).run(taps)

    def can_be_ordered(self, call: ModelCall) -> bool:
        """Whether the items of its cache can be put in another order."""
        with suppress(GraphRefused):
            self.run(replace(call, order=tuple(range(call.batch))))
            return True
        return False


class _Calls:
    """One sequence of tokens with one cache, call by call."""

    def __init__(self, kept: KeptCache, last: ModelCall) -> None:
        self._engine, self._along, self.chain = kept.engine, kept.along, [last]
        while (behind := self.chain[0].behind) is not None:
            self.chain.insert(0, behind)
        self._feeds, self._records = last.feeds, False
        self._recording: ModuleRecording | None = None
        # Stands for the tokens of all calls: which they are, the feeds of each call say.
        count = sum(call.lengths[self._along] for call in self.chain)
        tokens = torch.zeros(self.chain[0].batch, count, 1)
        with refusing():
            self._sequence = CachedSequence(kept.cache, self._called, kept.engine.module, tokens)

    def run(self, taps: Sequence[str]) -> dict[str, Array]:
        """The answers to the last call by name, and attentions' answers."""
        for call in self.chain[:-1]:
            self.ask(call)
        if self.chain[-1].order is not None:
            order = torch.tensor(self.chain[-1].order)
            with refusing():
                self._sequence.held = _in_order(self._sequence.held, order)
        self._records = bool(taps)
        answer = self.ask(self.chain[-1])
        if self._recording is None:
            return self._engine.calling.answers(answer)
        return self._engine.answers_of(self._recording, taps)

    def ask(self, call: ModelCall) -> Any:
        """What the module returns for the tokens of the next call."""
        self._feeds = call.feeds
        with refusing(), torch.no_grad():
            fills = self._engine.calling.fills
            return self._sequence.ask(call.lengths[self._along], {}, fills)

    def _called(self, asked: Any, _tokens: Any, _keywords: Any, fills: Mapping[str, Any]) -> Any:
        calling = self._engine.calling
        arguments = calling.given_tensors(self._feeds) | dict(calling.fixed) | dict(fills)
        if not self._records:
            return asked(**arguments)
        self._recording = record(self._engine.module, arguments | asked.given)
        asked.answer = self._recording.answer
        return asked.answer


def _in_order(held: Any, order: Tensor) -> Any:
    """A cache whose items stand in another order, by its own method or along the first axis."""
    own = getattr(held, "reorder_cache", None)
    if callable(own):
        answer = own(order)
        return held if answer is None else answer
    if isinstance(held, Tensor) and held.dim() and held.shape[0] == len(order):
        return held[order]
    if isinstance(held, (tuple, list)) and held:
        return type(held)(_in_order(part, order) for part in held)
    if isinstance(held, dict) and held:
        return {name: _in_order(part, order) for name, part in held.items()}
    msg = f"nothing says how the items of {type(held).__name__} are put in another order"
    raise LookupError(msg)


class _ModelTrial:
    """Calls of a whole model with a cache, and what they show."""

    def __init__(self, engine: ModuleRunner, model: WholeModel) -> None:
        self._engine, self._model = engine, model
        self.module: nn.Module = engine.module
        batch = 2 if model.takes(2, (_TOKENS, _TOKENS)) else 1
        self._call = model.call(batch, (_TOKENS, _TOKENS), None, 1)

    def of(self, cache: Cache) -> str:
        """Whether later tokens are answered right; "matters" where earlier ones do count."""
        return self._found(cache, [_FIRST])

    def holds(self, cache: Cache) -> bool:
        """Whether it is right one by one."""
        return self._found(cache, list(range(1, _TOKENS))) == "right"

    def places(self, cache: Cache) -> list[int | str]:
        """Where in an answer to a first call a cache may lie, no tensors first."""
        first = self._cut(slice(0, _FIRST))
        with suppress(GraphRefused):
            return places_of_caches(_Calls(self.kept(cache), first).ask(first))
        return []

    @property
    def is_causal(self) -> bool:
        """Whether earlier tokens are answered alike without the later ones: else none are kept."""
        try:
            whole = self._engine.run(self._call.feeds)
            cut = self._engine.run(self._cut(slice(0, _FIRST)).feeds)
        except GraphRefused:
            return False
        return all(_is_same(whole[name][:, :_FIRST], cut.get(name)) for name in self._of_tokens())

    def _of_tokens(self) -> list[str]:
        letter = (PADDED, ATTENDING)[self._model.growing]
        return [name for name, axes in self._model.outputs.items() if axes[1:2] == letter]

    def kept(self, cache: Cache) -> KeptCache:
        """The cache as that of this model."""
        return KeptCache(engine=self._engine, cache=cache, along=self._model.growing)

    def _cut(self, tokens: slice) -> ModelCall:
        return self._model.cut(self._call, tokens, along=self._model.growing)

    def _found(self, cache: Cache, stops: list[int]) -> str:
        first, model = stops[-1], self._model
        try:
            whole = self._engine.run(self._call.feeds)
            alone = self._engine.run(self._cut(slice(first, None)).feeds)
            behind = self.kept(cache).run(model.in_turn(self._call, stops))
        except GraphRefused:
            return ""
        triples = [
            (whole[name][:, first:], alone[name], behind.get(name)) for name in self._of_tokens()
        ]
        if not triples or any(got is None or got.shape != full.shape for full, _, got in triples):
            return ""
        if all(_is_same(short, got) for _, short, got in triples):
            return "answers"
        return "right" if all(_is_same(full, got) for full, _, got in triples) else "matters"


def _is_same(one: Array, other: Array | None) -> bool:
    if other is None or other.shape != one.shape:
        return False
    both = (torch.from_numpy(np.asarray(array, np.float64)) for array in (one, other))
    return is_same(*both)


def with_cache(
    engine: ModuleRunner, model: WholeModel, declared: Cache | None, *, is_documented: bool
) -> WholeModel:
    """The model with the cache that it keeps: declared, or with which calls answer as one does.

    A warning says which parameters speak of a cache that no trial found. is_documented: a library
    documents how its parameters are used: a cache by which earlier tokens count is judged, even if
    the answers are wrong.
    """
    if declared is not None:
        trial = _ModelTrial(engine, model)
        ways = islice(completed(declared, trial), _MOST_TRIED)
        found = next((one for one in ways if trial.of(one) == "right"), declared)
        return replace(model, kept=trial.kept(found))
    if not model.is_sequential or not model.takes(1, (_TOKENS, _TOKENS)):
        return model
    trial = _ModelTrial(engine, model)
    if not trial.is_causal:
        return model
    counting: list[Cache] = []
    first = next(proposed(trial, counting), None)
    if first is None and is_documented:  # handed over as it was returned, at no guessed places
        plain = (one for one in counting if one.returned is not None and not one.positions)
        first = next(plain, None)
    if first is not None:
        return replace(model, kept=trial.kept(first))
    named = ", ".join(caches_named(engine.module))
    if not named:
        return model
    unseen = (
        f"not judged: its cache ({named}): no trial in two calls was answered as in one; declare "
        "it: conformance.model(…, cache=conformance.Cache(…))"
    )
    return replace(model, warnings=(*model.warnings, unseen))
