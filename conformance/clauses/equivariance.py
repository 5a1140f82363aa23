"""equivariance.*: attention treats tokens as a set, and items and heads apart."""

from __future__ import annotations

import dataclasses

from torch import Tensor

from ..declare.candidate import Candidate
from ..problems.inputs import Inputs
from ..problems.materialise import generator_for
from ..problems.problem import Problem
from ..problems.recipes import LIVELY
from ..problems.space import KEY_FORMS, Space
from .judging import heads_stay, order_is_free, places_matter, same_answer
from .rearranging import (
    one_item,
    permutation,
    permute_heads,
    permuted_heads_view,
    reordered_items,
    reordered_keys,
    reordered_queries,
    take,
)
from .registry import Finding, clause, requires
from .subject import Subject

SOURCE = "Lee et al. 2019 (Set Transformer), property 1"


def _no_position(candidate: Candidate) -> str:
    position = candidate.declaration.position
    return f"it mixes in {position} positions, so order matters" if position else ""


_separate = requires(lambda c: c.declaration.inputs != "self", "query and key are the same tokens")


@clause(
    "equivariance.tokens",
    sentence="Reordering all tokens (queries with their keys and values) reorders the output rows.",
    source=SOURCE,
    # Lengths are left out where keys are permuted: they keep a prefix.
    space=Space(
        mask="maybe",
        forms=KEY_FORMS,
        values=LIVELY,
        square="always",
        least=(("key_length", 2),),
        share=0.5,
    ),
    counterfactual="rows that stay where they were",
    applies=(_no_position, order_is_free),
)
def tokens(subject: Subject, problem: Problem) -> Finding:
    """One permutation for queries, keys, values and both axes of the mask."""
    inputs = subject.inputs(problem)
    order = permutation(inputs.geometry.key_length, generator_for(problem, 5))
    moved = inputs.map_tokens(lambda tensor: tensor.index_select(-2, order)).replace(
        keep=take(take(inputs.keep, 3, order), 2, order),
        bias=take(take(inputs.bias, 3, order), 2, order),
        quantised=inputs.quantised and inputs.quantised.taken(keys=order),
    )
    return same_answer(
        subject,
        inputs,
        moved,
        "reordering the tokens does not just reorder the rows",
        view=lambda answer: answer.index_select(-2, order),
        counterfactual=inputs,
    )


@clause(
    "equivariance.queries",
    sentence="Reordering the queries reorders the output rows.",
    source=SOURCE,
    space=Space(mask="maybe", values=LIVELY, least=(("query_length", 2),), share=0.5),
    counterfactual="rows that stay where they were",
    applies=(_separate, _no_position, order_is_free),
)
def queries(subject: Subject, problem: Problem) -> Finding:
    """Queries and the rows of the mask permuted."""
    inputs = subject.inputs(problem)
    order = permutation(inputs.geometry.query_length, generator_for(problem, 6))
    moved = reordered_queries(inputs, order)
    return same_answer(
        subject,
        inputs,
        moved,
        "reordering the queries does not just reorder the rows",
        view=lambda answer: answer.index_select(-2, order),
        counterfactual=inputs,
    )


@clause(
    "equivariance.keys",
    sentence="Reordering the keys together with their values and masks changes nothing.",
    source=SOURCE,
    space=Space(
        mask="maybe", forms=KEY_FORMS, values=LIVELY, least=(("key_length", 2),), share=0.5
    ),
    counterfactual="the keys reordered without their values",
    applies=(_separate, _no_position, order_is_free),
)
def keys(subject: Subject, problem: Problem) -> Finding:
    """Keys, values and the columns of the mask permuted."""
    inputs = subject.inputs(problem)
    order = permutation(inputs.geometry.key_length, generator_for(problem, 7))
    moved = reordered_keys(inputs, order)
    apart = inputs.replace(key=moved.key, mode="separate")
    wording = "reordering the keys changes the answer"
    return same_answer(subject, inputs, moved, wording, counterfactual=apart)


@clause(
    "equivariance.batch",
    sentence="Reordering the batch items reorders the answers.",
    source="batch items are independent: Vaswani et al. 2017 define attention for one sequence",
    space=Space(mask="maybe", values=LIVELY, least=(("batch", 2),)),
    counterfactual="answers that stay where they were",
    applies=(places_matter,),
)
def batch(subject: Subject, problem: Problem) -> Finding:
    """Every tensor permuted along the batch."""
    inputs = subject.inputs(problem)
    order = permutation(inputs.geometry.batch, generator_for(problem, 8))
    moved = reordered_items(inputs, order)
    wording = "reordering the batch does not just reorder the answers"
    return same_answer(
        subject, inputs, moved, wording, view=lambda answer: answer[order], counterfactual=inputs
    )


@clause(
    "equivariance.heads",
    sentence=(
        "Exchanging heads exchanges a core's answers; with their weights it leaves a layer's "
        "answer."
    ),
    source="Vaswani et al. 2017, section 3.2.2: heads are independent, their outputs concatenated",
    space=Space(
        mask="maybe", values=LIVELY, least=(("num_heads", 2), ("num_kv_heads", 2)), share=0.5
    ),
    counterfactual="heads of a core that stay, query heads of a layer that stay",
    applies=(heads_stay,),
)
def heads(subject: Subject, problem: Problem) -> Finding:
    """Heads of the tensors, or of the weights, permuted."""
    inputs = subject.inputs(problem)
    moved, order = permute_heads(subject, inputs, generator_for(problem, 9))

    def stayed() -> Tensor:
        return subject.oracle.output(_query_heads_left(inputs, moved))

    return same_answer(
        subject,
        inputs,
        moved,
        "exchanging the heads changes more than their order",
        view=permuted_heads_view(inputs, order),
        counterfactual=stayed,
    )


def _query_heads_left(inputs: Inputs, moved: Inputs) -> Inputs:
    if not inputs.is_layer or inputs.weights is None or moved.weights is None:
        return moved.replace(query=inputs.query)
    back = dataclasses.replace(moved.weights, q=inputs.weights.q, q_bias=inputs.weights.q_bias)
    return moved.replace(weights=back)


@clause(
    "equivariance.batch-independent",
    sentence="The answer of one item does not depend on the other items of its batch.",
    source="by definition: attention is one sequence's (Vaswani et al. 2017); onnxruntime#6044",
    space=Space(mask="maybe", causal="maybe", values=LIVELY, least=(("batch", 2),), share=0.5),
    counterfactual="the answer of another item",
    applies=(places_matter,),
)
def batch_independent(subject: Subject, problem: Problem) -> Finding:
    """One item of the batch against the same item alone."""
    inputs = subject.inputs(problem)
    count = inputs.geometry.batch
    item = problem.seed % count
    alone, view = one_item(subject, inputs, item)
    return same_answer(
        subject,
        inputs,
        alone,
        f"item {item} answers differently alone and in its batch",
        view=view,
        counterfactual=lambda: view(subject.oracle.output(inputs).roll(1, dims=0)),
    )
