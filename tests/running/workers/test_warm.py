from __future__ import annotations

from typing import Any

from conformance.clauses.subject import Subject
from conformance.declare.decorators import core
from conformance.diagnosis.mistaken_answer import CommonAnswers, like_nobody
from conformance.running.workers.warm import COMMONEST, prepare

PROMISES: dict[str, Any] = {"masks": ["keep"], "empty_rows": "any"}


def test_what_follows_from_promises_is_there_before_a_candidate() -> None:
    """The mistakes are named, and answers of others are kept for a candidate of equal promises."""
    assert prepare(PROMISES) == list(COMMONEST)
    common = CommonAnswers.of(Subject(core(**PROMISES)(like_nobody), "float32"))
    assert common.acted
    assert common.lists["drawn"]


def test_other_promises_share_nothing() -> None:
    """Answers of one declaration are not those of another."""
    prepare(PROMISES)
    assert not CommonAnswers.of(Subject(core(masks=["bias"])(like_nobody), "float32")).acted
