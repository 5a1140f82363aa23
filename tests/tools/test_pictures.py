"""The pictures of what binds: fresh, complete, readable, and true of their problems."""

from __future__ import annotations

from xml.etree import ElementTree as ET

import pytest
import torch
from _paths import CHECKOUT

from conformance.clauses.registry import all_clauses
from conformance.oracle.comparison import moves, watching_counterfactuals
from conformance.tools.pictures import KINDS, PICTURED, Panel, draw, evidence, picture
from conformance.tools.specification import main

FOLDER = CHECKOUT / "docs" / "pictures"


@pytest.mark.one_in(4)
@pytest.mark.parametrize("slug", sorted(PICTURED))
def test_picture_is_not_stale(slug: str) -> None:
    """The committed picture is what the clause's problems give today, to the letter."""
    hint = "run: python -m conformance.tools.specification --pictures docs/pictures"
    assert (FOLDER / f"{slug}.svg").read_text(encoding="utf-8") == picture(slug), hint


def test_every_picture_of_a_clause_is_one_of_the_list() -> None:
    """No picture is left of a clause that has none any more, and every slug is a clause's."""
    slugs = {clause.id for clause in all_clauses()}
    assert slugs >= PICTURED
    assert {path.stem for path in FOLDER.glob("*.svg")} & slugs == PICTURED


@pytest.mark.one_in(6)
@pytest.mark.parametrize("slug", sorted(PICTURED))
def test_picture_shows_a_binding_example(slug: str) -> None:
    """Something moves, only where it is judged, and the picture says how much in words."""
    example = evidence(slug)
    assert example.moved.any()
    assert not (example.moved & ~example.judged).any()
    root = ET.fromstring(picture(slug))  # noqa: S314 (our own)
    text = "".join(root.itertext())
    assert slug in text
    assert f"{int(example.moved.sum())} of {int(example.judged.sum())}" in text


def test_causality_is_what_the_picture_of_causality_shows() -> None:
    """As required later keys are unseen, in the counterfactual every key is seen."""
    example = evidence("mask.causal")
    length = example.required.shape[-1]
    assert torch.equal(example.required[0, 0], torch.ones(length, length).tril().bool())
    assert example.counterfactual is not None
    assert example.counterfactual.all()


def test_watching_is_off_outside() -> None:
    """Nothing is kept where nobody watches, and watching does not change the answer."""
    expected, bound = torch.zeros(1, 2), torch.ones(1, 2)
    with watching_counterfactuals() as kept:
        assert moves(expected, torch.tensor([[0.5, 2.0]]), bound)
    assert [each.moved.tolist() for each in kept] == [[[False, True]]]
    assert moves(expected, torch.tensor([[0.5, 2.0]]), bound)
    assert len(kept) == 1


def test_text_in_pictures_is_escaped() -> None:
    """A title with markup is text, and every kind of cell can be drawn and told."""
    panel = Panel(title="<b>&", rows="r", columns="c", cells=["".join(KINDS)])
    drawn = draw("<i>", '"&"', [panel], note="<u>")
    root = ET.fromstring(drawn)  # noqa: S314 (our own)
    assert {"<i>", '"&"', "<b>&", "<u>"} <= set(root.itertext())


@pytest.mark.parametrize("arguments", [["--picture", "x"], ["--pictures"], ["x", "y"]])
def test_wrong_options_are_one_sentence(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """Anything but the one option with its folder is bad input, told in a sentence."""
    assert main(arguments) == 2
    assert capsys.readouterr().err.count("\n") == 1
