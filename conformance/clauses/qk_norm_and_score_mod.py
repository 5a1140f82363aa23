"""qk-norm.golden, score-mod.golden: queries and keys normalised, scores changed by a function."""

from __future__ import annotations

import math

from ..problems.inputs import Inputs
from ..problems.problem import Problem
from ..problems.recipes import LIVELY
from ..problems.space import EVERY_OPTION
from ..tolerance import model
from .judging import measures_golden
from .registry import Finding, clause, requires
from .subject import Subject

PREPARED = EVERY_OPTION.replace(
    values=(*LIVELY, "mixed-scales"),
    least=(("key_length", 2),),
    preferred=(("head_size", 3),),
    share=0.5,
)
# Of this many problems one has tokens small enough to show epsilon, and one has large tokens.
EVERY = 3
LARGE_TOKENS = 16.0


_is_normalised = requires(
    lambda c: c.declaration.semantics.qk_norm != "none",
    "its semantics normalises neither queries nor keys",
)


@clause(
    "qk-norm.golden",
    sentence=(
        "Queries and keys are normalised as declared, each head by itself or all heads of a token "
        "together, behind the projections and before positions turn them."
    ),
    source="Henry et al. 2020 (QKNorm); Dehghani et al. 2023 (ViT-22B); Qwen Team 2025 (Qwen3)",
    space=PREPARED,
    needs_golden=True,
    counterfactual="heads as they are, or normalised over the other channels; for small ones, ten "
    "times the epsilon",
    applies=(_is_normalised,),
    subtle=True,
)
def normalised(subject: Subject, problem: Problem) -> Finding:
    """Tokens of ordinary size, large tokens, and tokens small enough for epsilon to show."""
    inputs, point = subject.inputs(problem), subject.declaration.semantics
    other = point.replace(qk_norm="none")
    turn = problem.seed % EVERY
    if turn == 0 and point.qk_norm != "l2" and inputs.geometry.num_heads > 1:
        together = point.qk_norm_over == "all-heads"
        other = point.replace(qk_norm_over="head" if together else "all-heads")
    if turn == 1:
        inputs = _times(inputs, LARGE_TOKENS)
    elif turn == 2:  # noqa: PLR2004 (the third of three)
        small = point.qk_norm_epsilon if point.qk_norm == "l2" else math.sqrt(point.qk_norm_epsilon)
        other = point.replace(qk_norm_epsilon=10.0 * point.qk_norm_epsilon)
        inputs = _times(inputs, small) if small > model.SMALLEST_NORMALISED else inputs
    wording = "queries and keys are not normalised as declared"
    return measures_golden(subject, inputs, wording, counterfactual=other)


def _times(inputs: Inputs, factor: float) -> Inputs:
    """Queries and keys of another size: a power of two keeps them exact."""
    exact = 2.0 ** round(math.log2(factor))
    if inputs.mode == "self":
        return inputs.with_tokens(key=inputs.key * exact)
    if inputs.mode == "memory":
        return inputs.with_tokens(query=inputs.query * exact)
    return inputs.with_tokens(query=inputs.query * exact, key=inputs.key * exact)


_is_modified = requires(
    lambda c: c.declaration.semantics.score_mod is not None, "its semantics has no score_mod"
)


@clause(
    "score-mod.golden",
    sentence=(
        "The declared function changes the scaled and capped scores, by the indices of item, head, "
        "query and key, before bias, mask and softmax."
    ),
    source="PyTorch 2.5, flex_attention: score_mod(score, batch, head, q_idx, kv_idx)",
    space=PREPARED,
    needs_golden=True,
    counterfactual="scores as they are",
    applies=(_is_modified,),
    subtle=True,
)
def modified(subject: Subject, problem: Problem) -> Finding:
    """The function in the golden against the candidate's own."""
    inputs, point = subject.inputs(problem), subject.declaration.semantics
    wording = "scores are not changed as declared"
    plain = point.replace(score_mod=None)
    return measures_golden(subject, inputs, wording, counterfactual=plain)
