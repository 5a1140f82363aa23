"""How a module is called and where its projections are: everything but its sizes to come."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, cast

from torch import nn

from ..errors import DeclarationError
from . import multihead
from .calling import Calling, read_calling, second_input
from .finding import Finding, answers_golden, find, recipe_notes, trial_notes
from .trial import Trial
from .wish import Wish

Understood = tuple[Calling, Finding, dict[str, Any]]


def understand(built: nn.Module, wish: Wish) -> Understood:
    """The calling, the finding with every assumption, and the promises completed by them.

    Where the answers are golden only with tokens before batch, that order is taken. Raises
    DeclarationError with what to pass.
    """
    if multihead.is_multihead(built):
        return _multihead(cast("nn.MultiheadAttention", built), wish)
    calling = calling_of(built, wish)
    turned = dataclasses.replace(calling, sequence_first=True)
    if getattr(built, "batch_first", None) is False:
        calling, turned = turned, calling
    try:
        finding = find(built, wish.request(calling))
    except DeclarationError:
        better = _golden_when(built, wish, turned)
        crossed = (turned, better) if better is not None else _with_second_input(built, wish)
        if crossed is None:
            raise
        calling, finding = crossed
    else:
        better = None if finding.golden else _golden_when(built, wish, turned)
        calling, finding = (calling, finding) if better is None else (turned, better)
    if not finding.golden:
        crossed = _with_second_input(built, wish)
        calling, finding = crossed or (calling, finding)
    return _complete(calling, finding, wish.promises)


def calling_of(built: nn.Module | type[nn.Module], wish: Wish) -> Calling:
    """How an instance, or the instances of a class, are called."""
    if multihead.is_multihead(built) and wish.call is None:
        return Calling(inputs=wish.inputs or "separate")
    forward: Callable[..., Any] = built.forward
    if isinstance(built, type):
        forward = forward.__get__(object())
    return read_calling(wish.shown, forward, wish.call, wish.inputs)


def _golden_when(built: nn.Module, wish: Wish, calling: Calling) -> Finding | None:
    """The finding under the other order of batch and tokens, when that one is golden."""
    if calling.function is not None or not wish.promises.get("batched", True):
        return None
    try:
        finding = find(built, wish.request(calling))
    except DeclarationError:
        return None
    return finding if finding.golden else None


def _with_second_input(built: nn.Module, wish: Wish) -> tuple[Calling, Finding] | None:
    """How it is golden with an input for key and value that may be left out, if it is."""
    names = second_input(built.forward)
    if wish.inputs is not None or wish.call is not None or names is None:
        return None
    calling = Calling(inputs="memory", names=names)
    finding = _golden_when(built, wish, calling)
    return None if finding is None else (calling, finding)


def _multihead(built: nn.MultiheadAttention, wish: Wish) -> Understood:
    promises = wish.promises
    if wish.call is None:
        calling: Calling = multihead.calling(built, wish.inputs)
        promises = multihead.promises(promises)
    else:
        calling = calling_of(built, wish)
        own = calling.function is not None
        calling = dataclasses.replace(calling, sequence_first=not (own or built.batch_first))
    recipe, sizes = multihead.recipe(built), multihead.sizes(built)
    request = wish.request(calling)
    trial = Trial(built, calling, request.batched, ())
    is_golden = answers_golden(recipe, sizes, trial, request.semantics)
    notes = (*recipe_notes(recipe), *multihead.extra_keys(built), *trial_notes(trial))
    finding = Finding(recipe=recipe, sizes=sizes, golden=is_golden, assumptions=notes)
    return _complete(calling, finding, promises)


def _complete(calling: Calling, finding: Finding, promises: dict[str, Any]) -> Understood:
    notes = [*finding.assumptions, f"inputs: {calling.inputs}"]
    if calling.sequence_first:
        notes.append("its tensors are [L, B, E]: tokens before batch")
    if calling.absent:
        notes.append(f"without a mask it gets None for {', '.join(calling.absent)}")
    finding = dataclasses.replace(finding, assumptions=tuple(notes))
    return calling, finding, {**promises, "inputs": calling.inputs}
