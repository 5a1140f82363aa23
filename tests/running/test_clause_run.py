from __future__ import annotations

from dataclasses import replace

import pytest
from records import loaded, result

from conformance.base.results import Violation
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


def test_an_exception_before_a_loss_is_told_with_it() -> None:
    """What raised and then killed its process crashed; the exception is in the message."""
    progress = Progress()
    raised = Violation(kind="raised", message="raised RuntimeError: no device")
    progress.receive("failure", replace(result("failed"), violation=raised).as_json())
    lost = progress.lost(loaded().planned[0], "crashed", "the candidate ended its process", 1.0)
    assert lost.violation is not None
    assert lost.violation.kind == "crashed"
    assert lost.reason == (
        "the candidate ended its process; before that it raised RuntimeError: no device"
    )
