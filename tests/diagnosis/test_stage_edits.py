"""Mistakes that no list holds: a stage of the program with an operator, maybe under a condition."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

import conformance
from conformance.clauses.subject import Subject
from conformance.declare.promises import declare
from conformance.diagnosis.diagnostician import Diagnostician
from conformance.diagnosis.stage_edits import stage_edits


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


def test_every_stage_is_searched_once_with_each_operator() -> None:
    """Names tell edits apart; layers have stages besides those of cores."""
    cores, layers = (
        [edit.name for edit in stage_edits(declare(kind))] for kind in ("core", "layer")
    )
    assert len(cores) == len(set(cores))
    assert set(cores) < set(layers)
