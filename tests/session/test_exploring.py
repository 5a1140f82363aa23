from __future__ import annotations

from records import result

from conformance.session.schedule import combined, worth_exploring


def test_only_clauses_that_may_change_run_again() -> None:
    """Failures and what does not apply are settled, what was cut off is none of a later round."""
    assert worth_exploring(result("passed", examples=4))
    assert worth_exploring(result("untestable", examples=4))
    assert not worth_exploring(result("untestable"))
    assert not worth_exploring(result("untestable", examples=4, planned=9))
    assert not worth_exploring(result("failed", examples=4))
    assert not worth_exploring(result("not-applicable"))


def test_another_round_adds_up() -> None:
    """Examples, binding ones and seconds are summed, of margins the largest is kept."""
    both = combined(
        result("passed", examples=40, binding=30, margin=0.25),
        result("passed", examples=20, binding=10, margin=0.5),
    )
    assert (both.status, both.examples, both.binding) == ("passed", 60, 40)
    assert (both.margin, both.seconds) == (0.5, 1.0)


def test_a_failure_of_any_round_counts() -> None:
    """What fails in a later round has failed, with all examples that ran until then."""
    both = combined(result("passed", examples=40), result("failed", examples=3))
    assert (both.status, both.examples) == ("failed", 43)
    assert both.violation is not None


def test_a_later_round_may_bind_first() -> None:
    """A clause that none of the first examples could show passes when a later one does."""
    both = combined(
        result("untestable", examples=40, reason="none of 40"),
        result("passed", examples=9, binding=2),
    )
    assert (both.status, both.reason, both.binding) == ("passed", "", 2)


def test_a_round_that_is_cut_off_takes_nothing_away() -> None:
    """The time being up in a later round changes no status."""
    cut = result("untestable", examples=2, planned=40, reason="not run to its end: …")
    both = combined(result("passed", examples=40, binding=30), cut)
    assert (both.status, both.examples, both.planned) == ("passed", 42, None)


def test_a_shard_keeps_what_it_explored_apart() -> None:
    """Rounds that no other shard has run are no part of the trail that is counted together."""
    trail = {"signs": "bb", "failed": False}
    first = result("passed", examples=2, binding=2, trail=trail)
    once = combined(first, result("passed", examples=5, binding=4, margin=0.1))
    twice = combined(once, result("failed", examples=1, margin=0.3))
    assert twice.trail == {
        **trail,
        "explored": {"examples": 6, "binding": 4, "margin": 0.3, "failed": True},
    }
