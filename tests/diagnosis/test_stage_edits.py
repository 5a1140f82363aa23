"""Mistakes that no list holds: a stage of the program with an operator, maybe under a condition."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import groupby
from typing import Any

import pytest
import torch
from examples import core, layer, plan, problem
from torch import Tensor
from torch.nn import functional

import conformance
from candidates.eager import EagerCore, EagerLayer
from conformance.clauses.subject import Subject
from conformance.diagnosis.diagnostician import Diagnostician
from conformance.diagnosis.mistakes.named_mistake import answer_stage, read_every_key
from conformance.diagnosis.stage_edits import (
    _changed_stages,
    _made_singly,
    _made_together,
    stage_edits,
)
from conformance.oracle.oracle import core_of, evaluate


def wrong(
    scores: Callable[[Tensor], Tensor] = lambda scores: scores,
    cap: Callable[[Tensor, float], Tensor] = lambda scores, cap: cap * torch.tanh(scores / cap),
    total: Callable[[Tensor], Tensor] = lambda total: total,
    weights: Callable[[Tensor], Tensor] = lambda weights: weights,
) -> Any:
    """Attention with keep masks, one of whose stages is made otherwise."""

    @conformance.core(masks=["keep"], features=["softcap"], dtypes=["float32"])
    def attention(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *,
        keep: Tensor | None = None,
        softcap: float | None = None,
    ) -> Tensor:
        logits = scores(query @ key.mT / math.sqrt(query.shape[-1]))
        if softcap is not None:
            logits = cap(logits, softcap)
        if keep is not None:
            logits = logits.masked_fill(~keep, -math.inf)
        largest = logits.amax(-1, keepdim=True).clamp_min(torch.finfo(logits.dtype).min)
        exponentials = (logits - largest).exp()
        sums = total(exponentials.sum(-1, keepdim=True))
        return weights(exponentials / torch.where(sums == 0.0, 1.0, sums)) @ value

    return attention


def of_other_heads(weights: Tensor) -> Tensor:
    """The weights of the other head of each pair, where there are pairs alone."""
    count = weights.shape[1]
    return weights[:, torch.arange(count) ^ 1] if count % 2 == 0 else weights


@pytest.mark.parametrize(
    ("candidate", "text"),
    [
        (wrong(scores=functional.silu), "the scores are put through SiLU"),
        (wrong(scores=functional.gelu), "the scores are put through GELU"),
        (
            wrong(cap=lambda scores, cap: scores * torch.tanh(scores / cap)),
            "the capped scores are made with the scores in place of the softcap",
        ),
        (
            wrong(total=torch.sqrt),
            "the sums of the exponentials are replaced by the root of their sizes, with their sign",
        ),
        (
            wrong(weights=of_other_heads),
            (
                "the weights are those of the other head of each pair "
                "(only where the number of heads is even)"
            ),
        ),
    ],
)
def test_a_stage_with_an_operator_is_named(candidate: conformance.Candidate, text: str) -> None:
    """Nobody listed the mistake: its stage, what is done to it, and where, are found."""
    entry, *others = Diagnostician(Subject(candidate, "float32")).explain()
    assert (entry["text"], others) == (text, [])
    assert entry["fix"].startswith(("take the ", "make the "))


def test_pairs_of_item_and_head_are_counted_as_kernels_count_their_blocks() -> None:
    """An odd number of heads of all items, taken two at a time, loses the last one."""

    class SlicesOfTwo(EagerCore):
        """Slices of two heads, counted over all items; the number of slices is rounded down."""

        def mix(self, weights: Tensor, value: Tensor) -> Tensor:
            """The weighted values of whole slices."""
            mixed = super().mix(weights, value)
            pairs = mixed.shape[0] * mixed.shape[1]
            kept = torch.arange(pairs) < pairs // 2 * 2
            return mixed * kept.view(*mixed.shape[:2], 1, 1)

    (entry,) = Diagnostician(Subject(core(SlicesOfTwo()), "float32")).explain()
    assert entry["text"] == "the weights are zero for item-head pairs past whole tiles of 2"


@pytest.mark.parametrize(
    ("candidate", "options"),
    [
        (core(EagerCore()), {"causal": True, "window": (1, 1)}),
        (core(EagerCore()), {"mask": plan("dense", "bias", finite_bias=True), "softcap": 1.5}),
        (layer(EagerLayer), {"mask": plan("dense", "keep")}),
    ],
    ids=["tables", "numbers", "layer"],
)
def test_edits_that_are_run_together_answer_as_each_alone(
    candidate: conformance.Candidate, options: dict[str, Any]
) -> None:
    """One more axis in front of batch items changes no answer, and every stage changes some."""
    inputs = Subject(candidate, "float32").inputs(problem(num_kv_heads=2, num_heads=4, **options))
    point = conformance.Semantics()
    own = {"inputs": inputs, "past": 0, "point": point}
    run = read_every_key(core_of(evaluate(inputs, point)).run).edited(**own)
    edits = [one for one in stage_edits(candidate.kind) if one.where(inputs)]
    compared = 0
    with torch.inference_mode():
        for stages, some in groupby(edits, key=_changed_stages):
            chosen = list(some)[::7]
            if not stages:
                continue
            alone = {id(each.edits[0]): each for each in _made_singly(run, chosen)}
            answers = torch.cat([each.answers for each in alone.values()])
            assert not bool((answers == run[answer_stage(run)]).all()), stages
            for made in _made_together(run, stages, chosen) or ():
                for edit, answer in zip(made.edits, made.answers, strict=True):
                    torch.testing.assert_close(answer, alone[id(edit)].answers[0], equal_nan=True)
                    compared += 1
    assert compared > len(edits) / 20


def test_every_stage_is_searched_once_with_each_operator() -> None:
    """Names tell edits apart; layers have stages besides those of cores."""
    cores, layers = ([edit.name for edit in stage_edits(kind)] for kind in ("core", "layer"))
    assert len(cores) == len(set(cores))
    assert set(cores) < set(layers)
