"""What may be returned in place of log-sum-exps, beside answers that are right."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, Final

from torch import Tensor

from ..._golden import golden
from ...clauses.subject import Subject
from ...problems.arrangements import canonical_log_sum_exp, log_sum_exp_shape
from ...problems.inputs import Inputs
from .returned_weights import LEFT_OUT, Beside, Content, Returned, changed_contents

# The clauses that judge returned log-sum-exps.
OF_LOG_SUM_EXPS: Final = ("lse.golden", "lse.merge")
_LAYOUTS: Final[tuple[tuple[str, Callable[[Tensor], Tensor]], ...]] = (
    (
        "the log-sum-exps in the memory of [B, Lq, H], taken for [B, H, Lq]",
        lambda a: a.mT.reshape(a.shape),
    ),
    (
        "the log-sum-exps in the memory of [B, H, Lq], taken for [B, Lq, H]",
        lambda a: a.reshape(a.mT.shape).mT,
    ),
)


def _base(subject: Subject) -> float:
    """The factor from natural logarithms to those of the declared base."""
    return math.log2(math.e) if subject.declaration.lse_base == "2" else 1.0


def _natural(returned: Returned) -> Tensor:
    return returned.exact / _base(returned.subject)


def _largest(returned: Returned) -> Tensor:
    return returned.logits.amax(dim=-1)


def _leave_out(given: dict[str, Any]) -> Callable[[Returned], Tensor]:
    def values(returned: Returned) -> Tensor:
        made = golden.evaluation_of(returned.run.edited(**given), returned.call.semantics)
        return _log_sum_exp_of(returned.subject, made)

    return values


def _changed(change: Callable[[Tensor], Tensor]) -> Callable[[Returned], Tensor]:
    return lambda returned: change(returned.exact)


def _log_sum_exp_of(subject: Subject, core: golden.Attention) -> Tensor:
    return core.log_sum_exp * _base(subject)


def _contents() -> Iterator[Content]:
    yield Content("logarithms to the base 2", lambda r: _natural(r) * math.log2(math.e))
    yield Content("natural logarithms", _natural)
    yield Content(
        "the logarithms of the sums of shifted exponentials, without the largest logit",
        lambda r: r.exact - _largest(r) * _base(r.subject),
    )
    yield Content("the largest logits alone", lambda r: _largest(r) * _base(r.subject))
    for words, given in {**LEFT_OUT, "the scale": {"given_scale": 1.0}}.items():
        yield Content(f"the log-sum-exps without {words}", _leave_out(given))
    for words, change in _LAYOUTS:
        yield Content(words, _changed(change))
    yield from changed_contents("log-sum-exps", "BHQ")


def _asked(subject: Subject, inputs: Inputs) -> Inputs:
    return inputs.replace(return_lse=subject.declaration.lse_shape or "")


def _as_read(inputs: Inputs, lse: Tensor) -> Tensor:
    """Log-sum-exps as ``[B, H, Lq]``; those of another shape as they are."""
    fits = tuple(lse.shape) == log_sum_exp_shape(inputs)
    return canonical_log_sum_exp(lse, inputs) if fits else lse


LOG_SUM_EXPS: Final = Beside(
    feature="lse",
    noun="log-sum-exps",
    fix="return the largest logit plus the logarithm of the sum of exponentials, for each query",
    asks=_asked,
    exact=lambda subject, inputs: subject.oracle.log_sum_exp(inputs),
    of=_log_sum_exp_of,
    contents=tuple(_contents()),
    contents_first=True,
    read=_as_read,
)
