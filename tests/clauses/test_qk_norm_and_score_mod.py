"""qk-norm.golden and score-mod.golden: what they apply to, what they see, what they let pass."""

from __future__ import annotations

import pytest
from examples import core, failing, run_clause

from candidates.broken.normalisation import (
    EpsilonForgotten,
    ModifiedBeforeTheScale,
    NormOfAllHeads,
    QueryAndKeyExchanged,
)
from candidates.legitimate.modified import checkered_scores, relatively_biased
from candidates.legitimate.normalised import by_cosines, by_root_mean_square, line_by_line
from conformance import Semantics


def test_without_either_none_applies() -> None:
    """The reason is that the semantics says nothing of it."""
    norm, mod = run_clause(core(), "qk-norm.golden"), run_clause(core(), "score-mod.golden")
    assert norm.reason == "its semantics normalises neither queries nor keys"
    assert mod.reason == "its semantics has no score_mod"


@pytest.mark.parametrize("candidate", [by_root_mean_square, by_cosines, line_by_line])
def test_correct_norms_pass(candidate: object) -> None:
    """Torch's functions and lines by hand."""
    result = run_clause(candidate, "qk-norm.golden")  # type: ignore[arg-type]  # a Candidate
    assert (result.status, result.reason) == ("passed", "")


@pytest.mark.parametrize("candidate", [relatively_biased, checkered_scores])
def test_correct_functions_pass(candidate: object) -> None:
    """The declared function itself, and the same written by hand."""
    result = run_clause(candidate, "score-mod.golden")  # type: ignore[arg-type]  # a Candidate
    assert (result.status, result.reason) == ("passed", "")


@pytest.mark.parametrize(
    ("candidate", "slug"),
    [
        (NormOfAllHeads, "qk-norm.golden"),
        (EpsilonForgotten, "qk-norm.golden"),
        (ModifiedBeforeTheScale, "score-mod.golden"),
        (QueryAndKeyExchanged, "score-mod.golden"),
    ],
)
def test_each_sees_its_own(candidate: object, slug: str) -> None:
    """The wrong channels, no epsilon, the wrong place, the wrong order."""
    assert failing(candidate, slug)  # type: ignore[arg-type]  # a Candidate


def test_a_function_that_does_nothing_is_not_untestable() -> None:
    """Where it cannot show, the clause does not apply, rather than spoil the verdict."""
    idle = core(masks=[], semantics=Semantics(score_mod=lambda score, *_: score))
    assert run_clause(idle, "score-mod.golden").status == "not-applicable"


@pytest.mark.parametrize("slug", ["numerics.large-logits", "mask.single-key"])
def test_logits_that_cannot_grow(slug: str) -> None:
    """Laws about huge logits do not apply where heads are normalised."""
    assert "normalised" in run_clause(by_root_mean_square, slug).reason
