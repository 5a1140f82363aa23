"""A whole model that runs: drawn calls, and its answers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from ..base.record import SiteEntry
from ..declare.candidate import Candidate
from ..graphs.process import DEFAULT, Array, Setting
from .in_place import Activations
from .model_inputs import (
    ATTENDING,
    ITEM,
    LOOKING_AHEAD,
    PADDED,
    Engine,
    ModelCache,
    ModelCall,
    ModelInput,
    marks_of,
)


@dataclass(frozen=True, kw_only=True)
class RefusedSize:
    """A size that the file leaves open and the model does not take.

    axis
        ``batch``, ``length``, or ``second length`` of the sequence that attends.
    """

    axis: str
    size: int
    message: str


@dataclass(frozen=True, kw_only=True, eq=False)
class WholeModel:
    """A model with its known facts, independent of its engine.

    described: its attentions, as in the record.
    cores: the core judged for each attention, by index.
    outputs: the letters of the axes of each answer in floats.
    taken: the accepted sizes by axis, for restricted axes.
    refused: the refused sizes it should accept.
    source: the engine of the module it was exported from, if named.
    warnings: sentences on masks that contradict custom or documentation.
    inverted: the masks in which 1 hides although documented as attended.
    dense: it refuses padding, although it takes a mask.
    kept: the cache that a module keeps from call to call; a graph's are inputs and answers.
    """

    engine: Engine
    described: Sequence[SiteEntry]
    inputs: tuple[ModelInput, ...]
    cores: Mapping[int, Candidate] = field(default_factory=dict)
    outputs: Mapping[str, str] = field(default_factory=dict)
    taken: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    refused: tuple[RefusedSize, ...] = ()
    source: Engine | None = None
    warnings: tuple[str, ...] = ()
    inverted: tuple[str, ...] = ()
    dense: bool = False
    kept: ModelCache | None = None

    def __call__(self, *_arguments: Any, **_keywords: Any) -> Any:
        """A model takes no heads: its clauses call :meth:`run`."""
        msg = f"{self.engine.shown} is a whole model and is called by its clauses alone"
        raise TypeError(msg)

    @property
    def has_mask(self) -> bool:
        """Tell whether an input is a mask of the padded sequence."""
        return any(entry.along == 0 for entry in self.masks) and not self.dense

    @property
    def masks(self) -> list[ModelInput]:
        """The inputs that say which tokens exist."""
        return [entry for entry in self.inputs if entry.role in ("mask", "lengths")]

    @property
    def counts_keys(self) -> bool:
        """Whether tokens are counted, which says padding on the right alone."""
        counted = any(entry.role == "lengths" for entry in self.inputs)
        return counted or self.engine.counts_keys

    @property
    def turned(self) -> WholeModel:
        """Return the model with inverted masks read as they work."""
        inputs = [replace(e, hides=e.hides is not (e.name in self.inverted)) for e in self.inputs]
        return replace(self, inputs=tuple(inputs), inverted=())

    @property
    def has_positions(self) -> bool:
        """Tell whether an input holds positions of the padded sequence."""
        return any(entry.role == "positions" and entry.along == 0 for entry in self.inputs)

    @property
    def is_sequential(self) -> bool:
        """Whether the model takes tokens or features of a sequence."""
        return any(entry.role in ("tokens", "features") for entry in self.inputs)

    @property
    def has_two_sequences(self) -> bool:
        """Whether a separate sequence attends to the padded one."""
        return any(entry.along == 1 for entry in self.inputs)

    @cached_property
    def presents(self) -> dict[str, str]:
        """Map inputs of past keys or values to the answers holding past and new ones.

        The two names contain equal numbers and words, such as ``0`` and ``key``.
        """
        marks = {marks_of(name): name for name in self.outputs}
        pasts = [entry.name for entry in self.inputs if entry.role == "past"]
        return {name: marks[marks_of(name)] for name in pasts if marks_of(name) in marks}

    @property
    def growing(self) -> int:
        """The sequence whose earlier tokens a cache holds: a decoder grows, its memory does not."""
        return int(self.has_two_sequences)

    @property
    def handed_on(self) -> set[str]:
        """The answers that hold keys and values for later calls."""
        return set(self.presents.values())

    @property
    def has_cache(self) -> bool:
        """Tell whether calls can continue earlier ones: every key and value has an input."""
        pasts = sum(entry.role == "past" for entry in self.inputs)
        return self.kept is not None or 0 < pasts == len(self.presents)

    @cached_property
    def takes_an_order(self) -> bool:
        """Whether the items of its cache can be put in another order."""
        if self.kept is None:
            return bool(self.presents)
        sizes = [self.taken.get(axis, (2,)) for axis in ("batch", "length")]
        batch, length = (next((size for size in own if size > 1), own[-1]) for own in sizes)
        call = self.call(batch, (length, length), None, 1)
        return length > 1 and self.kept.can_be_ordered(self.in_turn(call, [1]))

    @cached_property
    def causal_sites(self) -> tuple[bool, ...]:
        """Which attentions hide later keys when the caller hides nothing."""
        return tuple(bool(entry["causal"]) for entry in self.described)

    @cached_property
    def hiding_sites(self) -> tuple[bool, ...]:
        """Which attentions are meant to hide later keys: also those whose rule ends too late.

        Of tokens alone: a model of sounds may look ahead.
        """
        along = int(self.has_two_sequences)
        ids = any(entry.role == "tokens" and entry.along == along for entry in self.inputs)
        return tuple(
            causal or (ids and entry["misplaced"] in LOOKING_AHEAD)
            for causal, entry in zip(self.causal_sites, self.described, strict=True)
        )

    def call(
        self, batch: int, lengths: tuple[int, int], keep: Array | None, seed: int
    ) -> ModelCall:
        """A call of some sizes with random tokens; all of them exist where ``keep`` is None.

        Where keys are counted, as many of them come first.
        """
        if keep is not None and self.counts_keys:
            keep = np.arange(lengths[0]) < np.maximum(keep.sum(axis=1, keepdims=True), 1)
        generator = np.random.default_rng(seed)
        feeds = {
            entry.name: entry.drawn(
                batch,
                lengths[entry.along or 0],
                keep if entry.along == 0 else None,
                generator,
            )
            for entry in self.inputs
        }
        existing = np.ones((batch, lengths[0]), bool) if keep is None else keep
        return ModelCall(feeds=feeds, keep=existing, lengths=lengths)

    def with_tokens(
        self, call: ModelCall, changed: Array, seed: int, *, along: int = 0
    ) -> ModelCall:
        """Return the call with the tokens changed where ``changed`` (bool ``[B, L]``) is True."""
        generator = np.random.default_rng(seed)
        feeds = dict(call.feeds)
        for entry in self.inputs:
            if entry.along != along or entry.role not in ("tokens", "features", "memory"):
                continue
            before = feeds[entry.name]
            others = [at for at in range(1, before.ndim) if at != entry.place]
            where = np.expand_dims(changed, others)
            feeds[entry.name] = np.where(where, entry.other(before, generator), before)
        return replace(call, feeds=feeds)

    def with_mask(self, call: ModelCall, keep: Array) -> ModelCall:
        """The call with other tokens said to exist."""
        feeds = dict(call.feeds)
        for entry in self.masks:
            if entry.along == 0:
                feeds[entry.name] = entry.mask(keep)
        return replace(call, feeds=feeds, keep=keep)

    def with_positions(self, call: ModelCall, positions: Array) -> ModelCall:
        """The call with the tokens of the padded sequence at other positions ``[B, L]``."""
        feeds = dict(call.feeds)
        for entry in self.inputs:
            if entry.role == "positions" and entry.along == 0:
                feeds[entry.name] = positions.astype(entry.dtype)
        return replace(call, feeds=feeds)

    def items(self, call: ModelCall, order: Sequence[int]) -> ModelCall:
        """Select items of a call in the given order."""
        chosen = list(order)
        flags = {entry.name for entry in self.inputs if entry.role == "flag"}
        feeds = {n: value if n in flags else value[chosen] for n, value in call.feeds.items()}
        return replace(call, feeds=feeds, keep=call.keep[chosen])

    def cut(self, call: ModelCall, tokens: slice, *, along: int = 0) -> ModelCall:
        """The call with some tokens alone of the padded sequence, or of the one that attends."""
        feeds = dict(call.feeds)
        for entry in self.inputs:
            if entry.role == "lengths":
                feeds[entry.name] = (
                    entry.mask(call.keep[:, tokens]) if not along else feeds[entry.name]
                )
            elif entry.along == along:
                before = (slice(None),) * entry.place
                feeds[entry.name] = feeds[entry.name][(*before, tokens)]
        length = len(range(*tokens.indices(call.lengths[along])))
        if along:
            return replace(call, feeds=feeds, lengths=(call.lengths[0], length))
        second = call.lengths[1] if self.has_two_sequences else length
        return replace(call, feeds=feeds, keep=call.keep[:, tokens], lengths=(length, second))

    def continued(self, call: ModelCall, first: int) -> ModelCall:
        """Return the call with the tokens from ``first`` on, and masks of the earlier ones, too."""
        rest = self.cut(call, slice(first, None), along=self.growing)
        masks = {
            entry.name: call.feeds[entry.name]
            for entry in self.masks
            if entry.along == self.growing
        }
        return replace(rest, feeds={**rest.feeds, **masks})

    def in_turn(
        self, call: ModelCall, stops: Sequence[int], order: Sequence[int] | None = None
    ) -> ModelCall:
        """Return the call for the tokens behind the last stop, earlier ones being in a cache.

        There is a call for the tokens up to each stop. With ``order`` the items of the cache are
        put in this order before the last call, whose tokens are those of the items in this order.
        """
        behind: ModelCall | None = None
        start = 0
        for end in (*stops, call.lengths[self.growing]):
            part = self.continued(self.cut(call, slice(0, end), along=self.growing), start)
            behind, start = replace(part, behind=behind), end
        if order is None or behind is None:
            return behind or call
        return replace(self.items(behind, order), order=tuple(order))

    def run(
        self, call: ModelCall, *, setting: Setting = DEFAULT, taps: Sequence[str] = ()
    ) -> dict[str, Array]:
        """Return the answers in floats by name, and the tapped inner tensors.

        Raises GraphRefused and GraphLost.
        """
        if call.behind is None:
            answer = self.engine.run(call.feeds, setting=setting, taps=taps)
        elif self.kept is not None:
            answer = self.kept.run(call, taps)
        else:
            held = self._held(call.behind, call.order)
            answer = self.engine.run({**call.feeds, **held}, setting=setting, taps=taps)
        wanted = {*taps, *(self.outputs or answer)}
        return {
            name: np.asarray(value)
            for name, value in answer.items()
            if name in wanted and (name in taps or np.asarray(value).dtype.kind == "f")
        }

    def _held(self, behind: ModelCall, order: tuple[int, ...] | None) -> dict[str, Array]:
        answers = self.run(behind)
        every = slice(None) if order is None else list(order)
        held = {name: answers[present][every] for name, present in self.presents.items()}
        flags = [entry for entry in self.inputs if entry.role == "flag"]
        return held | {entry.name: np.ones([1] * len(entry.shape), bool) for entry in flags}

    def in_place(self, call: ModelCall) -> Iterator[tuple[int, Activations]]:
        """Yield the activations of each attention that is judged alone.

        Attentions whose axes cannot be distinguished are left out. Raises GraphRefused and
        GraphLost.
        """
        for index, inside in self.engine.in_place(call.feeds):
            if index in self.cores:
                yield index, inside

    def misshapen(self, call: ModelCall, answers: Mapping[str, Array]) -> str:
        """What is wrong with the shape of an answer, or ""."""
        sizes = {ITEM: call.batch, PADDED: call.lengths[0], ATTENDING: call.lengths[1]}
        for name, letters in self.outputs.items():
            if name not in answers:
                return f"answers a batch of {call.batch} of length {call.lengths[0]} without {name}"
            shape = answers[name].shape
            same = len(shape) == len(letters)
            wanted = [sizes.get(at, n) for at, n in zip(letters, shape, strict=False)]
            if not same or wanted != list(shape):
                batch, length = call.batch, call.lengths[0]
                return (
                    f"answers a batch of {batch} of length {length} with {name} of the shape "
                    f"{list(shape)}"
                )
        return ""

    def takes(self, batch: int, lengths: tuple[int, int]) -> bool:
        """Tell whether the model accepts a call of these sizes."""
        sizes = {"batch": batch, "length": lengths[0], "second length": lengths[1]}
        return all(size in self.taken.get(axis, (size,)) for axis, size in sizes.items())
