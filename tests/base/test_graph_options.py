"""What is given beside a graph, and read again from a report."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import pytest

from conformance.base.graph_options import NOTHING, Beside, read_beside
from conformance.errors import UsageError


def test_what_a_report_holds_is_read_again() -> None:
    """A replay opens the graph with what the run was given."""
    given = Beside(source="module:build", declaration="model.toml")
    assert read_beside(asdict(given)) == given
    assert given.given() == ["--source", "--declaration"]


def test_nothing_given() -> None:
    """A report of no graph says nothing."""
    assert read_beside(None) == NOTHING
    assert NOTHING.given() == []


@pytest.mark.parametrize("given", [3, ["source"], {"sauce": "x"}, {"source": 3}])
def test_what_no_report_holds(given: Any) -> None:
    """An edited report is refused with one sentence."""
    with pytest.raises(UsageError, match="the report's 'beside'"):
        read_beside(given)
