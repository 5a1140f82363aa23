"""The options of a graph, and reading them again from a report."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from conformance.base.profile import NO_GRAPH_OPTIONS, GraphOptions, read_graph_options
from conformance.errors import UsageError


def test_what_a_report_holds_is_read_again() -> None:
    """A replay opens the graph with the options of the run, but for its limits."""
    options = GraphOptions(source="module:build", declaration="model.toml")
    assert read_graph_options(replace(options, seconds=9.0).record_options()) == options
    assert options.names() == ["--source", "--declaration"]


def test_nothing_given() -> None:
    """A report of no graph says nothing."""
    assert read_graph_options(None) == NO_GRAPH_OPTIONS
    assert NO_GRAPH_OPTIONS.names() == []


@pytest.mark.parametrize("options", [3, ["source"], {"sauce": "x"}, {"source": 3}])
def test_what_no_report_holds(options: Any) -> None:
    """An edited report is refused with one sentence."""
    with pytest.raises(UsageError, match="the report's 'beside'"):
        read_graph_options(options)
