from __future__ import annotations

from typing import Any

import pytest

import conformance
from conformance.errors import UsageError


def judged(clause: Any) -> None:
    """A test function of a user."""


def test_a_decorator_without_candidates_is_refused() -> None:
    """What would else be a test that never runs is refused at once, with what to write."""
    with pytest.raises(
        UsageError, match=r"judged is given no candidates: write @conformance\.para"
    ):
        conformance.parametrize(judged)


def test_an_empty_list_of_candidates_is_refused() -> None:
    """Nothing would be checked."""
    with pytest.raises(UsageError, match="the list of candidates is empty"):
        conformance.parametrize([])
