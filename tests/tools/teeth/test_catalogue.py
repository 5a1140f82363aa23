"""Mistakes and correct candidates are found wherever they come from, or refused in one sentence."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from workspaces import KERNEL, UNSCALED, write

import conformance
from conformance.errors import UsageError
from conformance.tools.teeth import jobs
from conformance.tools.teeth.jobs import CatalogueEntry, TeethOptions, entries, plan_teeth

MINE = """
import conformance

LISTED = [
    conformance.Mistake(name=f"mine-{rule}", sentence="Wrong.", primary="numerics.scale",
                        changes={"scale": rule})
    for rule in ("none", "sqrt-head-size")
]
ALONE = conformance.Mistake(name="alone", sentence="Wrong.", primary="mask.golden",
                            changes={"mask_operation": "ignore"})
"""


def catalogue(*targets: str, **more: Any) -> list[CatalogueEntry]:
    """The entries of targets."""
    options = TeethOptions(targets=targets, **more)
    return entries(options, lambda _what, _name: None)


def mistakes(*targets: str, **more: Any) -> list[str]:
    """The names of the mistakes among them."""
    return [entry.name for entry in catalogue(*targets, **more) if not entry.correct]


def test_a_module_gives_its_mistakes(workspace: Path) -> None:
    """A file with mistakes and lists of them; one of its objects; the same twice is numbered."""
    write(workspace, {"mine.py": MINE})
    assert mistakes("mine.py") == ["mine-none", "mine-sqrt-head-size", "alone"]
    assert mistakes("mine:ALONE") == ["alone"]
    assert mistakes("mine:ALONE", "mine:LISTED", "mine:ALONE")[-1] == "alone-2"


def test_a_named_mistake_of_the_table_is_an_entry(workspace: Path) -> None:
    """Its words become a sentence, and it has what a report needs."""
    del workspace
    (entry, *_) = catalogue("conformance.diagnosis.mistakes.layout:GROUPS")
    assert (entry.name, entry.primary) == ("groups-of-first-head", "numerics.golden")
    assert entry.sentence == "All query heads read the first key/value head."
    assert entry.fix


def test_broken_candidates_without_a_catalogue(workspace: Path) -> None:
    """Candidates that are said to be broken are taken as mistakes that any clause may catch."""
    write(workspace, {"attn.py": KERNEL + UNSCALED})
    (entry,) = [entry for entry in catalogue("attn.py:unscaled") if not entry.correct]
    assert (entry.name, entry.primary, entry.origin) == ("unscaled", "", "attn.py:unscaled")


@pytest.mark.nightly  # tox -e teeth judges them, too
def test_correct_candidates_are_added(workspace: Path) -> None:
    """``--correct`` adds to the standard acted out, which runs beside the whole catalogue."""
    write(workspace, {"attn.py": KERNEL, "mine.py": MINE})
    whole = [entry.name for entry in catalogue(correct=("attn.py",)) if entry.correct]
    assert whole[-1] == "my_kernel"
    assert "standard_core" in whole
    part = [entry.name for entry in catalogue("mine.py", correct=("attn.py",)) if entry.correct]
    assert part == ["my_kernel"]


def test_globs_choose_mistakes(workspace: Path) -> None:
    """``--only`` and ``--skip`` speak of names."""
    write(workspace, {"mine.py": MINE})
    assert mistakes("mine.py", mistakes=("mine-*",), not_mistakes=("*-none",)) == [
        "mine-sqrt-head-size"
    ]


def test_an_empty_folder_has_the_shipped_catalogue(workspace: Path) -> None:
    """Without a checkout the mistakes that ship are there, and the standard to hold against."""
    assert not list(workspace.iterdir())
    every = catalogue()
    assert {entry.origin for entry in every} == {"attention-conformance"}
    assert len([entry for entry in every if not entry.correct]) >= 40


@pytest.mark.parametrize(
    ("targets", "more", "why"),
    [
        (("gone.py",), {}, "there is no file or folder gone.py"),
        (("mine:LSITED",), {}, "mine has no attribute 'LSITED'; did you mean 'LISTED'?"),
        (("mine.py",), {"mistakes": ("mine-nane",)}, "did you mean 'mine-none'?"),
        (("mine.py",), {"not_mistakes": ("*",)}, "leave no mistake"),
    ],
    ids=str,
)
def test_what_cannot_be_used(
    workspace: Path, targets: tuple[str, ...], more: dict[str, Any], why: str
) -> None:
    """A target or a glob that names nothing is one sentence."""
    write(workspace, {"mine.py": MINE})
    with pytest.raises(UsageError) as refused:
        catalogue(*targets, **more)
    assert why in str(refused.value)


def test_a_mistake_is_checked_when_it_is_made() -> None:
    """A mistake needs a name, a sentence, a clause, and a way to make it."""
    good = {"name": "m", "sentence": "Wrong.", "primary": "mask.golden", "changes": {"scale": 1.0}}
    assert conformance.Mistake(**good).changes == {"scale": 1.0}  # type: ignore[arg-type]
    for change, why in (
        ({"name": " "}, "a Mistake's name is ' '"),
        ({"sentence": None}, "a Mistake's sentence is None"),
        ({"also": "mask.golden"}, "give a tuple of slugs"),
        ({"changes": {}}, "neither candidate= nor changes="),
        ({"link": "pytorch#1"}, "give an https address"),
    ):
        with pytest.raises(conformance.DeclarationError, match=why):
            conformance.Mistake(**{**good, **change})  # type: ignore[arg-type]


def test_a_further_worker_makes_no_candidate_before_it_is_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is told what the first worker has planned, unless the catalogue is another by now."""
    options = TeethOptions(targets=(), profile="quick", mistakes=("scale-missing", "causal-*own"))
    loaded = [plan.loaded() for plan in plan_teeth(options)]
    made: list[str] = []
    make = jobs.candidate_of

    def watched(mistake: conformance.Mistake, origin: str) -> Any:
        made.append(mistake.name)
        return make(mistake, origin)

    monkeypatch.setattr(jobs, "candidate_of", watched)
    plans = plan_teeth(options.knowing(loaded))
    assert [plan.loaded() for plan in plans] == loaded
    assert made == []
    assert plans[0].run.run(plans[0].planned[0]).status == "failed"
    assert made == [loaded[0].name]
    plan_teeth(options.knowing(loaded[1:]))
    assert len(made) == 1 + len(loaded)
