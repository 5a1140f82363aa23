"""sinks.*: what they apply to, what they see, what they let pass."""

from __future__ import annotations

import pytest
from examples import CLAUSES, core, failing, run_clause

from candidates.broken._prepared import Prepared
from candidates.broken.sinks import EmptyRowsDivideBySinks, SinkBesideTheMaximum, SinkIgnored

SLUGS = ["sinks.golden", "sinks.large", "sinks.empty-row"]


@pytest.mark.parametrize("slug", SLUGS)
def test_without_sinks_none_applies(slug: str) -> None:
    """The reason is that none are declared."""
    assert run_clause(core(), slug).reason == "no sinks are declared"


@pytest.mark.parametrize(
    ("candidate", "slug"),
    [
        (SinkIgnored, "sinks.golden"),
        (SinkBesideTheMaximum, "sinks.large"),
        (EmptyRowsDivideBySinks, "sinks.empty-row"),
    ],
)
def test_each_sees_its_own(candidate: object, slug: str) -> None:
    """A sink that is lost, that overflows, that has a value where nothing else has."""
    assert failing(candidate, slug)  # type: ignore[arg-type]  # a Candidate


@pytest.mark.parametrize("slug", ["sinks.empty-row", "mask.empty-row-options"])
def test_what_no_call_can_empty_is_not_judged(slug: str) -> None:
    """Where neither mask, alignment nor window can hide all keys, no row is without any."""
    promises = {"masks": [], "causal": "top-left", "empty_rows": "zeros"}
    reason = "neither a mask nor its causal alignment can empty a row"
    for features in (["sinks"], ["sinks", "window"]):
        windowed = "window" in features and slug != "sinks.empty-row"
        candidate = core(lambda *tokens, **_options: tokens[2], features=features, **promises)
        assert CLAUSES[slug].not_applicable(candidate) == ("" if windowed else reason)


@pytest.mark.parametrize("rule", ["any", "nan", "mean-of-all"])
def test_other_rules_for_empty_rows_are_left_alone(rule: str) -> None:
    """Whether another promise for empty rows holds with a sink is not defined."""
    promises = {"masks": ["keep"], "features": ["sinks"], "empty_rows": rule}
    assert run_clause(core(Prepared(), **promises), "sinks.empty-row").status == "not-applicable"
