"""Junk in hidden keys of which a backward pass makes products that a dtype can hold."""

from __future__ import annotations

from torch import Tensor

from ..oracle.gradient_headroom import largest_weight_gradient
from ..oracle.oracle import evaluate
from ..problems.inputs import Inputs
from ..problems.problem import Problem
from ..tolerance import model
from ._vocabulary import finite_limit, wide_range
from .leaks import with_junk
from .subject import Subject

# Where nothing is known of the projections, junk in half precision stays this part of what it is.
UNMEASURED = 0.01


def with_junk_to_differentiate(
    subject: Subject, problem: Problem, inputs: Inputs, junk_keys: Tensor, upstream: Tensor
) -> Inputs:
    """The inputs with junk in some keys and values, ``junk_keys [B, Lk]``, hidden from queries.

    The gradient of a hidden weight is the product of output gradient and junk. In float16 it can
    be infinite, and infinity times a weight of zero is NaN: that is no leak. So it stays below a
    sixteenth of the largest number.
    """
    junked = with_junk(subject, problem, inputs, junk_keys)
    if not subject.candidate.golden_known:
        share = 1.0 if wide_range(subject) else UNMEASURED
    else:
        shown = junked.without_mask().replace(causal=False, window=None)  # the golden hides them
        evaluation = evaluate(shown, subject.declaration.semantics)
        largest = largest_weight_gradient(evaluation, junked, upstream)
        share = model.HEADROOM * finite_limit(subject) / max(largest, 1.0)
    return junked if share >= 1.0 else with_junk(subject, problem, inputs, junk_keys, share=share)
