"""What the counts of a clause's examples say of the clause."""

from __future__ import annotations

import pytest

from conformance.clauses.registry import Finding
from conformance.running.tally import Tally, Terms

INAPPLICABLE = "it has no such option"


@pytest.mark.parametrize(
    ("findings", "status", "reason"),
    [
        ([Finding(binding=False)], "untestable", "none of 1 examples could have shown it"),
        ([Finding()], "passed", ""),
        ([Finding(inapplicable=INAPPLICABLE)], "not-applicable", INAPPLICABLE),
        ([Finding(inapplicable=INAPPLICABLE), Finding()], "passed", ""),
        ([Finding(binding=False, refused=True)], "not-applicable", "it refuses rows without keys"),
        ([Finding(binding=False, refused=True), Finding()], "passed", ""),
        (
            [Finding(binding=False, refused=True), Finding(binding=False)],
            "untestable",
            "none of 2 examples",
        ),
    ],
)
def test_one_example_that_could_show_it_passes_the_clause(
    findings: list[Finding], status: str, reason: str
) -> None:
    """Examples that say nothing take the pass from none that does."""
    tally = Tally()
    for finding in findings:
        tally.add(finding)
    said, why = tally.outcome()
    assert said == status
    assert why.startswith(reason)
    assert bool(why) == bool(reason)


def test_only_subtle_clauses_are_decided_by_examples_that_show_nothing() -> None:
    """Other clauses ask on until an example binds."""
    plain, subtle = Tally(), Tally(terms=Terms(subtle=True))
    for tally in (plain, subtle):
        tally.add(Finding(binding=False))
    assert not plain.is_decided
    assert subtle.is_decided
