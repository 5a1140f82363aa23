from __future__ import annotations

import dataclasses

import conformance
from conformance.base.expected import Place
from conformance.declare.candidate import Candidate
from conformance.targets.source_location import declared_expectations


def kernel(query: object, _key: object, _value: object) -> object:
    """What is declared here."""
    return query


def declared(place: Place | None = None) -> Candidate:
    """A candidate with an expected failure."""
    entry = conformance.ExpectedFailure(clause="mask.golden", reason="known", place=place)
    made: Candidate = conformance.core(expected_failures=[entry])(kernel)
    return made


def test_an_entry_is_placed_where_its_candidate_is_written() -> None:
    """The place is the line of the decorated function."""
    (entry,) = declared_expectations(declared())
    assert entry.place is not None
    line = kernel.__code__.co_firstlineno
    assert entry.place.line == line
    assert entry.place.file.endswith("test_declared_at.py")


def test_a_place_of_its_own_stays() -> None:
    """An entry from a file keeps the line there."""
    place = Place(file="model.conformance.toml", line=4)
    (entry,) = declared_expectations(declared(place))
    assert entry.place == place


def test_without_a_source_the_candidate_is_named() -> None:
    """A function that was made in a console has no line: the candidate's name stands for it."""
    scope: dict[str, object] = {}
    exec("def typed(query, key, value): return query", scope)  # noqa: S102 (a console)
    candidate = dataclasses.replace(declared(), function=scope["typed"], target="nowhere:typed")
    (entry,) = declared_expectations(candidate)
    assert str(entry.place) == "the declaration of kernel (nowhere:typed)"


def test_nothing_expected_looks_nothing_up() -> None:
    """A candidate without expected failures has none."""
    assert declared_expectations(conformance.core()(kernel)) == ()
