"""numerics.options: options that are given together leave each other alone."""

from __future__ import annotations

from ..caching import without_cache
from ..candidate import Candidate
from ..inputs import Inputs
from ..problem import Problem
from ..registry import Finding, clause
from ..space import Space
from ..subject import Subject
from ._vocabulary import matches_golden

OPTIONS = ("bias", "scale", "softcap", "window")
TOGETHER = Space(
    mask="maybe",
    causal="maybe",
    finite_bias="maybe",
    extras="maybe",
    values=("normal",),
    patterns=("random", "dense", "padding", "mixed"),
    share=0.25,
    edges="combinations",
)


def _some_option(candidate: Candidate) -> str:
    declared = candidate.declaration
    offered = (
        declared.masks or declared.causal or {"scale", "softcap", "window"} & declared.features
    )
    return "" if offered else "no option is declared"


@clause(
    "numerics.options",
    level="MUST",
    sentence=(
        "Whatever is given in one call acts: every two of scale, cap, window, causal flag, grouped "
        "heads and any form and shape of mask, and all of them at once."
    ),
    source="pytorch#187801: both given, one lost; Kuhn, Wallace & Gallo 2004 on pairs",
    space=TOGETHER,
    needs_golden=True,
    counterfactual="one of them lost",
    applies=(_some_option,),
    subtle=True,
)
def options(subject: Subject, problem: Problem) -> Finding:
    """All pairs of what is declared, systematically; what is lost in turn must be able to show."""
    inputs = subject.inputs(problem)
    lost = _losses(inputs)
    wording = "an answer forgets one of the options that are given together"
    other = lost[problem.seed % len(lost)] if lost else None
    return matches_golden(subject, inputs, wording, counterfactual=other)


def _losses(inputs: Inputs) -> list[Inputs]:
    """The same inputs, each time with one of the options left out."""
    given = [name for name in OPTIONS if getattr(inputs, name) is not None]
    lost = [inputs.replace(**{name: None}) for name in given]
    lost += [inputs.without_mask()] if inputs.masked else []
    lost += [without_cache(inputs)] if inputs.past else []
    return lost + ([inputs.replace(causal=False)] if inputs.causal else [])
