"""The candidates that span ranks conform: a check of all candidates leaves them out."""

from __future__ import annotations

import pytest

import candidates
from candidates import ranks
from conformance.__main__ import run

FILES = ("all_gather", "ring", "split_keys", "tensor_parallel", "ulysses")


def test_a_check_of_all_candidates_leaves_them_out() -> None:
    """They start processes of their own, and are checked by themselves."""
    assert "ranks" not in candidates.__conformance__
    assert set(ranks.__conformance__) == set(FILES)


@pytest.mark.nightly
@pytest.mark.parametrize("file", [*FILES, "torch_parallel"])
def test_every_clause_passes(file: str) -> None:
    """``conformance check`` of each, under the quick profile, with every clause that applies."""
    assert run(["check", f"candidates.ranks.{file}", "--profile", "quick"]) == 0


@pytest.mark.nightly
def test_what_torch_parallelises_answers_rightly() -> None:
    """A module under ``parallelize_module`` passes the clause of the golden answer."""
    target = "candidates.ranks.torch_parallel"
    assert run(["check", target, "--profile", "quick", "--only", "numerics.golden"]) == 0
