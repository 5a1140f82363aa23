from __future__ import annotations

from datetime import UTC, date, datetime

import pytest

from conformance.base.limits import VARIABLE, today
from conformance.errors import UsageError


def test_it_is_today_in_utc(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the variable, or with an empty one, it is the day in UTC."""
    monkeypatch.setenv(VARIABLE, " ")
    before = datetime.now(tz=UTC).date()
    assert before <= today() <= datetime.now(tz=UTC).date()


def test_another_day_may_be_given(monkeypatch: pytest.MonkeyPatch) -> None:
    """The variable sets the day, for tests and for a look ahead."""
    monkeypatch.setenv(VARIABLE, "2031-02-28")
    assert today() == date(2031, 2, 28)


@pytest.mark.parametrize("text", ["tomorrow", "2031-02-30", "2031-02-28T10:00:00"])
def test_what_is_no_day_is_refused(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    """A word or an impossible day is bad input, named with the variable."""
    monkeypatch.setenv(VARIABLE, text)
    with pytest.raises(UsageError, match=f"CONFORMANCE_TODAY is '{text}': give a day"):
        today()
