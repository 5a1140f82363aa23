from __future__ import annotations

import re

import pytest
import torch
from specific_mistakes import ON_A_DEVICE

import conformance
from candidates import broken
from candidates.broken import MISTAKES, _graphs
from candidates.ranks.mistakes import MISTAKES as OF_RANKS
from conformance.clauses.registry import all_clauses
from conformance.targets.resolving import candidates_of

# Every clause must have been seen to fail.
CLAUSES = frozenset(clause.id for clause in all_clauses())
FEWEST = 45


def test_catalogue_is_large_and_its_names_are_unique() -> None:
    """There are many mistakes, sorted by name, and no name stands for two of them."""
    names = [mistake.name for mistake in MISTAKES]
    assert len(names) >= FEWEST
    assert names == sorted(set(names))


def test_no_two_mistakes_say_the_same() -> None:
    """Each sentence stands once: two mistakes that read alike are one."""
    sentences = [mistake.sentence for mistake in MISTAKES]
    assert len(set(sentences)) == len(sentences)


def test_each_mistake_is_described_in_one_sentence() -> None:
    """The docstring begins with one sentence that fits a line of a report."""
    sentence = re.compile(r"[A-Z](?:(?!\. ).){20,110}\.")
    assert [each.name for each in MISTAKES if not sentence.fullmatch(each.sentence)] == []


def test_each_mistake_names_clauses_that_exist() -> None:
    """The primary clause and the others are slugs of clauses, none named twice."""
    for mistake in MISTAKES:
        named = [mistake.primary, *mistake.also]
        assert set(named) <= CLAUSES, mistake.name
        assert len(set(named)) == len(named), mistake.name


def test_each_candidate_stands_under_its_name() -> None:
    """The candidate carries the mistake's name, and its file offers it under that name."""
    packages = (broken, broken.reported)
    homes = [getattr(home, file) for home in packages for file in home.__all__ if file.islower()]
    candidates = [each for each in MISTAKES if isinstance(each.candidate, conformance.Candidate)]
    assert len(candidates) >= FEWEST
    for mistake in candidates:
        assert mistake.candidate.name == mistake.name
        assert any(getattr(home, mistake.name, None) is mistake.candidate for home in homes)


# `conformance teeth --first` of each CI run writes every graph, too.
@pytest.mark.one_in(20)
@pytest.mark.parametrize(
    "mistake",
    [each for each in MISTAKES if not isinstance(each.candidate, conformance.Candidate)],
    ids=lambda mistake: str(mistake.name),
)
def test_each_function_makes_the_graph_of_its_name(mistake: conformance.Mistake) -> None:
    """A graph is a file that is written when it is needed: its mistake offers the function."""
    (made,) = candidates_of(mistake.candidate, "the tests")
    assert made[0].name == mistake.name
    assert made[0].graph is not None or made[0].kind == "model"


def test_every_clause_names_a_mistake() -> None:
    """Each clause is the primary clause of some mistake: it has been seen to fail.

    Mistakes that need several ranks start processes, and have a catalogue of their own.
    """
    primary = {mistake.primary for mistake in MISTAKES} | {*OF_RANKS.values()}
    assert set(CLAUSES) - ON_A_DEVICE <= primary


def test_catalogue_stays_out_of_a_check_of_all_candidates() -> None:
    """A check of the folder finds no broken candidate: the package lists none."""
    assert broken.__conformance__ == ()


def test_mistakes_are_seen_on_ordinary_inputs() -> None:
    """Many mistakes show in a plain call already: the kit's correct answer is another one."""
    correct = broken.CORRECT[0]
    generator = torch.Generator().manual_seed(7)
    query, key, value = (
        torch.randn(2, 3, length, size, generator=generator)
        for length, size in ((5, 4), (7, 4), (7, 6))
    )
    expected = correct(query, key, value)
    unscaled = broken.scaling.Unscaled(query, key, value)
    assert unscaled.shape == expected.shape
    assert not torch.equal(unscaled, expected)


def test_the_files_of_broken_graphs_can_be_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before the process ends: one that is killed as it does would leave them."""
    monkeypatch.setattr(_graphs, "KEPT", [])
    made = _graphs.folder.__wrapped__()
    (made / "model.onnx").write_bytes(b"")
    _graphs.remove_folders()
    assert not made.exists()
    assert _graphs.KEPT == []
