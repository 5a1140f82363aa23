"""numerics.scale-error, .typical-error, .near-ties: what only many elements together can show."""

from __future__ import annotations

import math

from ..candidate import Candidate
from ..genericity import has_generic_weights
from ..inputs import Inputs
from ..problem import Problem
from ..registry import Finding, clause
from ..results import Violation
from ..space import Space
from ..subject import Subject
from ..tolerance.fit import Fit
from ..tolerance.model import FEWEST_ROWS, NARROWEST
from ..tolerance.statistical import supports
from ._measuring import measure, measures_golden
from ._vocabulary import finite_limit
from .numerics import HEADROOM, largest_product

NUMERICS = "docs/tolerance.md; Higham & Mary 2019"
# A scale that is off by this much must be seen for an example to count.
OTHER_SCALE_ERROR = 0.1
# Errors average out over many elements. A scale that is a power of four multiplies exactly.
MANY = (
    ("query_length", 64),
    ("key_length", 17),
    ("head_size", 16),
    ("value_head_size", NARROWEST),
    ("query_size", 16),
    ("key_size", 16),
    ("value_size", 16),
    ("output_size", NARROWEST),
)
AVERAGED = Space(
    values=("normal", "plain-projections", "decisive"),
    least=(("query_length", FEWEST_ROWS), ("key_length", 2)),
    preferred=MANY,
    share=0.25,
)
# Where a row of the answer is a head's, and where it is the layer's.
WIDE = {
    "core": Space(least=(("value_head_size", NARROWEST),)),
    "layer": Space(least=(("output_size", NARROWEST),)),
}
NEARLY_TIED = Space(
    values=("nearly-tied", "small-near-ties"),
    least=(("key_length", 2),),
    preferred=(("key_length", 5), ("head_size", 16)),
    share=0.25,
)


def _independent(candidate: Candidate) -> str:
    """Why errors of a candidate cannot be taken for independent, or ""."""
    if candidate.declaration.precision:
        return f"at the precision {candidate.declaration.precision} errors may not be independent"
    if not has_generic_weights(candidate):
        return "it brings weights that are alike: its errors may not be independent"
    if not supports(candidate.declaration.semantics):
        return "at its declared semantics errors may not be independent"
    return WIDE[candidate.kind].not_applicable(candidate)


@clause(
    "numerics.scale-error",
    level="MUST",
    sentence=(
        "The relative error of the logit scale, fitted to many independent elements, is not larger "
        "than the declared precision explains."
    ),
    source=f"{NUMERICS}; Vaswani et al. 2017, equation 1",
    space=AVERAGED,
    needs_golden=True,
    counterfactual="a scale ten percent larger",
    applies=(_independent,),
    subtle=True,
)
def scale_error(subject: Subject, problem: Problem) -> Finding:
    """Errors a thousandth of the rounding of one element, as long as all have them."""
    fitted, broken = _fitted(subject, problem)
    if fitted is None:
        return Finding(binding=False, violation=broken)
    margin = abs(fitted.scale_error) / fitted.scale_allowed
    violation = None
    if fitted.blames_scale:
        message = (
            f"the logit scale has a relative error of {fitted.scale_error:+.3g}, fitted to "
            f"{fitted.counted} elements (allowed {fitted.scale_allowed:.3g})"
        )
        measured = {"scale_error": fitted.scale_error, "allowed": fitted.scale_allowed}
        violation = Violation(
            kind="value", message=message, expected=0.0, got=fitted.scale_error, measured=measured
        )
    # Errors that are too large blur the fit and may feign a scale: other clauses judge them.
    binding = fitted.scale_allowed < OTHER_SCALE_ERROR or fitted.unexplained > 1.0
    return Finding(
        binding=binding, margin=margin if violation else min(margin, 1.0), violation=violation
    )


@clause(
    "numerics.typical-error",
    level="MUST",
    sentence=(
        "On independent inputs, the root mean square of all errors stays within that of the "
        "roundings which the declared precision makes."
    ),
    source=NUMERICS,
    space=AVERAGED,
    needs_golden=True,
    applies=(_independent,),
    subtle=True,
)
def typical_error(subject: Subject, problem: Problem) -> Finding:
    """Each error in units of its own typical size; what a wrong scale explains is taken off."""
    fitted, broken = _fitted(subject, problem)
    if fitted is None:
        return Finding(binding=False, violation=broken)
    violation = None
    if fitted.unexplained > 1.0:
        message = (
            f"the errors are {fitted.unexplained:.3g} times as large as the declared precision "
            f"explains, over {fitted.counted} elements together"
        )
        violation = Violation(
            kind="value",
            message=message,
            expected=1.0,
            got=fitted.unexplained,
            measured={"rms": fitted.rms, "unexplained": fitted.unexplained},
        )
    return Finding(margin=fitted.unexplained, violation=violation)


def _fitted(subject: Subject, problem: Problem) -> tuple[Fit | None, Violation | None]:
    """The fit, or else what kept it from being made if that is the candidate's fault."""
    inputs = subject.inputs(problem)
    known, answer = subject.yardstick(inputs), subject.answer(inputs)
    found = measure(known, answer, "the answer to independent inputs is wrong")
    if found.kind == "finite":
        return None, found.violation
    return known.fit(answer), None


@clause(
    "numerics.near-ties",
    level="MUST",
    sentence="Logits that nearly tie are told apart as well as the declared precision can.",
    source="docs/tolerance.md; scores stored in a coarser format than declared",
    space=NEARLY_TIED,
    needs_golden=True,
    counterfactual="equal weights, as if the logits tied",
    subtle=True,
)
def near_ties(subject: Subject, problem: Problem) -> Finding:
    """Points of a lattice near one corner: their products are exact in every dtype."""
    inputs = _within_headroom(subject, subject.inputs(problem))
    wording = "logits that nearly tie are not told apart"
    even = inputs.replace(scale=0.0)
    return measures_golden(subject, inputs, wording, counterfactual=even, signal=False)


def _within_headroom(subject: Subject, inputs: Inputs) -> Inputs:
    """Tokens divided by a power of two, which is exact, until no unscaled product can overflow."""
    core = subject.golden(inputs).core
    room = HEADROOM * finite_limit(subject)
    excess = largest_product(core) / room
    if excess <= 1.0:
        return inputs
    if inputs.mode == "self":
        return inputs.with_tokens(key=inputs.key * 2.0 ** -math.ceil(math.log2(excess) / 2.0))
    return inputs.with_tokens(query=inputs.query * 2.0 ** -math.ceil(math.log2(excess)))
