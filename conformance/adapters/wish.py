"""What the user said to ``conformance.module``, and what is found out of its call."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, cast

from torch import nn

from .._golden import golden
from ..declare.candidate import Candidate
from ..declare.declaration import MASK_FORMS
from ..declare.promises import declare
from ..errors import DeclarationError, did_you_mean
from . import multihead
from .calling import (
    AdaptedModule,
    Call,
    Calling,
    check_keywords,
    mask_parameters,
    read_calling,
    second_input,
)
from .construct import put_in_dtype
from .finding import Finding, Request, answers_golden, find, recipe_notes, trial_notes
from .packing import Recipe, Sizes
from .trial import Trial


@dataclass(frozen=True, kw_only=True)
class Wish:
    """What the user asked for; ``promises`` are those of ``conformance.layer``."""

    shown: str
    num_heads: int | None
    num_kv_heads: int | None
    call: Call | None
    projections: Mapping[str, str] | None
    promises: dict[str, Any]

    @property
    def inputs(self) -> str | None:
        """The declared inputs, if any."""
        inputs: str | None = self.promises.get("inputs")
        return inputs

    def request(self, calling: Calling) -> Request:
        """The same as a request to find the projections."""
        return Request(
            shown=self.shown,
            calling=calling,
            batched=bool(self.promises.get("batched", True)),
            semantics=self.promises.get("semantics") or golden.STANDARD,
            num_heads=self.num_heads,
            num_kv_heads=self.num_kv_heads,
            projections=self.projections,
        )


def check_number(name: str, value: int | None) -> None:
    """Require a number of heads to be one; DeclarationError."""
    if value is not None and (type(value) is not int or value < 1):
        msg = f"{name} is {value!r}: give a positive integer"
        raise DeclarationError(msg)


def check_promises(promises: Mapping[str, Any]) -> None:
    """Say what is wrong with the promises before anything is searched; DeclarationError."""
    known = [word for word in inspect.signature(declare).parameters if word != "kind"]
    for word in promises:
        if word not in known:
            msg = f"conformance.module got an unknown argument {word!r}{did_you_mean(word, known)}"
            raise DeclarationError(msg)
    declare("layer", **promises)


def with_masks(promises: Mapping[str, Any], call: Call | None) -> dict[str, Any]:
    """A mask form that ``call=`` renames is declared by that."""
    if "masks" in promises or not isinstance(call, Mapping):
        return dict(promises)
    forms = [word for word in call if word in MASK_FORMS]
    return {**promises, "masks": forms} if forms else dict(promises)


def without_biases(given: golden.Semantics | None, recipe: Recipe) -> golden.Semantics:
    """The declared point, without the biases that the module has no place for."""
    words = {"q": "query", "k": "key", "v": "value", "o": "output"}
    absent = {f"{words[role]}_bias": False for role in words if not recipe.has_bias(role)}
    return (given or golden.STANDARD).replace(**absent)


def loaded(
    fresh: nn.Module,
    calling: Calling,
    recipe: Recipe,
    sizes: Sizes,
    weights: golden.ProjectionWeights,
) -> AdaptedModule:
    """A module with a problem's weights, in their dtype and on their device, under our call."""
    fresh = put_in_dtype(fresh.to(weights.q.device), weights.q.dtype)
    recipe.write(fresh, sizes, weights)
    return AdaptedModule(fresh, calling)


def finished(
    candidate: Candidate, built: nn.Module, calling: Calling, notes: tuple[str, ...]
) -> Candidate:
    """Check that the module takes what is declared, and say what was assumed."""
    declaration = candidate.declaration
    if not isinstance(calling, multihead.MultiheadCalling):
        check_keywords(candidate.name, built.forward, calling, declaration)
    if not declaration.masks and calling.function is None:
        words = mask_parameters(built.forward)
        beside = f" (its {', '.join(words)} is left alone)" if words else ""
        notes = (*notes, f"no mask declared{beside}: mask clauses are not applicable")
    return assuming(candidate, *notes)


def assuming(candidate: Candidate, *assumptions: str) -> Candidate:
    """The same candidate with some assumptions put first."""
    everything = (*assumptions, *candidate.declaration.assumptions)
    declaration = dataclasses.replace(candidate.declaration, assumptions=everything)
    return dataclasses.replace(candidate, declaration=declaration)


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
