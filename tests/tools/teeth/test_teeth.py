"""The harness under test: every mistake of the catalogue is caught, and by the clause it breaks."""

from __future__ import annotations

import dataclasses
import re

import pytest
from _paths import CHECKOUT
from specific_mistakes import ANYTHING, ON_A_DEVICE, SPECIFIC

from candidates.broken import MISTAKES
from candidates.ranks.mistakes import MISTAKES as OF_RANKS
from conformance import Mistake
from conformance.base.profile import PROFILES, Profile
from conformance.base.results import ClauseResult
from conformance.calls.ranks import Spanning
from conformance.clauses.device import on_a_device
from conformance.clauses.registry import all_clauses
from conformance.diagnosis.mistakes import MISTAKES as NAMED
from conformance.identification.opening import resolve_one
from conformance.running.runner import CandidateRun
from conformance.tools.teeth.jobs import Bench, TeethOptions, candidate_of, entries

BY_NAME = {mistake.name: mistake for mistake in MISTAKES}
# Several ways to make one mistake share its name: the number tells them apart.
CATALOGUE = [
    pytest.param(mistake, id=f"{number}-{mistake.name}")
    for number, mistake in enumerate((*MISTAKES, *NAMED))
]


# Consequences show in a sample of each clause: .ci/nightly runs the whole matrix.
SAMPLE = dataclasses.replace(PROFILES["quick"], examples=12)


def results(
    mistake: Mistake, *only: str, skip: tuple[str, ...] = (), profile: Profile = PROFILES["quick"]
) -> list[ClauseResult]:
    """Run the named clauses (all without a name) on a mistake.

    Catching is what counts here; making a failure small and naming it is tested elsewhere.
    """
    candidate = candidate_of(mistake, "the tests")
    run = CandidateRun(candidate, profile=profile, only=only, skip=skip, explain=False)
    return [run.run(planned) for planned in run.planned()]


@pytest.mark.nightly  # `conformance teeth --first` of each CI run proves it, too
@pytest.mark.parametrize("mistake", CATALOGUE)
def test_mistake_fails_the_clause_it_breaks(mistake: Mistake) -> None:
    """Under the quick profile each mistake fails the clause that names it best."""
    clause_results = results(mistake, mistake.primary)
    assert [result.status for result in clause_results].count("failed") >= 1, clause_results
    assert not [result.reason for result in clause_results if result.status == "error"]


def test_every_clause_has_a_mistake_that_fails_it() -> None:
    """No clause is without teeth: each is the primary clause of a mistake.

    Those of ranks are in a table of their own; tests/clauses/test_ranks.py runs each.
    """
    primary = {mistake.primary for mistake in (*MISTAKES, *NAMED)} | {*OF_RANKS.values()}
    assert {clause.id for clause in all_clauses()} - ON_A_DEVICE == primary


def test_mistakes_that_span_ranks_are_called_on_their_ranks() -> None:
    """``conformance teeth`` runs them as ``check`` does, not in its own process."""
    (candidate,) = resolve_one("candidates.ranks.mistakes:StaleBuffer")
    bench = Bench(profile=PROFILES["quick"], seed=0)
    assert isinstance(bench.run_of(candidate).candidate.function, Spanning)


def test_only_clauses_about_other_devices_may_catch_nothing() -> None:
    """``conformance teeth`` excuses the clauses that ask nothing on a CPU, and no others."""
    excused = {clause.id for clause in all_clauses() if on_a_device in clause.requirements}
    assert excused == ON_A_DEVICE


@pytest.mark.one_in(12)  # `conformance teeth --first` of each CI run proves it, too
@pytest.mark.parametrize("slug", sorted(SPECIFIC))
def test_every_clause_catches_its_specific_mistake(slug: str) -> None:
    """Each clause fails the mistake that it is there for, and no harness error helps it."""
    statuses = {result.status for result in results(BY_NAME[SPECIFIC[slug][0]], slug)}
    assert "failed" in statuses
    assert "error" not in statuses


@pytest.mark.one_in(240)
@pytest.mark.parametrize("slug", sorted(SPECIFIC))
def test_specific_mistake_fails_only_what_it_should(slug: str) -> None:
    """A mistake that is specific to a clause fails nothing else but its direct consequences."""
    name, consequences = SPECIFIC[slug]
    clause_results = results(BY_NAME[name], skip=(slug,), profile=SAMPLE)
    caught_by = {
        result.id for result in clause_results if result.status not in ("passed", "not-applicable")
    }
    assert consequences == ANYTHING or caught_by <= consequences
    assert not [result.reason for result in clause_results if result.status == "error"]


def test_every_clause_is_told_apart() -> None:
    """The tables of specific mistakes cover the whole specification, that of ranks its family."""
    of_the_family = {primary for primary in OF_RANKS.values() if primary.startswith("ranks.")}
    clauses = {clause.id for clause in all_clauses()} - ON_A_DEVICE
    assert {*SPECIFIC} | of_the_family == clauses
    assert not {*SPECIFIC} & of_the_family


@pytest.mark.nightly  # whoever adds a mistake need not wait for a run of all of them
def test_the_published_matrix_is_of_this_catalogue() -> None:
    """Its list of mistakes is the catalogue's, in its order."""
    published = (CHECKOUT / "docs" / "teeth-matrix.md").read_text(encoding="utf-8")
    _, _, listed = published.partition("## Mistakes")
    rows = re.findall(r"^\| (\S+) \|", listed.partition("## Correct")[0], flags=re.MULTILINE)
    catalogue = entries(TeethOptions(targets=()), lambda _what, _name: None)
    hint = "run: conformance teeth --first --markdown docs/teeth-matrix.md"
    assert [entry.name for entry in catalogue if not entry.correct] == rows[2:], hint
