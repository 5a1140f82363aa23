"""What day it is, for expectations that expire."""

from __future__ import annotations

import os
from datetime import UTC, date, datetime
from typing import Final

from ..errors import UsageError

VARIABLE: Final = "CONFORMANCE_TODAY"


def today() -> date:
    """Today's date in UTC, the same on every machine of a gate.

    The environment variable ``CONFORMANCE_TODAY`` sets another: tests use it, and whoever wants to
    know what will be red next month. Raises UsageError when it is no day.
    """
    given = os.environ.get(VARIABLE, "").strip()
    if not given:
        return datetime.now(tz=UTC).date()
    try:
        return date.fromisoformat(given)
    except ValueError:
        msg = f"{VARIABLE} is {given!r}: give a day such as 2027-01-31, or unset it"
        raise UsageError(msg) from None
