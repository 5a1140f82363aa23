"""What the files of libraries say is read without importing anything, and checked."""

from __future__ import annotations

import dataclasses
import fnmatch
from pathlib import Path

import pytest
from _paths import CHECKOUT
from surveyed import clause, library_file

from conformance.clauses.registry import all_clauses
from survey import library
from survey.library import SurveyError


@pytest.mark.parametrize("name", library.names())
def test_every_file_is_right(name: str) -> None:
    """Each file that is shipped has pins, functions for its candidates, links and findings.

    Every glob of its promises and decisions fits a clause, and a candidate.
    """
    made = library.read(name)
    assert made.candidates
    findings = CHECKOUT / "docs" / "findings"
    for decision in made.decided:
        assert not decision.finding or (findings / f"{decision.finding}.md").is_file()
    slugs = [library.REACHED, *(clause.id for clause in all_clauses())]
    for entry in (*made.promises, *made.decided):
        assert [glob for glob in entry.clauses if not fnmatch.filter(slugs, glob)] == []
        # A row of a whole model is named by its candidate and what is judged of that.
        own = entry.candidates.partition("/")[0]
        assert fnmatch.filter(made.candidates, own), entry.candidates


def test_nothing_is_imported(tmp_path: Path) -> None:
    """A file whose import fails is read all the same."""
    path = library_file(tmp_path, "broken")
    path.write_text(path.read_text(encoding="utf-8") + "\nraise SystemExit\n", encoding="utf-8")
    made = library.read("broken", tmp_path)
    assert (made.distribution, dict(made.candidates)) == ("torch", {"layer": "identify"})


def test_the_digest_covers_helpers(tmp_path: Path) -> None:
    """A helper that a file imports tells it from older ones; a promise about its rows does not."""
    path = library_file(tmp_path, "one")
    text = path.read_text(encoding="utf-8") + "\nfrom helper import value\n"
    path.write_text(text, encoding="utf-8")
    helper = tmp_path / "helper.py"
    digests = []
    for said in ("", "one = 1\n", "one = 2\n"):
        helper.write_text(said, encoding="utf-8")
        digests.append(library.read("one", tmp_path).digest)
    assert len(set(digests)) == len(digests)
    path.write_text(text.replace("PROMISES = ()", f"PROMISES = ({LINKED},)"), encoding="utf-8")
    assert library.read("one", tmp_path).digest == digests[-1]


LINKED = {"sentence": "Masks hide.", "link": "https://example.org", "clauses": ["mask.*"]}


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        ({"requirements": ["torch"]}, "'torch' is not pinned"),
        ({"requirements": []}, "must not be empty"),
        ({"candidates": {"other": "identify"}}, "'other' is not defined"),
        ({"candidates": {"layer": "guess"}}, "run by 'guess': write one of identify, check"),
        ({"promises": ({**LINKED, "link": "their manual"},)}, "needs an https link"),
        ({"promises": ({"sentence": "Masks hide."},)}, "an entry of promises is wrong"),
        ({"promises": ({**LINKED, "declares": {"mask": "keep"}},)}, "declares 'mask': write one"),
        ({"decided": ({"clause": "*", "decided": "ours", "reason": "so"},)}, "list the slugs"),
        (
            {"decided": ({"clause": ["a.b", "*.*"], "decided": "ours", "reason": "so"},)},
            "list the slugs",
        ),
        (
            {"decided": ({"clause": "mask.*", "decided": "fine", "reason": "so"},)},
            "decided 'fine': write one of defect",
        ),
        (
            {"decided": ({"clause": "mask.*", "decided": "defect", "reason": "so"},)},
            "a defect has a finding",
        ),
    ],
)
def test_mistakes_are_one_sentence(tmp_path: Path, facts: dict[str, object], words: str) -> None:
    """Each thing that can be wrong in a file is said with the file and what to do."""
    path = library_file(tmp_path, "one", **facts)  # type: ignore[arg-type]
    with pytest.raises(SurveyError, match=words) as raised:
        library.read("one", tmp_path)
    assert str(path) in str(raised.value)


def test_an_unknown_name_lists_the_known(tmp_path: Path) -> None:
    """A library without a file is refused with the names of those that have one."""
    library_file(tmp_path, "one")
    with pytest.raises(SurveyError, match=r"no library 'tow' .* those are one"):
        library.read("tow", tmp_path)


def test_a_decision_covers_by_globs() -> None:
    """Candidate, clause and, where it is given, the kind must fit; no error of the harness does."""
    made = library.Decision(clause="mask.*", decided="ours", reason="so", candidates="model#*")
    assert made.covers("model#0", clause("mask.golden"))
    assert not made.covers("model", clause("mask.golden"))
    assert not made.covers("model#0", clause("numerics.golden"))
    raised = dataclasses.replace(made, kind="raised")
    assert raised.covers("model#0", clause("mask.golden", kind="raised"))
    assert not raised.covers("model#0", clause("mask.golden", kind="value"))
    assert not made.covers("model#0", clause("mask.golden", status="error"))
    several = dataclasses.replace(made, clause=["a.b", "mask.golden"])
    assert several.covers("model#0", clause("mask.golden"))
    assert not several.covers("model#0", clause("mask.padding"))
