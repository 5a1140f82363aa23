"""docs/mechanisms.md has the reported mistakes of the catalogue as its rows, each with its link."""

from __future__ import annotations

from _paths import CHECKOUT

from benchmarks import mechanisms

PAGE = (CHECKOUT / "docs" / "mechanisms.md").read_text(encoding="utf-8")


def test_page_is_that_of_the_catalogue() -> None:
    """Rows, sentences, links, the first time and totals are those of the catalogue and its data."""
    told = "run: python benchmarks/mechanisms.py"
    assert mechanisms.render(mechanisms.written(PAGE)) == PAGE, told


def test_every_mechanism_was_tried_the_first_time() -> None:
    """What was found the first time is there for each reported mistake, and for no other."""
    assert set(mechanisms.first_time()) == {one.name for one in mechanisms.reported()}


def test_what_catches_a_mechanism_is_measured() -> None:
    """A cap that one path loses is caught, and called by its name."""
    failed, named = mechanisms.measured("SequencesLoseTheCap")
    assert named == ("softcap-ignored",)
    assert failed
