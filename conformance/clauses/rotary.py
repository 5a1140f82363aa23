"""position.rotary*: queries and keys turned by their positions."""

from __future__ import annotations

import torch
from torch import Tensor

from .._golden import golden
from ..declare.candidate import Candidate
from ..problems.inputs import Inputs
from ..problems.materialise import generator_for
from ..problems.problem import Problem
from ..problems.recipes import LIVELY
from ..problems.settling import settle
from ..problems.space import KEY_FORMS, Space, admits_lengths, can_cross
from ._measuring import measures_golden
from ._vocabulary import permutation, same_answer, take
from .registry import Finding, clause
from .subject import Subject

SOURCE = "Su et al. 2021 (RoFormer), section 3.2.2"
FORMULA = Space(
    mask="maybe",
    causal="maybe",
    finite_bias="maybe",
    extras="maybe",
    values=("normal", "decisive"),
    least=(("head_size", 2),),
    preferred=(("head_size", 4), ("key_length", 3)),
    share=0.5,
)
# Every so many problems far positions, where a frequency that is slightly off shows: a few queries
# at the end of many keys, or few tokens with wide heads.
FAR = ((200, 2, 16), (0, 0, 0), (3, 3, 64), (0, 0, 0), (40, 40, 8), (0, 0, 0))
# In bfloat16 the answer tells frequencies that were rounded to it only further away, in wide heads:
# at the default scale, of keys that a mask makes few, since the mean over many hides their scores.
# Tables of places often end at 1024.
CROWD, CROWDED = (1000, 2, 128), 3
FEW = 4


def is_rotary(candidate: Candidate) -> str:
    """Why nothing is known of how positions turn queries and keys, or ""."""
    if candidate.declaration.semantics.rotary == "none":
        return "its semantics declares no rotary positions"
    return ""


@clause(
    "position.rotary",
    level="MUST",
    sentence=(
        "Each pair of channels of query and key is turned by position times base^(-2i/R), in the "
        "declared pairing, and values are not."
    ),
    source=f"{SOURCE}, equation 34; GPT-J and GPT-NeoX pair channels in two ways",
    space=FORMULA,
    needs_golden=True,
    counterfactual="the other pairing, another base, or no rotation",
    applies=(is_rotary,),
    subtle=True,
)
def rotary(subject: Subject, problem: Problem) -> Finding:
    """Near and far positions against the golden."""
    inputs = _few_of_a_crowd(subject.inputs(_far(subject, problem)))
    other = _other(subject, inputs, problem.seed)
    wording = "rotary positions are not what is declared"
    return measures_golden(subject, inputs, wording, counterfactual=other)


def _far(subject: Subject, problem: Problem) -> Problem:
    """The same with other lengths and head sizes, by its seed, as far as they are free."""
    if problem.past:
        return problem
    if _crowded(subject, problem):
        keys, queries, size = CROWD
        problem = problem.replace(scale=None)
    else:
        keys, queries, size = FAR[problem.seed % len(FAR)]
    if not keys:
        return problem
    queries = queries if can_cross(subject.candidate) else min(keys, 40)
    wanted = problem.geometry.replace(key_length=keys, query_length=queries, head_size=size)
    return problem.replace(geometry=settle(wanted, subject.candidate, FORMULA))


def _crowded(subject: Subject, problem: Problem) -> bool:
    """Whether it is the turn of many keys; layers would project them all for one or two queries."""
    half = problem.dtype == "bfloat16" and subject.candidate.kind == "core"
    return half and problem.seed % CROWDED == 1


def _few_of_a_crowd(inputs: Inputs) -> Inputs:
    """A few keys far apart where there is a mask for many; otherwise the same."""
    keys = inputs.geometry.key_length
    if inputs.keep is None or inputs.mask_form not in KEY_FORMS or keys < CROWD[0]:
        return inputs
    seen = torch.linspace(0, keys - 1, FEW).long()
    keep = torch.zeros_like(inputs.keep).index_fill(-1, seen, value=True)
    return inputs.replace(keep=keep)


def _other(subject: Subject, inputs: Inputs, seed: int) -> golden.Semantics:
    """A point that two pairs of channels, or one, can tell apart."""
    point = subject.declaration.semantics
    pairs = golden.rotary_size(inputs.geometry.head_size, point) // 2
    if pairs < len(("two", "pairs")):
        return point.replace(rotary="none")
    if seed % 2 == 0:
        return point.replace(rotary_base=point.rotary_base / 2.0)
    return point.replace(rotary="halves" if point.rotary == "interleaved" else "interleaved")


@clause(
    "position.rotary-shift",
    level="MUST",
    sentence="Only distances count: moving queries and keys together changes nothing.",
    source=f"{SOURCE}, equation 16",
    space=Space(
        mask="always",
        forms=KEY_FORMS,
        causal="maybe",
        values=LIVELY,
        least=(("key_length", 2), ("head_size", 2)),
        share=0.5,
    ),
    needs_golden=True,
    counterfactual="no rotation at all",
    applies=(is_rotary,),
    subtle=True,
)
def rotary_shift(subject: Subject, problem: Problem) -> Finding:
    """Hidden keys before all others; as many queries where those are counted from the first."""
    inputs = subject.inputs(problem.replace(past=0))
    count = 1 + problem.seed % MOST_BEFORE
    moved, first = _moved(subject, inputs, count, generator_for(problem, 21))
    if not admits_lengths(subject.candidate, moved.geometry):
        return Finding(binding=False)
    still = subject.declaration.semantics.replace(rotary="none")
    return same_answer(
        subject,
        moved,
        inputs,
        f"{count} hidden keys before all others change the answer, though no distance changes",
        view=lambda answer: answer[..., first:, :],
        counterfactual=lambda: subject.oracle.output(inputs, still),
    )


# How many positions everything is moved by.
MOST_BEFORE = 9


def _moved(
    subject: Subject, inputs: Inputs, count: int, generator: torch.Generator
) -> tuple[Inputs, int]:
    """Everything ``count`` positions later, and how many rows are new."""
    from_the_end = subject.declaration.semantics.causal_alignment == "bottom-right"
    both = not can_cross(subject.candidate) or not from_the_end

    def later(tokens: Tensor) -> Tensor:
        shape = (*tokens.shape[:-2], count, tokens.shape[-1])
        drawn = torch.randn(shape, generator=generator).to(tokens.dtype)
        return torch.cat([drawn, tokens], dim=-2)

    def padded(mask: Tensor | None, value: float) -> Tensor | None:
        if mask is None:
            return None
        rows = count if both and mask.shape[2] > 1 else 0
        return torch.nn.functional.pad(mask, (count, 0, rows, 0), value=value)

    query = later(inputs.query) if both and inputs.mode != "self" else inputs.query
    moved = inputs.with_tokens(query=query, key=later(inputs.key), value=later(inputs.value))
    keep = inputs.keep
    if keep is None:
        keep = torch.ones(1, 1, 1, inputs.geometry.key_length, dtype=torch.bool)
    return moved.replace(
        keep=padded(keep, 0.0), bias=padded(inputs.bias, 0.0)
    ), count if both else 0


def _is_partial(candidate: Candidate) -> str:
    whole = candidate.declaration.semantics.rotary_fraction >= 1.0
    return "all of its channels are turned" if whole else ""


@clause(
    "position.rotary-partial",
    level="MUST",
    sentence="Channels beyond the declared fraction are not turned.",
    source="GPT-J (rotary_dim), GPT-NeoX (rotary_pct)",
    space=Space(
        kinds=("core",),
        mask="maybe",
        forms=KEY_FORMS,
        values=LIVELY,
        least=(("key_length", 2), ("head_size", 2)),
        preferred=(("head_size", 8),),
        share=0.5,
    ),
    needs_golden=True,
    counterfactual="all channels turned",
    applies=(is_rotary, _is_partial),
    subtle=True,
)
def rotary_partial(subject: Subject, problem: Problem) -> Finding:
    """Queries that are zero wherever they turn do not notice in what order the keys come."""
    drawn = subject.inputs(problem.replace(causal=subject.declaration.always_causal, past=0))
    point = subject.declaration.semantics
    turning = torch.zeros(drawn.geometry.head_size, dtype=torch.bool)
    for channels in golden.rotary_pairs(drawn.geometry.head_size, point):
        turning[channels] = True
    inputs = drawn.with_tokens(query=drawn.query.masked_fill(turning, 0.0))
    everywhere = point.replace(rotary_fraction=1.0)
    if subject.declaration.always_causal or point.alibi or point.score_mod is not None:
        wording = "channels that stay are turned"
        return measures_golden(subject, inputs, wording, counterfactual=everywhere)
    order = permutation(inputs.geometry.key_length, generator_for(problem, 22))
    moved = inputs.with_tokens(
        key=inputs.key.index_select(-2, order), value=inputs.value.index_select(-2, order)
    ).replace(keep=take(inputs.keep, 3, order), bias=take(inputs.bias, 3, order))
    return same_answer(
        subject,
        inputs,
        moved,
        "queries without channels that turn notice the order of the keys",
        counterfactual=lambda: subject.oracle.output(moved, everywhere),
    )
