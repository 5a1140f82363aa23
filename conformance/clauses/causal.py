"""mask.causal*: no query sees a later key, at the declared alignment, with or without a mask."""

from __future__ import annotations

import torch

from ..oracle.extreme_logits import lowered_key
from ..problems.inputs import OPTIONAL, Inputs
from ..problems.materialise import generator_for
from ..problems.problem import Problem
from ..problems.recipes import LIVELY
from ..problems.space import Space, can_cross
from .judging import (
    attends_keys_alone,
    logits_grow,
    matches_golden,
    narrow_range,
    sees_by_place,
)
from .leaks import unaffected
from .registry import Finding, clause, requires
from .shape import must_raise
from .subject import Subject

SOURCE = "Vaswani et al. 2017, section 3.2.3"
CAUSAL_TARGETS = (8e7, 4e5)
HALF_TARGETS = (1e2, 3e3)


_has_other_options = requires(
    lambda c: c.declaration.features & set(OPTIONAL) or "bias" in c.declaration.masks,
    "nothing else can be given with the flag",
)


@clause(
    "mask.causal",
    sentence="With the causal flag, later keys and values never change the answer of a query.",
    source=f"{SOURCE}; pytorch#96941, xformers#103",
    space=Space(causal="always", square="always", values=LIVELY, least=(("key_length", 2),)),
    counterfactual="no causality",
)
def causal(subject: Subject, problem: Problem) -> Finding:
    """Put junk into all keys from a random place on; earlier rows are judged."""
    inputs = subject.inputs(problem)
    length = inputs.geometry.key_length
    later = torch.arange(length) >= 1 + problem.seed % (length - 1)
    junk = later.expand(inputs.geometry.batch, length)
    return unaffected(subject, problem, inputs, junk, counterfactual=inputs.replace(causal=False))


@clause(
    "mask.causal-alignment",
    sentence=(
        "The causal diagonal ends at the last query and last key (bottom-right) or starts at the "
        "first of both (top-left), as declared, and each query sees its own position."
    ),
    source=f"{SOURCE}; flash-attention#282, pytorch#103082, mlx#2835",
    space=Space(causal="always", extras="scale"),
    needs_golden=True,
    counterfactual="the other alignment (for equal lengths: the diagonal moved by one)",
    applies=(sees_by_place,),
)
def causal_alignment(subject: Subject, problem: Problem) -> Finding:
    """The golden at the declared alignment, mostly with unequal lengths."""
    inputs = subject.inputs(problem)
    point = subject.declaration.semantics
    if can_cross(subject.candidate):
        other = "top-left" if point.causal_alignment == "bottom-right" else "bottom-right"
        counterfactual = point.replace(causal_alignment=other)
    else:
        counterfactual = point.replace(causal_offset=point.causal_offset - 1)
    wording = f"a causal answer is not {point.causal_alignment} aligned"
    return matches_golden(subject, inputs, wording, counterfactual=counterfactual)


@clause(
    "mask.causal-combined",
    sentence=(
        "The causal flag changes nothing about biases, caps, windows and scales that are given "
        "with it."
    ),
    source="pytorch#187801: causal with a mask, both given, one lost",
    space=Space(
        causal="always",
        mask="maybe",
        forms=("bias",),
        finite_bias="maybe",
        extras="maybe",
        square="always",
        values=LIVELY,
        patterns=("random", "dense", "padding"),
        least=(("key_length", 4),),
        share=0.5,
    ),
    needs_golden=True,
    counterfactual="one of them lost",
    applies=(_has_other_options,),
    subtle=True,
)
def causal_combined(subject: Subject, problem: Problem) -> Finding:
    """All options at once against the golden; losing an option, by the seed, must show."""
    inputs = subject.inputs(problem)
    lost = _losses(inputs)
    if not lost:
        return Finding(binding=False)
    wording = "with the causal flag and other options together the answer is wrong"
    return matches_golden(subject, inputs, wording, counterfactual=lost[problem.seed % len(lost)])


def _losses(inputs: Inputs) -> list[Inputs]:
    """Inputs without the bias, the scale, the softcap or the window, one option at a time."""
    names = [name for name in OPTIONAL if getattr(inputs, name) is not None]
    return [inputs.replace(**{name: None}) for name in names]


_keys_grow = requires(
    lambda candidate: candidate.declaration.kv_format is None,
    "its keys are codes, of which none lies far below the others",
)


@clause(
    "mask.causal-first-key",
    sentence=(
        "The first query of a causal sequence returns the first value, whatever the logit (down "
        "to -1e8)."
    ),
    source="by definition: the softmax of one logit is one; GPT-2 (2019) fills with -1e4",
    space=Space(causal="always", square="always", values=("normal",), least=(("key_length", 2),)),
    needs_golden=True,
    counterfactual="a finite fill of half the logit's size",
    applies=(logits_grow, attends_keys_alone, sees_by_place, _keys_grow),
)
def causal_first_key(subject: Subject, problem: Problem) -> Finding:
    """The first key's logits far below the later ones; the first row sees that key alone."""
    drawn = subject.inputs(problem)
    targets = HALF_TARGETS if narrow_range(subject) else CAUSAL_TARGETS
    target = targets[problem.seed % len(targets)]
    inputs = lowered_key(drawn, live=0, target=target)
    first = torch.arange(drawn.geometry.query_length).reshape(-1, 1) == 0
    fill = subject.declaration.semantics.replace(mask_operation="add", mask_fill=-target / 2)
    return matches_golden(
        subject,
        inputs,
        f"the first key lies {target:.0e} below later ones and is not returned alone",
        counterfactual=fill,
        judged=subject.golden(inputs).judged & first,
        signal=False,  # the value of the first key is the right answer
    )


@clause(
    "mask.causal-and-mask",
    sentence=(
        "With the causal flag and a mask together, a key is attended only when both admit it, or "
        "as `causal_combination` declares: one replaces the other, or the call is refused."
    ),
    source="pytorch#187801: causal with a mask, both given, one lost",
    space=Space(
        causal="always",
        mask="always",
        square="always",
        values=LIVELY,
        patterns=("random", "dense", "padding"),
        least=(("key_length", 3),),
        share=0.5,
    ),
    counterfactual="causality alone, or the mask alone",
)
def causal_and_mask(subject: Subject, problem: Problem) -> Finding:
    """Put junk into one key of each item; rows kept from that key by flag or mask must not change.

    Under a declared combination other than "both" the answer is compared with the golden.
    """
    inputs = subject.inputs(problem)
    point = subject.declaration.semantics
    if point.causal_combination == "refused":
        return must_raise(
            subject, inputs, inputs, "the causal flag and a mask, refused as declared"
        )
    if point.causal_combination != "both":
        wording = f"flag and mask together do not act as declared ({point.causal_combination})"
        both = point.replace(causal_combination="both")
        return matches_golden(subject, inputs, wording, counterfactual=both)
    sizes = inputs.geometry
    generator = generator_for(problem, 4)
    chosen = torch.randint(1, sizes.key_length, (sizes.batch, 1), generator=generator)
    junk = torch.arange(sizes.key_length).expand(sizes.batch, sizes.key_length) == chosen
    lost = inputs.without_mask() if problem.seed % 2 == 0 else inputs.replace(causal=False)
    return unaffected(subject, problem, inputs, junk, counterfactual=lost)
