from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import _pytest.outcomes
import pytest
from records import result

from conformance.base.results import ClauseResult
from conformance.testing.cases import _conclude


def case(*, announced: bool = False) -> Any:
    """What a test concludes from."""
    return SimpleNamespace(announced=announced, explained=lambda: "explained")


SHOULD = result("failed", level="SHOULD")


def test_a_failed_should_is_tolerated() -> None:
    """A SHOULD that nobody announced is an xfail."""
    with pytest.raises(_pytest.outcomes.XFailed):
        _conclude(case(), SHOULD)


@pytest.mark.parametrize("clause_result", [SHOULD, result("failed"), result("unexpected-pass")])
def test_what_was_announced_otherwise_fails(clause_result: ClauseResult) -> None:
    """A failure that was announced as another one, or until an earlier day, fails at any level."""
    with pytest.raises(_pytest.outcomes.Failed, match="explained"):
        _conclude(case(announced=True), clause_result)


def test_an_expected_failure_is_tolerated() -> None:
    """What fails as announced is an xfail."""
    with pytest.raises(_pytest.outcomes.XFailed, match="expected failure: known"):
        _conclude(case(), result("expected-failure", reason="known"))
