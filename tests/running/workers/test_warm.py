from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from torch import Tensor

from conformance.base.profile import PROFILES
from conformance.base.results import ClauseResult
from conformance.clauses.subject import Subject
from conformance.declare.candidate import like_nobody
from conformance.declare.decorators import core
from conformance.diagnosis.mistaken_answer import CommonAnswers
from conformance.running.runner import PREPARED, CandidateRun
from conformance.running.workers.warm import COMMONEST, prepare

PROMISES: dict[str, Any] = {"masks": ["keep"], "empty_rows": "any"}


@pytest.fixture(autouse=True)
def nothing_prepared() -> Iterator[None]:
    """What a test prepares is gone afterwards."""
    yield
    PREPARED.clear()


def test_what_follows_from_promises_is_there_before_a_candidate() -> None:
    """The mistakes are named, and answers of others are kept for a candidate of equal promises."""
    assert prepare(PROMISES) == list(COMMONEST)
    common = CommonAnswers.shared(Subject(core(**PROMISES)(like_nobody), "float32"))
    assert common.acted
    assert common.lists["drawn"]


def test_other_promises_share_nothing() -> None:
    """Answers of one declaration are not those of another."""
    prepare(PROMISES)
    assert not CommonAnswers.shared(Subject(core(masks=["bias"])(like_nobody), "float32")).acted


def first_failure() -> tuple[ClauseResult, CandidateRun]:
    """What a clause says of a core that forgets the scale."""

    def unscaled(
        query: Tensor, key: Tensor, value: Tensor, *, keep: Tensor | None = None
    ) -> Tensor:
        scores = query @ key.mT
        kept = scores if keep is None else scores.masked_fill(~keep, float("-inf"))
        return kept.softmax(-1) @ value

    run = CandidateRun(core(**PROMISES)(unscaled), profile=PROFILES["quick"], explain=False)
    planned = next(one for one in run.planned() if one.id == "numerics.scale")
    return run.run(planned).replace(seconds=0.0), run


def test_a_run_says_the_same_with_what_was_prepared() -> None:
    """Problems and golden answers are taken over, and the result is the same to the bit."""
    alone, _ = first_failure()
    prepare(PROMISES)
    result, run = first_failure()
    assert run.subject("float32").oracle is PREPARED[0].subject("float32").oracle
    assert result == alone
    assert result.status == "failed"
