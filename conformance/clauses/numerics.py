"""numerics.golden, .scale, .large-logits, .accumulation, .nan-shows: the answer itself."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

import torch
from torch import Tensor

from .._golden import golden
from ..oracle.comparison import moves
from ..problems.inputs import Inputs
from ..problems.materialise import TORCH_DTYPES, generator_for
from ..problems.problem import Problem
from ..problems.recipes import LIVELY
from ..problems.space import Space, admits_lengths, can_cross
from ..tolerance import model
from .judging import (
    can_hold_nan,
    finite_limit,
    first_place,
    logits_grow,
    measures_golden,
    through_output,
)
from .registry import Finding, clause, declares, violated
from .subject import Subject

PAPER = "Vaswani et al. 2017, equation 1"
HEADROOM = model.HEADROOM
# An example counts if a scale that is off by this factor would be wrong. Projections that a
# candidate brings in half precision, or as 8-bit integers, hide a smaller one from single elements.
OTHER_SCALE = {"float32": 1.1, "float64": 1.1, "float16": 2.0, "bfloat16": 2.0}
ODD_SCALES = (0.0, -0.5)
# A mask that always applies may be a finite fill: no live logit goes below what mask.single-key
# requires of fills.
LARGEST_WITH_A_FILL = 1e8
LOGIT_TARGETS = (1e3, 1e5, 1e8, 1e15, 1e30)


@clause(
    "numerics.golden",
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
    """Values that show the scale, with an explicit scale where the keyword is declared."""
    inputs = subject.inputs(problem)
    used = subject.golden(inputs).core.scale
    coarse = bool(subject.declaration.precision)
    larger = inputs.replace(scale=used * OTHER_SCALE["float16" if coarse else subject.dtype])
    wording = f"with a scale of {used:.6g} the answer is wrong"
    return measures_golden(subject, inputs, wording, counterfactual=larger)


_offers_scale = declares("scale", "no scale keyword is declared")


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
        signal=False,  # at a scale of zero the mean of the values is right
    )


@clause(
    "numerics.large-logits",
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
        target = min(target, LARGEST_WITH_A_FILL)
    enlarged = _enlarge(subject, inputs, target)
    wording = f"logits near {target:.0e} give a wrong answer"
    finding = measures_golden(subject, enlarged, wording, signal=False)
    core = subject.golden(enlarged).core
    largest = core.logits.amax(dim=-1).masked_fill(core.empty, 0.0).abs().amax()
    overflows = float(largest) > math.log(finite_limit(subject))
    return finding.only_if(overflows)


def _enlarge(subject: Subject, inputs: Inputs, target: float) -> Inputs:
    core = subject.golden(inputs).core
    largest = float(core.scores.abs().max())
    # Half of the room: rounding the enlarged tokens must not lead out of it.
    room = HEADROOM / 2.0 * finite_limit(subject) / max(largest_product(core), 1.0)
    factor = min(target / max(largest, torch.finfo(torch.float32).tiny), room)
    if inputs.mode != "self":
        return inputs.with_tokens(query=multiplied(inputs.query, factor))
    return inputs.with_tokens(key=multiplied(inputs.key, math.sqrt(max(factor, 1.0))))


def largest_product(core: object) -> float:
    """The largest of the unscaled sums |q||k|, of the |q| and of the |k|."""
    query: Tensor = core.query  # type: ignore[attr-defined]  # golden.Attention
    key: Tensor = core.key  # type: ignore[attr-defined]  # golden.Attention
    products = query.abs() @ key.abs().transpose(-1, -2)
    return float(torch.stack([products.amax(), query.abs().amax(), key.abs().amax()]).amax())


def multiplied(tensor: Tensor, factor: float) -> Tensor:
    """A tensor times a number, computed in float64 and rounded once."""
    return (tensor.double() * factor).to(tensor.dtype)


Round = Callable[[Tensor], Tensor]
# Terms of one sign and size, more than an accumulator of half precision can add up.
LONG: Final = Space(
    values=("long-sums", "long-products"),
    least=(("key_length", 2),),
    preferred=(("key_length", 1025), ("head_size", 128)),
    share=0.1,
)
# The coarser dtype; sums must not be rounded to it after each part.
COARSE: Final = {
    "float64": torch.float32,
    "float32": torch.bfloat16,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
}
# Kernels add up a few terms at once: this many parts of a sum are each rounded.
PARTS: Final = 64
# Of the last rows with so many logits the counterfactual is computed: each part rounds them all.
ROUNDED_LOGITS: Final = 1 << 16
FEW: Final = 5


@clause(
    "numerics.accumulation",
    sentence=(
        "Sums over many keys, and over many channels of large heads, are as exact as the declared "
        "accumulator allows, however alike their terms are."
    ),
    source="Higham 2002, section 4.2; metal-flash-attention#8, #13: sums in half precision",
    space=LONG,
    needs_golden=True,
    counterfactual="sums rounded to a coarser format after each of 64 parts",
    subtle=True,
)
def accumulation(subject: Subject, problem: Problem) -> Finding:
    """A thousand keys with positive values, or products of positive numbers."""
    inputs = subject.inputs(problem)
    if problem.values == "long-products":
        inputs = _with_few_keys(subject, inputs)
    finding = measures_golden(subject, inputs, "a long sum is inexact", signal=False)
    yardstick = subject.yardstick(inputs)
    binding = moves(yardstick.output, _coarsely(subject, inputs), yardstick.bound, yardstick.judged)
    return finding.only_if(binding)


def _with_few_keys(subject: Subject, inputs: Inputs) -> Inputs:
    """The first keys, if the candidate takes few: errors of logits average out over many keys."""
    few = inputs.geometry.replace(key_length=min(FEW, inputs.geometry.key_length))
    if not can_cross(subject.candidate) or not admits_lengths(subject.candidate, few):
        return inputs
    key, value = (x[..., : few.key_length, :].contiguous() for x in (inputs.key, inputs.value))
    return inputs.with_tokens(key=key, value=value)


def _coarsely(subject: Subject, inputs: Inputs) -> Tensor:
    """The answer of an implementation that adds up the last rows in a coarse format."""
    expected = subject.golden(inputs)
    core, working = expected.core, TORCH_DTYPES[subject.dtype]
    coarse = COARSE[subject.dtype]

    def rounded(partial: Tensor) -> Tensor:
        return partial.to(working).to(coarse).double()

    rows = slice(-max(1, ROUNDED_LOGITS // max(1, core.logits[..., :1, :].numel())), None)
    query, keys = core.query[..., rows, :], core.key.transpose(-1, -2)
    moved = core.scale * (_added_up(query, keys, rounded) - query @ keys)
    weights = golden.softmax(core.logits[..., rows, :] + moved)
    heads = core.output.clone()
    heads[..., rows, :] = _added_up(weights, core.value, rounded)
    return through_output(expected, inputs, heads)


def _added_up(left: Tensor, right: Tensor, rounded: Round) -> Tensor:
    """A product of matrices, rounded after each part of its sums."""
    step = max(1, math.ceil(left.shape[-1] / PARTS))
    total = torch.zeros(*left.shape[:-1], right.shape[-1], dtype=torch.float64)
    for first in range(0, left.shape[-1], step):
        part = left[..., first : first + step] @ right[..., first : first + step, :]
        total = rounded(total + part)
    return total


WHERE: Final = ("query", "key", "value")


@clause(
    "numerics.nan-shows",
    level="SHOULD",
    sentence=(
        "What is not a number shows: a NaN in a query, or in a key or value that the query "
        "attends, is answered with NaN, under masks too."
    ),
    source="pytorch#141128: a NaN query answered with zeros; IEEE 754-2019, section 6.2",
    space=Space(mask="maybe", causal="maybe", values=("normal",), share=0.25),
    applies=(can_hold_nan,),
    explained=False,
)
def nan_shows(subject: Subject, problem: Problem) -> Finding:
    """Set one token of query, key or value to NaN; every row that depends on it is judged."""
    inputs = subject.inputs(problem)
    role = WHERE[problem.seed % len(WHERE)]
    has_golden = subject.candidate.golden_known
    point = subject.declaration.semantics
    allowed = subject.golden(inputs).core.allowed if has_golden else inputs.allowed(point)
    length = inputs.geometry.query_length if role == "query" else inputs.geometry.key_length
    chosen = int(torch.randint(max(length, 1), (1,), generator=generator_for(problem, 42)))
    meeting = _meeting(inputs, point, allowed, role, chosen)
    if not bool(meeting.any()):
        return Finding(binding=False)
    answer = subject.answer(_poisoned(inputs, role, chosen))
    hidden = ~answer.isnan() & meeting
    if not bool(hidden.any()):
        return Finding()
    place = first_place(hidden)
    got = float(answer[place])
    message = f"a {role} that is NaN is answered with {got:.9g} at {list(place)}"
    return violated("value", message, expected="nan", got=got, where=list(place))


def _meeting(
    inputs: Inputs, point: golden.Semantics, allowed: Tensor, role: str, chosen: int
) -> Tensor:
    """The rows of the answer that must show a NaN in one token, broadcastable to the answer.

    A query's own row, if it has a key; the rows that attend a key or value. Where query and key are
    one token, or rows of several heads make one, any of these rows suffices.
    """
    meeting = []
    if role != "query":
        meeting.append(inputs.reached(point, allowed)[..., chosen])
    if role == "query" or inputs.mode == "self":
        meeting.append(inputs.own_rows(point, allowed.any(dim=-1))[..., chosen])
    return torch.stack(meeting).any(dim=0).unsqueeze(-1)


def _poisoned(inputs: Inputs, role: str, chosen: int) -> Inputs:
    """Set one token to NaN, in every role of the token."""
    token = "key" if inputs.mode == "self" or (inputs.mode, role) == ("memory", "value") else role
    poisoned: Tensor = getattr(inputs, token).clone()
    poisoned[..., chosen, :] = math.nan
    return inputs.with_tokens(**{token: poisoned})
