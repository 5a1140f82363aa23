"""position.rotary*: what they apply to, what they see, what they let pass."""

from __future__ import annotations

from examples import core, failing, run_clause

from candidates.broken._prepared import Prepared
from candidates.broken.rotary import AllChannelsTurned, BaseOffByOne, ValuesTurnedToo
from candidates.legitimate.rotary import by_rotating_halves
from conformance import Semantics

SLUGS = ["position.rotary", "position.rotary-shift", "position.rotary-partial"]


def test_without_rotary_positions_none_applies() -> None:
    """The reason is that none are declared in the semantics."""
    for slug in SLUGS:
        reason = run_clause(core(), slug).reason
        assert reason == "its semantics declares no rotary positions"


def test_whole_heads_have_no_part() -> None:
    """Where all channels turn, none is left that must not."""
    result = run_clause(by_rotating_halves, "position.rotary-partial")
    assert result.reason == "all of its channels are turned"


def test_a_base_that_is_off_by_one_is_detected() -> None:
    """Far positions show a ten-thousandth of the base."""
    assert failing(BaseOffByOne, "position.rotary")


def test_values_that_turn_depend_on_where_everything_stands() -> None:
    """The relative shift alone sees them, without any golden of the formula."""
    assert failing(ValuesTurnedToo, "position.rotary-shift")


def test_channels_that_must_stay_are_detected() -> None:
    """Queries without turning channels notice the order of the keys."""
    assert failing(AllChannelsTurned, "position.rotary-partial")


def test_heads_of_one_channel_have_nothing_to_turn() -> None:
    """A candidate pinned to such heads is not held to the formula."""
    point = Semantics(rotary="halves")
    pinned = {"features": [], "semantics": point, "geometry": {"head_size": 1}}
    small = core(Prepared(), masks=["keep"], **pinned)
    assert run_clause(small, "position.rotary").status == "not-applicable"
