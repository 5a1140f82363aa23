"""mixed.mask-dtype: an additive mask that is wider than the query."""

from __future__ import annotations

import dataclasses
from typing import Final

import torch
from torch import Tensor

from ..calls.calling import CandidateFailure
from ..oracle.comparison import compare, moves
from ..problems.inputs import Inputs
from ..problems.materialise import TORCH_DTYPES
from ..problems.problem import Problem
from ..problems.space import Space
from ..tolerance import model
from .mixed import promotes
from .registry import Finding, clause
from .subject import Subject

# What masks are wider than: nothing that torch has is wider than float64.
WIDER: Final = {"float16": "float32", "bfloat16": "float32", "float32": "float64"}
# Where numbers of the narrower dtype lie four apart, and beyond float16's largest: what all keys of
# a row have in common is not seen by the softmax, what they differ by is.
COMMON: Final = {
    "float16": (2.0**12, 2.0**17),
    "bfloat16": (2.0**9, 2.0**9),
    "float32": (2.0**25, 2.0**25),
}
STEPS: Final = 4
STEP: Final = 0.75


@clause(
    "mixed.mask-dtype",
    level="SHOULD",
    sentence=(
        "An additive mask in a wider dtype than the query's is refused, or added with the values "
        "it has: neither rounded to the narrower dtype nor beyond its range."
    ),
    source="pytorch#99012: float32 masks under queries in half precision",
    space=Space(
        mask="always",
        forms=("bias",),
        values=("normal",),
        least=(("key_length", 2),),
        share=0.25,
    ),
    needs_golden=True,
    counterfactual="the mask rounded to the dtype of the query",
    applies=(promotes,),
    explained=False,
    subtle=True,
)
def mask_dtype(subject: Subject, problem: Problem) -> Finding:
    """Float32 under half precision, float64 under float32: a large number plus small steps."""
    reason = _without_wider(subject)
    if reason:
        return Finding(binding=False, inapplicable=reason)
    inputs, common = subject.inputs(problem), COMMON[subject.dtype][problem.seed % 2]
    steps = _steps(inputs, problem.seed)
    wide = TORCH_DTYPES[WIDER[subject.dtype]]
    asked = inputs.replace(bias=(steps + common).to(wide), generic=False)
    try:
        answer = subject.answer(asked)
    except CandidateFailure as failure:
        if failure.violation.kind == "raised":
            return Finding()
        raise
    plain = inputs.replace(bias=steps, generic=False)
    known, bound = subject.golden(plain), _bound(subject, plain, asked)
    agreement = compare(
        answer,
        known.output,
        bound,
        judged=known.judged,
        wording=f"a {WIDER[subject.dtype]} mask is not added with its own values",
    )
    rounded = (steps + common).to(inputs.query.dtype).double() - common
    lost = subject.oracle.output(inputs.replace(bias=rounded))
    return Finding(
        binding=moves(known.output, lost, bound, known.judged),
        margin=agreement.margin,
        violation=agreement.violation,
    )


def _without_wider(subject: Subject) -> str:
    if subject.dtype not in WIDER:
        return f"no mask is wider than {subject.dtype}"
    if subject.declaration.accumulate in ("native", "float16", "bfloat16"):
        return "it declares to add up in the dtype of the query"
    return ""


def _steps(inputs: Inputs, seed: int) -> Tensor:
    """Small differences between neighbouring keys, in the shape of the mask."""
    shape = (1, 1, 1, inputs.geometry.key_length) if inputs.keep is None else inputs.keep.shape
    generator = torch.Generator().manual_seed(seed)
    return STEP * torch.randint(0, STEPS, shape, generator=generator).double()


def _bound(subject: Subject, plain: Inputs, asked: Inputs) -> Tensor:
    """What computing may err by with the small steps, and with all that is large in the wide dtype.

    Their sum: scores may be stored in the narrow dtype before, not after, the mask is added.
    """
    known = subject.golden(plain)
    wide = WIDER[subject.dtype]
    contract = dataclasses.replace(
        subject.oracle.contract(known.core.scale),
        score_roundoff=0.0,
        accumulator_roundoff=model.UNIT_ROUNDOFF[wide],
        accumulator_underflow=model.UNDERFLOW[wide],
    )
    return known.bound + subject.oracle.bound(asked, contract)
