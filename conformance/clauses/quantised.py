"""quantised.*: keys and values that are codes of eight bits, with scales beside them.

Scales are powers of two: code times scale is exact, and no bound is wider than without.
"""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

from ..problems.inputs import Inputs
from ..problems.materialise import generator_for
from ..problems.problem import Problem
from ..problems.quantised import FORMATS, Quantised
from ..problems.recipes import LIVELY
from ..problems.space import OPTIONS, Space
from .judging import matches_golden, same_answer
from .registry import Finding, clause, requires
from .subject import Subject

SOURCE: Final = "by definition: code times scale; vLLM: k_scale, v_scale of an fp8 cache"
QUANTISED: Final = Space(mask="maybe", causal="maybe", values=LIVELY, share=0.5)
# By how much scales shrink while their codes grow, and the part of all codes that can.
SHRUNK: Final = {"key": 0.5, "value": 0.25}
ROOM: Final = 0.125

_quantised = requires(
    lambda candidate: candidate.declaration.kv_format is not None,
    "its keys and values are of the dtype of its queries",
)


def _scales(inputs: Inputs) -> Quantised:
    if inputs.quantised is None:
        msg = "only quantised keys and values have scales"
        raise LookupError(msg)
    return inputs.quantised


def exchanged(inputs: Inputs) -> Inputs:
    """Codes of keys with the scale of values, and of values with that of keys."""
    made = _scales(inputs)
    key, value = inputs.exact[1:]
    ratio = made.scale_of("value", key) / made.scale_of("key", key)
    inverse = made.scale_of("key", value) / made.scale_of("value", value)
    changed = {"key": (key * ratio).to(key.dtype), "value": (value * inverse).to(value.dtype)}
    return inputs.replace(**changed, quantised=None)


@clause(
    "quantised.golden",
    sentence=(
        "With quantised keys and values the answer is that of code times scale, with any mask, "
        "causal flag and option."
    ),
    source=SOURCE,
    space=OPTIONS.replace(values=LIVELY, share=0.5),
    needs_golden=True,
    counterfactual="the scales of keys and values exchanged",
    applies=(_quantised,),
)
def quantised_golden(subject: Subject, problem: Problem) -> Finding:
    """Scales as declared: one, one a head, or one a token and head."""
    inputs = subject.inputs(problem)
    wording = "with quantised keys and values the answer is wrong"
    other = None if subject.declaration.head_layout.value_in_key else exchanged(inputs)
    return matches_golden(subject, inputs, wording, counterfactual=other)


@clause(
    "quantised.scales",
    sentence="Larger codes under smaller scales give the same answer.",
    source=SOURCE,
    space=QUANTISED,
    counterfactual="the larger codes under the scales of the smaller ones",
    applies=(_quantised,),
)
def same_under_other_scales(subject: Subject, problem: Problem) -> Finding:
    """The scales of keys are halved, and those of values quartered; codes grow by as much."""
    drawn = subject.inputs(problem)
    made = _scales(drawn)
    shrunk = dict(SHRUNK)
    if subject.declaration.head_layout.value_in_key:
        shrunk["value"] = shrunk["key"]
    limit = FORMATS[made.format].largest * ROOM

    def small(name: str) -> Tensor:
        heads: Tensor = getattr(drawn, name)
        most = made.scale_of(name, heads) * limit
        return heads.double().clamp(-most, most).to(heads.dtype)

    inputs = drawn.with_tokens(key=small("key"), value=small("value"))
    inputs = inputs.with_tokens(key=inputs.exact[1], value=inputs.exact[2])
    scales = {f"{n}_scale": getattr(made, f"{n}_scale") * part for n, part in shrunk.items()}
    finer = inputs.replace(quantised=made.replace(**scales))
    misread = inputs.replace(
        key=inputs.key / shrunk["key"], value=inputs.value / shrunk["value"], quantised=None
    )
    wording = "larger codes under smaller scales change the answer"
    return same_answer(subject, inputs, finer, wording, counterfactual=misread)


@clause(
    "quantised.saturated",
    sentence="The largest, the lowest and the finest code, and zero, are numbers as all others.",
    source=f"{SOURCE}; OCP 8-bit floating point specification, table 1",
    space=QUANTISED,
    needs_golden=True,
    counterfactual="the largest and lowest codes taken for zero",
    applies=(_quantised,),
)
def saturated_codes(subject: Subject, problem: Problem) -> Finding:
    """About half of the codes lie at an end of the format, or next to zero."""
    drawn = subject.inputs(problem)
    made, generator = _scales(drawn), generator_for(problem, 45)
    known = FORMATS[made.format]
    ends = torch.tensor([known.largest, known.lowest, 2.0**known.finest, 0.0]).double()

    def extreme(name: str, *, lost: bool) -> Tensor:
        heads: Tensor = getattr(drawn, name)
        stream = generator.manual_seed(problem.seed + len(name))
        chosen = ends[torch.randint(len(ends), heads.shape, generator=stream)]
        here = torch.rand(heads.shape, generator=stream) < 0.5  # noqa: PLR2004 (about half)
        numbers = torch.where(lost & (chosen.abs() > 1.0), 0.0, chosen)
        return torch.where(here, numbers * made.scale_of(name, heads), heads.double()).to(
            heads.dtype
        )

    names = ("key", "value")
    inputs = drawn.with_tokens(**{name: extreme(name, lost=False) for name in names})
    without = drawn.with_tokens(**{name: extreme(name, lost=True) for name in names})
    wording = "codes at the ends of their format give a wrong answer"
    return matches_golden(subject, inputs, wording, counterfactual=without, signal=False)
