"""Answers that torch's random numbers decide: dropout that is left on, before anything else."""

from __future__ import annotations

from typing import Any, Final

import torch
from torch import Tensor

from ..calls.calling import CandidateFailure
from ..calls.devices import forked_random, seed_random
from ..clauses.modules import COUNTED, equal_tokens, shares_of
from ..clauses.subject import Subject
from ..problems.edges import edge_problems
from ..problems.inputs import Inputs
from ..problems.problem import Problem
from ..tolerance import model

DROPOUT: Final = "dropout-left-on"
RANDOM: Final = "random-answers"
_FIX: Final = (
    "drop nothing unless a call asks for it: dropout_p=self.dropout if self.training else 0.0"
)
_SEEDS: Final = (1, 1, 2)


def random_entry(subject: Subject, problem: Problem) -> dict[str, Any] | None:
    """What makes a candidate answer at random, None where torch's seed decides nothing.

    It answers the failing problem, and one of equal keys and equal values: every row of that
    returns as many values as were kept, which distinguishes dropout from other random numbers.
    """
    if not subject.candidate.golden_known or subject.candidate.kind == "positions":
        return None
    problems = edge_problems(subject.candidate, COUNTED, dtype=subject.dtype, most=1)
    counted = [
        equal_tokens(subject.inputs(each.replace(device=subject.device))) for each in problems
    ]
    with subject.recorded(None):
        for inputs in (*counted, subject.inputs(problem)):
            answer = _decided_by_seed(subject, inputs)
            if answer is not None:
                dropped = _dropped(subject, inputs, answer) if inputs in counted else ""
                return _entry(dropped)
    return None


def _entry(dropped: str) -> dict[str, Any]:
    if dropped:
        text = f"dropout is left on: {dropped}, in a call that asks for none"
        return {"name": DROPOUT, "text": text, "fix": _FIX, "confidence": 1.0}
    text = "the answer is random: it differs with torch's seed, in calls that ask for no dropout"
    fix = "draw no random numbers outside training; is some dropout left on?"
    return {"name": RANDOM, "text": text, "fix": fix, "confidence": 1.0}


def _decided_by_seed(subject: Subject, inputs: Inputs) -> Tensor | None:
    """An answer where equal seeds give the same one and others do not; None elsewhere."""
    answers = []
    try:
        forward = subject.forward(inputs)
        with forked_random(subject.device):
            for seed in _SEEDS:
                seed_random(subject.device, seed)
                answers.append(subject.call(forward, inputs).output)
    except CandidateFailure:
        return None
    first, again, other = answers
    exact = subject.golden(inputs)
    judged = exact.judged.expand(exact.bound.shape)
    differs = ((first.double() - other.double()).abs() > exact.bound) & judged
    same = torch.equal(first.nan_to_num(), again.nan_to_num())
    return first.double() if same and bool(differs.any()) else None


def _dropped(subject: Subject, inputs: Inputs, answer: Tensor) -> str:
    """What was dropped of a problem of equal tokens, with which probability; "" if nothing was."""
    shares, slack = shares_of(subject, inputs, answer)
    if shares is None:
        return ""
    if not bool(shares.isfinite().all()):
        return ""
    if _differ(shares, slack):
        elements = "single elements of the answer are dropped"
        return elements if _all_or_nothing(shares, slack) else ""
    keys = inputs.geometry.key_length
    steps = shares.flatten().sort().values.diff()
    steps = steps[steps > 2.0 * float(slack.max())]
    if not steps.numel():
        return ""
    kept = 1.0 / (keys * float(steps.min()))
    counts = shares * keys * kept
    if bool(((counts - counts.round()).abs() > model.COUNTABLE).any()):
        return ""
    dropped, rescaled = 1.0 - kept, ""
    if dropped <= float(slack.max()):  # the rest does not make up for it
        dropped, rescaled = 1.0 - float(shares.mean()), " and not rescaled"
    return f"attention weights are dropped with a probability of {dropped:.2g}{rescaled}"


def _all_or_nothing(shares: Tensor, slack: Tensor) -> bool:
    """Whether some elements are zero and all others the same multiple of what they should be."""
    dropped = shares.abs() <= slack
    kept = shares[~dropped]
    if not kept.numel() or not bool(dropped.any()):
        return False
    return bool(((kept - kept.mean()).abs() <= 2.0 * float(slack.max())).all())


def _differ(shares: Tensor, slack: Tensor) -> bool:
    """Whether channels of one row, which only a core shows, were dropped independently."""
    if shares.dim() != len("BHLD"):
        return False
    return bool(((shares - shares[..., :1]).abs() > 2.0 * slack).any())
