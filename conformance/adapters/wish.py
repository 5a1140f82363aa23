"""What the user said to ``conformance.module``, and small steps its routes share."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn

from .._golden import golden
from ..declare.candidate import Candidate
from ..declare.declaration import MASK_FORMS
from ..declare.promises import declare
from ..errors import DeclarationError, did_you_mean
from . import multihead
from .calling import AdaptedModule, Call, Calling, check_keywords, mask_parameters
from .copying import put_in_dtype
from .finding import Request
from .packing import Recipe, Sizes


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
