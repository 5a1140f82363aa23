"""numerics.golden, .scale, .large-logits: the answer is the golden one within a derived bound."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ..declare.candidate import Candidate
from ..problems.inputs import Inputs
from ..problems.problem import Problem
from ..problems.recipes import LIVELY
from ..problems.space import Space
from ..tolerance import model
from ._measuring import measures_golden
from ._vocabulary import finite_limit, logits_grow
from .registry import Finding, clause
from .subject import Subject

PAPER = "Vaswani et al. 2017, equation 1"
HEADROOM = model.HEADROOM
# A scale that is off by this factor must be seen for an example to count. Projections that a
# candidate brings in half precision, or as 8-bit integers, hide a smaller one from single elements.
OTHER_SCALE = {"float32": 1.1, "float64": 1.1, "float16": 2.0, "bfloat16": 2.0}
ODD_SCALES = (0.0, -0.5)
# A mask that is always in play may be a finite fill: no live logit goes below what
# mask.single-key asks of fills.
LARGEST_BESIDE_A_FILL = 1e8
LOGIT_TARGETS = (1e3, 1e5, 1e8, 1e15, 1e30)


@clause(
    "numerics.golden",
    level="MUST",
    sentence="Without a mask, the output is the softmax-weighted sum of the values.",
    source=PAPER,
    space=Space(extras="maybe"),
    needs_golden=True,
    counterfactual="the mean of the values",
)
def golden_answer(subject: Subject, problem: Problem) -> Finding:
    """Every value recipe, with scale, softcap and window where declared."""
    inputs = subject.inputs(problem)
    wording = "the answer is not softmax(scale Q K^T) V"
    return measures_golden(subject, inputs, wording, counterfactual=inputs.replace(scale=0.0))


@clause(
    "numerics.scale",
    level="MUST",
    sentence=(
        "The dot products are multiplied by the declared scale: one over the square root of the "
        "head size, unless another is declared or given."
    ),
    source=f"{PAPER}; vit-pytorch#65, mlc-llm#3426",
    space=Space(
        extras="scale",
        values=(*LIVELY, "decisive"),
        least=(("key_length", 2), ("num_heads", 1)),
    ),
    needs_golden=True,
    counterfactual="a scale ten percent larger, in half precision twice as large",
)
def scale(subject: Subject, problem: Problem) -> Finding:
    """Values that show the scale, with an explicit one where the keyword is declared."""
    inputs = subject.inputs(problem)
    used = subject.golden(inputs).core.scale
    coarse = bool(subject.declaration.precision)
    larger = inputs.replace(scale=used * OTHER_SCALE["float16" if coarse else subject.dtype])
    wording = f"the answer with a scale of {used:.6g} is another"
    return measures_golden(subject, inputs, wording, counterfactual=larger)


def _offers_scale(candidate: Candidate) -> str:
    return "" if "scale" in candidate.declaration.features else "no scale keyword is declared"


@clause(
    "numerics.odd-scale",
    level="SHOULD",
    sentence=(
        "A given scale of zero (equal weights) or below zero is used as it is, under masks too."
    ),
    source="pytorch#105190; `scale or default` takes zero for unset",
    space=Space(mask="maybe", causal="maybe", values=LIVELY, least=(("key_length", 2),), share=0.5),
    needs_golden=True,
    counterfactual="the scale that is used when none is given",
    applies=(_offers_scale,),
)
def odd_scale(subject: Subject, problem: Problem) -> Finding:
    """Zero, or minus a half."""
    inputs = subject.inputs(problem)
    odd = ODD_SCALES[problem.seed % len(ODD_SCALES)]
    wording = f"a scale of {odd:g} is not used"
    return measures_golden(
        subject,
        inputs.replace(scale=odd, generic=False),
        wording,
        counterfactual=inputs,
        signal=False,  # a scale of zero asks for the mean of the values
    )


@clause(
    "numerics.large-logits",
    level="MUST",
    sentence=(
        "Logits of any size give the right answer, as long as every intermediate value stays below "
        "a sixteenth of the largest finite number."
    ),
    source="executorch#18407: no maximum subtracted; Blanchard, Higham & Higham 2021",
    space=Space(
        values=("normal", "negative-logits", "dominant-key", "mixed-scales"),
        least=(("key_length", 2),),
        share=0.5,
    ),
    needs_golden=True,
    counterfactual="exponentials that overflow, or all vanish, unless the maximum is subtracted",
    applies=(logits_grow,),
)
def large_logits(subject: Subject, problem: Problem) -> Finding:
    """Queries (all tokens, for self-attention) enlarged until the logits reach a target."""
    inputs = subject.inputs(problem)
    target = LOGIT_TARGETS[problem.seed % len(LOGIT_TARGETS)]
    if subject.declaration.always_causal:
        target = min(target, LARGEST_BESIDE_A_FILL)
    enlarged = _enlarge(subject, inputs, target)
    wording = f"logits near {target:.0e} give a wrong answer"
    finding = measures_golden(subject, enlarged, wording, signal=False)
    core = subject.golden(enlarged).core
    largest = core.logits.amax(dim=-1).masked_fill(core.empty, 0.0).abs().amax()
    overflows = float(largest) > math.log(finite_limit(subject))
    return Finding(
        binding=finding.binding and overflows, margin=finding.margin, violation=finding.violation
    )


def _enlarge(subject: Subject, inputs: Inputs, target: float) -> Inputs:
    core = subject.golden(inputs).core
    largest = float(core.scores.abs().max())
    # Half of the room: rounding the enlarged tokens must not lead out of it.
    room = HEADROOM / 2.0 * finite_limit(subject) / max(largest_product(core), 1.0)
    factor = min(target / max(largest, torch.finfo(torch.float32).tiny), room)
    if inputs.mode != "self":
        return inputs.with_tokens(query=_times(inputs.query, factor))
    return inputs.with_tokens(key=_times(inputs.key, math.sqrt(max(factor, 1.0))))


def largest_product(core: object) -> float:
    """The largest sum |q||k| of the unscaled products, with what surrounds it."""
    query: Tensor = core.query  # type: ignore[attr-defined]  # golden.Attention
    key: Tensor = core.key  # type: ignore[attr-defined]  # golden.Attention
    products = query.abs() @ key.abs().transpose(-1, -2)
    return float(torch.stack([products.amax(), query.abs().amax(), key.abs().amax()]).amax())


def _times(tensor: Tensor, factor: float) -> Tensor:
    return (tensor.double() * factor).to(tensor.dtype)
