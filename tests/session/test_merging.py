from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import pytest
from records import result

from conformance.base.profile import WHOLE, Shard
from conformance.base.results import ClauseResult, Violation
from conformance.clauses.registry import Finding
from conformance.running.clause_problems import ClauseProblems
from conformance.running.tally import Tally, Terms
from conformance.session.merging import Piece, _missing, merged_result, unjudged

WRONG = Violation(kind="value", message="off by 1")
FINDINGS = {
    "b": Finding(binding=True, margin=0.25),
    "B": Finding(binding=True, margin=0.75),
    ".": Finding(binding=False, margin=0.5),
    "-": Finding(binding=False),
    "r": Finding(binding=False, refused=True),
    "i": Finding(binding=False, inapplicable="no room"),
    "X": Finding(binding=True, violation=WRONG, margin=9.0),
    "x": Finding(binding=False, violation=WRONG),
}


def shard_result(main: str, further: str, shard: Shard, *, subtle: bool = False) -> ClauseResult:
    """A clause whose examples show what the letters say, run as the runner does."""
    pool = SimpleNamespace(
        problems=lambda *_place: list(main),
        in_turn=lambda *_place: iter(main),
        count=lambda *_place: len(main),
        further=lambda *_place: further,
    )
    clause = SimpleNamespace(
        id="mask.golden",
        space=None,
        of_any_answer=False,
        problem_for=lambda _subject, drawn: drawn,
    )
    subject = SimpleNamespace(dtype="float32", device="cpu", candidate=None)
    terms = Terms(counterfactual="no mask", subtle=subtle, excused=subtle)
    tally = Tally(terms=terms, shard=shard)
    questions: Any = ClauseProblems(clause, subject, pool=pool, tally=tally)  # type: ignore[arg-type]
    for letter in questions.problems_of_round(0):
        finding = FINDINGS[letter]
        tally.add(finding)
        if finding.violation is not None:
            tally.failed = True
            return counted("failed", tally, reason=WRONG.message, violation=WRONG)
    status, reason = tally.outcome()
    return counted(status, tally, reason=reason)


def counted(status: Any, tally: Tally, **more: Any) -> ClauseResult:
    """A result with what was counted."""
    return result(
        status,
        examples=tally.examples,
        binding=tally.binding,
        margin=tally.margin,
        trail=tally.trail(),
        **more,
    )


def together(main: str, further: str, count: int, *, subtle: bool = False) -> ClauseResult:
    """The same, run by so many shards."""
    shards = [Shard(index=index, count=count) for index in range(1, count + 1)]
    pieces = [
        Piece(shard=shard, result=shard_result(main, further, shard, subtle=subtle))
        for shard in shards
    ]
    return merged_result(pieces).replace(seconds=0.5)


@pytest.mark.parametrize(
    ("main", "further"),
    [
        ("bbbbbbbb", ""),
        ("........b", ""),
        ("........", "..b.b"),
        ("........", "....."),
        ("....", ""),
        ("", ""),
        ("b", ""),
        ("rrrrr", "bb"),
        ("rr.rr", "bb"),
        ("ii..", "bb"),
        ("bbXbbbb", ""),
        ("..x.BbX", ""),
        ("........", "..xb"),
    ],
)
def test_shards_count_as_one_machine_does(main: str, further: str) -> None:
    """Status, reason, examples, binding ones and margin are those of a run on one machine."""
    for subtle in (False, True):
        whole = shard_result(main, further, WHOLE, subtle=subtle)
        for count in (2, 3, 4, 9):
            assert together(main, further, count, subtle=subtle) == whole


def test_shards_count_as_one_machine_does_whatever_they_see() -> None:
    """So it is for what nobody thought of; further examples that fail are a case of their own."""
    drawn = random.Random(7)  # noqa: S311 (no secret)
    for _ in range(600):
        letters = drawn.choice(["bB.-", "b.riX", ".-", ".ri", "..........bx", "........X"])
        main = "".join(drawn.choices(letters, k=drawn.randrange(24)))
        further = "".join(drawn.choices(".b-", k=drawn.randrange(9)))
        count, subtle = drawn.randrange(2, 7), drawn.random() < 0.2
        expected = shard_result(main, further, WHOLE, subtle=subtle)
        assert together(main, further, count, subtle=subtle) == expected, (main, further, count)


def test_a_failure_that_one_machine_would_not_have_reached_counts() -> None:
    """The first shard's examples show nothing, so it asks further ones, and one of them fails."""
    for main, further in ((".b.b.b", "x"), ("........", "..b.x")):
        assert shard_result(main, further, WHOLE).status == "passed"
        assert together(main, further, 2 if "b" in main else 4).status == "failed"


def test_the_first_failure_in_the_order_of_one_machine_is_reported() -> None:
    """Shard 2 fails at its first example, which one machine asks before shard 1's third one."""
    first = shard_result(".x...X", "", Shard(index=1, count=2)).replace(reason="later")
    pieces = [
        Piece(shard=Shard(index=1, count=2), result=first),
        Piece(
            shard=Shard(index=2, count=2),
            result=shard_result(".x...X", "", Shard(index=2, count=2)),
        ),
    ]
    merged = merged_result(pieces)
    assert (merged.status, merged.reason, merged.examples) == ("failed", "off by 1", 2)


def lost(shard: Shard, signs: str) -> Piece:
    """A shard whose candidate died in the example behind those."""
    tally = Tally(shard=shard, main=20, signs=signs)
    trail = {**(tally.trail() or {}), "failed": True, "lost": True}
    crashed = Violation(kind="crashed", message="died")
    crash = result("failed", examples=len(signs) + 1, violation=crashed, reason="died", trail=trail)
    return Piece(shard=shard, result=crash)


def test_a_crash_counts_what_was_begun() -> None:
    """As on one machine, of an example that never ended all that counts is that it was begun."""
    right = Piece(
        shard=Shard(index=1, count=2), result=shard_result("b" * 20, "", Shard(index=1, count=2))
    )
    merged = merged_result([right, lost(Shard(index=2, count=2), "bbb")])
    assert (merged.status, merged.examples, merged.binding) == ("failed", 8, 0)
    assert merged.margin is None


def test_a_shard_that_was_not_run_leaves_the_clause_open() -> None:
    """What a time limit cut off in one shard is said of the whole, with what the others counted."""
    first_shard, second_shard = (Shard(index=index, count=2) for index in (1, 2))
    reason = "not run: the limit of 60 s was reached"
    pieces = [
        Piece(shard=first_shard, result=shard_result("bbbb", "", first_shard)),
        Piece(shard=second_shard, result=result("untestable", reason=reason)),
    ]
    merged = merged_result(pieces)
    assert (merged.status, merged.examples) == ("untestable", 2)
    assert merged.reason == "not run: in shard 2/2: the limit of 60 s was reached"
    assert _missing([merged]).startswith("in some shards 1 clause was not run, or not to the end")


def test_a_failure_outweighs_what_was_not_run() -> None:
    """A clause that failed in one shard has failed."""
    first_shard, second_shard = (Shard(index=index, count=2) for index in (1, 2))
    cut = result("untestable", reason="not run: the limit of 60 s was reached")
    pieces = [
        Piece(shard=first_shard, result=cut),
        Piece(shard=second_shard, result=shard_result("bX", "", second_shard)),
    ]
    assert merged_result(pieces).status == "failed"


def test_an_error_of_the_harness_outweighs_everything() -> None:
    """And says in which shard it was."""
    first_shard, second_shard = (Shard(index=index, count=2) for index in (1, 2))
    broken = result("error", reason="the harness failed: KeyError")
    pieces = [
        Piece(shard=first_shard, result=shard_result("Xb", "", first_shard)),
        Piece(shard=second_shard, result=broken),
    ]
    merged = merged_result(pieces)
    assert (merged.status, merged.reason) == ("error", "the harness failed: KeyError (shard 2/2)")


def test_what_only_one_shard_explored_is_added() -> None:
    """Later rounds are no part of one machine's order; their examples add up, failures count."""
    first_shard, second_shard = (Shard(index=index, count=2) for index in (1, 2))
    more = {"examples": 50, "binding": 40, "margin": 0.9, "failed": False}
    first = shard_result("bbbb", "", first_shard)
    first = first.replace(trail={**(first.trail or {}), "explored": more})
    merged = merged_result(
        [
            Piece(shard=first_shard, result=first),
            Piece(shard=second_shard, result=shard_result("bbbb", "", second_shard)),
        ]
    )
    assert (merged.status, merged.examples, merged.binding) == ("passed", 54, 44)
    assert merged.margin == 0.9
    failed = first.replace(status="failed", violation=WRONG, reason="off by 1")
    merged = merged_result(
        [
            Piece(shard=first_shard, result=failed),
            Piece(shard=second_shard, result=shard_result("bbbb", "", second_shard)),
        ]
    )
    assert (merged.status, merged.reason) == ("failed", "off by 1")


def test_expectations_are_applied_again() -> None:
    """What a shard held against expected failures is a failure again before that."""
    expected = result("expected-failure", reason="known", violation=WRONG)
    assert unjudged(expected).status == "failed"
    assert unjudged(expected).reason == "off by 1"
    assert unjudged(result("passed")) == result("passed")
