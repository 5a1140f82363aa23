from __future__ import annotations

from dataclasses import replace

import pytest
from records import loaded, result

from conformance.running.clause_run import Progress


@pytest.mark.parametrize("status", ["untestable", "failed"])
def test_a_failure_counts_when_the_time_is_up(status: str) -> None:
    """A clause that is cut short has failed where it has, and could not be tested elsewhere."""
    progress = Progress()
    if status == "failed":
        progress.receive("failure", replace(result("failed"), seconds=2.0).as_json())
    cut = progress.cut(loaded().planned[0], 3.0)
    assert cut.status == status
    assert cut.seconds == (5.0 if status == "failed" else 3.0)
