"""Whole models that are wrong, as graphs of :mod:`candidates.models.wrong_models`."""

from __future__ import annotations

import dataclasses
import inspect
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

import conformance
from conformance import Mistake
from conformance.graphs.process import DEFAULT
from conformance.models.candidates import model_candidates
from conformance.models.sites import find_sites
from conformance.models.whole_model import WholeModel

from ..exports import Source, by_tracing
from ..models import BROKEN
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
    _, candidate = model_candidates(path, find_sites(path), None)[0]
    return dataclasses.replace(candidate, name=name)


class WrongWhenOptimised(WholeModel):
    """The runtime's highest level errs by a thousandth."""

    def run(self, call: Any, *, setting: Any = DEFAULT, taps: Any = ()) -> dict[str, Any]:
        answers = super().run(call, setting=setting, taps=taps)
        if setting.level != DEFAULT.level:
            return answers
        return {name: value * FACTOR for name, value in answers.items()}


def wrong_when_optimised() -> conformance.Candidate:
    """A right model under a runtime whose highest level errs."""
    candidate = made(RIGHT, "WrongWhenOptimised")
    fields = {field.name: getattr(candidate.function, field.name) for field in _FIELDS}
    return dataclasses.replace(candidate, function=WrongWhenOptimised(**fields))


_FIELDS = dataclasses.fields(WholeModel)


def second_unscaled() -> conformance.Candidate:
    """The second layer of an encoder does not scale its dot products."""
    return made(BROKEN["second-unscaled"].source, "SecondUnscaled")


def _declare(
    make: Callable[[], conformance.Candidate], kind: type, clause: str, *also: str
) -> None:
    DECLARED.append(
        Mistake(
            name=kind.__name__,
            sentence=" ".join(inspect.cleandoc(kind.__doc__ or "").split()),
            primary=clause,
            also=also,
            candidate=make,
        )
    )


for wrong in (*WRONG.values(), EMPTY_IS_NAN):
    module: torch.nn.Module = wrong.source.module
    _declare(
        partial(made, wrong.source, type(module).__name__), type(module), wrong.clause, *wrong.also
    )
_declare(wrong_when_optimised, WrongWhenOptimised, "model.optimisation-levels")
DECLARED.append(
    Mistake(
        name="SecondUnscaled",
        sentence=str(second_unscaled.__doc__),
        primary="model.sites-in-place",
        candidate=second_unscaled,
    )
)
