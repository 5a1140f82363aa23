from __future__ import annotations

import math

import pytest
from records import result

from conformance.base.results import STATUSES
from conformance.views.html_words import (
    LABELS,
    WORST_FIRST,
    duration,
    kind,
    margin,
    short,
    verdict,
)


def test_every_status_has_a_class() -> None:
    """No status falls through, and a failure is told by its level."""
    kinds = {status: kind(result(status).as_json()) for status in STATUSES}
    assert set(kinds.values()) == set(WORST_FIRST) - {"should", "absent"}
    assert kind(result("failed", level="SHOULD").as_json()) == "should"
    assert set(LABELS) == set(WORST_FIRST) - {"absent"}


def test_an_unknown_verdict_looks_red() -> None:
    """A word of a later version is not taken for a success."""
    assert verdict("marvellous")[0] == "fail"
    assert verdict("conforms")[0] == "pass"


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (None, ""),
        (0.0, ""),
        (0.251, "0.25 s"),
        (4.12, "4.1 s"),
        (59.9, "1 min 0 s"),
        (725, "12 min 5 s"),
    ],
)
def test_durations(seconds: float | None, said: str) -> None:
    """Hundredths below a second, minutes above sixty; nothing where it is not known."""
    assert duration(seconds) == said


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (None, ""),
        (0.0, "0"),
        (0.1234, "0.12"),
        (1.3e6, "1.3e+06"),
        (math.inf, "∞"),
        (math.nan, "nan"),
    ],
)
def test_margins(value: float | None, said: str) -> None:
    """Two digits, and a sign for what has none."""
    assert margin(value) == said


def test_a_cut_text_says_how_much_is_missing() -> None:
    """The record has the rest."""
    assert short("abc", 3) == "abc"
    assert short("x" * 1500, 3) == "xxx… (1,497 more characters in the record)"
