"""Hand-written implementations: right names, no wrong ones, and facts where there is no name."""

from __future__ import annotations

import pytest
from handwritten_mistakes.cores import CORES
from handwritten_mistakes.handwritten import Handwritten
from handwritten_mistakes.mended import MENDED
from handwritten_mistakes.outside import OUTSIDE

UNKNOWN = ["unknown-mistake"]


KNOWN: dict[str, list[frozenset[str]]] = {}


def found(handwritten: Handwritten) -> list[frozenset[str]]:
    """The names of a diagnosis, each as the set of mistakes it joins; remembered."""
    if handwritten.name not in KNOWN:
        KNOWN[handwritten.name] = [frozenset(name.split("+")) for name in handwritten.found()]
    return KNOWN[handwritten.name]


def is_right(handwritten: Handwritten) -> bool:
    """Whether the first name is right, or one of several equivalent ones."""
    right = {frozenset(name.split("+")) for name in handwritten.right}
    return any(names in right for names in found(handwritten))


def is_stated(handwritten: Handwritten) -> bool:
    """Whether what was read is stated, without a name of the catalogue."""
    return all(": " in "+".join(names) for names in found(handwritten))


def is_silent(handwritten: Handwritten) -> bool:
    """Whether no name of the catalogue is given; a statement of what was read may be."""
    return found(handwritten) == [frozenset(UNKNOWN)] or is_stated(handwritten)


def each(collection: list[Handwritten]) -> pytest.MarkDecorator:
    """A test for every one of some implementations."""
    return pytest.mark.parametrize("handwritten", collection, ids=lambda one: one.name)


@pytest.mark.one_in(10)
@each(CORES)
def test_single_mistake_is_named(handwritten: Handwritten) -> None:
    """What is wrong with a hand-written implementation is named, alone or among equivalents."""
    assert is_right(handwritten), found(handwritten)


@pytest.mark.one_in(6)
@each(MENDED)
def test_what_was_told_wrongly_is_told_rightly(handwritten: Handwritten) -> None:
    """No invented second mistake, and no other name: the first one is right, and all are."""
    assert is_right(handwritten), found(handwritten)
    assert len(found(handwritten)) <= len(handwritten.right), found(handwritten)


@pytest.mark.one_in(15)
@each(OUTSIDE)
def test_mistake_without_a_name_gets_none(handwritten: Handwritten) -> None:
    """What no named mistake explains gets no name: it is stated as it was read, or unknown."""
    assert is_silent(handwritten), found(handwritten)


def test_there_are_enough_of_them() -> None:
    """The collections are as large as is claimed, and nothing is listed twice."""
    assert len(CORES) >= 45
    assert len(OUTSIDE) >= 12
    for collection in (CORES, OUTSIDE):
        names = [one.name for one in collection]
        assert len(names) == len(set(names))
