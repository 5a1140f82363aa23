"""Whole models that are wrong, as graphs of :mod:`candidates.models.wrong_models`."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any, Final

import torch

import conformance
from conformance import Mistake

from ..exports import Source, by_tracing
from ..models import BROKEN
from ..models.cached import SOURCES, FirstTokenLost, KeepingDecoder, OrdersKeysAlone
from ..models.wrong_models import EMPTY_IS_NAN, RIGHT, WRONG
from ._graphs import WRONG as FACTOR
from ._graphs import folder
from ._kit import DECLARED


def made(source: Source, name: str) -> conformance.Candidate:
    """The candidate that a model is as a whole once it is exported."""
    path = folder() / name / "model.onnx"
    path.parent.mkdir(exist_ok=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what is baked in is what is wanted
        by_tracing(source, path)
    return dataclasses.replace(conformance.model(path)[0], name=name)


def wrong_when_optimised() -> conformance.Candidate:
    """The runtime's highest level errs by a thousandth, under a right model."""
    candidate = made(RIGHT, "WrongWhenOptimised")
    right: Any = candidate.function

    class Erring(type(right)):  # type: ignore[misc]  # the class of a whole model is not public
        def run(self, call: Any, *, setting: Any = None, taps: Any = ()) -> dict[str, Any]:
            how = {} if setting is None else {"setting": setting}
            answers: dict[str, Any] = super().run(call, taps=taps, **how)
            if setting is not None and setting.level != "all":
                return answers
            return {name: value * FACTOR for name, value in answers.items()}

    fields = {field.name: getattr(right, field.name) for field in dataclasses.fields(right)}
    return dataclasses.replace(candidate, function=Erring(**fields))


def another_source(name: str, part: str) -> conformance.Candidate:
    """A right export of a module that is not quite its source, which has other weights in a part.

    ``part`` is in the names of the parameters that differ.
    """
    path = folder() / name / "model.onnx"
    path.parent.mkdir(exist_ok=True)
    by_tracing(RIGHT, path)
    source = copy.deepcopy(RIGHT.module)
    with torch.no_grad():
        for own, parameter in source.named_parameters():
            if part in own:
                parameter.mul_(FACTOR)
    return dataclasses.replace(conformance.model(path, source=source)[0], name=name)


def second_unscaled() -> conformance.Candidate:
    """The second layer of an encoder does not scale its dot products."""
    return made(BROKEN["second-unscaled"].source, "SecondUnscaled")


class HeadsMixTokens(torch.nn.Module):
    """Queries are reshaped into heads without a transpose, within a residual sum and a norm."""

    def __init__(self, width: int = 24, heads: int = 3) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value, self.out = (
            torch.nn.Linear(width, width) for _ in range(4)
        )
        self.norm = torch.nn.LayerNorm(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """A block of tokens ``[B, L, E]``."""
        batch, length, width = x.shape
        size = width // self.heads
        query = self.query(x).reshape(batch, self.heads, length, size)
        key, value = (
            part(x).view(batch, length, self.heads, size).transpose(1, 2)
            for part in (self.key, self.value)
        )
        weights = (query @ key.mT / size**0.5).softmax(-1)
        heads = (weights @ value).transpose(1, 2).reshape(batch, length, width)
        answer: torch.Tensor = self.norm(x + self.out(heads))
        return answer


def heads_mix_tokens() -> conformance.Candidate:
    """A model of torch: its graph is not followed beside its attentions."""
    return conformance.model(HeadsMixTokens(), name="HeadsMixTokens")[0]


class AddsInPlace(HeadsMixTokens):
    """The residual is added in place, and so to the tensor that the caller gave."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """A block of tokens ``[B, L, E]``."""
        heads = [part(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in self.parts]
        attended = torch.nn.functional.scaled_dot_product_attention(*heads)
        x += self.out(attended.transpose(1, 2).flatten(2))
        answer: torch.Tensor = self.norm(x)
        return answer

    @property
    def parts(self) -> tuple[torch.nn.Module, ...]:
        """The projections of query, key and value."""
        return self.query, self.key, self.value


def adds_in_place() -> conformance.Candidate:
    """A model of torch: a graph's inputs are its own."""
    return conformance.model(AddsInPlace(), name="AddsInPlace")[0]


def keeping(made: type[KeepingDecoder]) -> conformance.Candidate:
    """A decoder of torch that is called with its own cache."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return conformance.model(made(), name=made.__name__)[0]


# Sources that an export does not match, by the parameters that differ, and what is said of them.
SOURCES_APART: Final = {
    "AnotherLayer": (
        "layers.1.narrow",
        "The module that is named as its source has other weights in its second layer.",
    ),
    "AnotherEmbedding": (
        "tokens.weight",
        "The module that is named as its source has another table of words.",
    ),
    "AnotherNorm": (
        "layers.0.first_norm.weight",
        "The module that is named as its source scales the norm of its first layer otherwise.",
    ),
}


def _declare(
    make: Callable[[], conformance.Candidate], name: str, said: Any, clause: str, *also: str
) -> None:
    text = said if isinstance(said, str) else said.__doc__ or ""
    sentence = " ".join(inspect.cleandoc(text).split())
    DECLARED.append(
        Mistake(name=name, sentence=sentence, primary=clause, also=also, candidate=make)
    )


for wrong in (*WRONG.values(), EMPTY_IS_NAN):
    kind = type(wrong.source.module)
    _declare(
        partial(made, wrong.source, kind.__name__), kind.__name__, kind, wrong.clause, *wrong.also
    )
for name, cached in SOURCES.items():
    if name != "CachedDecoder":
        _declare(partial(made, cached, name), name, type(cached.module), "model.cache-equals-full")
_declare(
    wrong_when_optimised, "WrongWhenOptimised", wrong_when_optimised, "model.optimisation-levels"
)
for name, (part, sentence) in SOURCES_APART.items():
    _declare(partial(another_source, name, part), name, sentence, "model.matches-source")
for keeper, own in (
    (FirstTokenLost, "model.cache-equals-full"),
    (OrdersKeysAlone, "model.cache-in-order"),
):
    _declare(partial(keeping, keeper), keeper.__name__, keeper, own)
_declare(heads_mix_tokens, "HeadsMixTokens", HeadsMixTokens, "model.heads-by-token")
_declare(adds_in_place, "AddsInPlace", AddsInPlace, "model.leaves-no-trace")
_declare(second_unscaled, "SecondUnscaled", second_unscaled, "model.sites-in-place")
