from __future__ import annotations

import re
from typing import Any

import pytest
import torch

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


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"only": 5}, "only is 5: give a text or a list of texts"),
        ({"dtypes": torch.float32}, "dtypes is torch.float32: give a text"),
        ({"unchecked": None}, "unchecked is None: give a text"),
        ({"dtypes": []}, "dtypes is empty: nothing would be checked"),
        ({"profile": ["quick"]}, "profile is ['quick']: give a text, such as 'quick'"),
        ({"seed": 1.5}, "seed is 1.5: give a whole number of at least 0"),
        ({"seed": True}, "seed is True: give a whole number of at least 0"),
        ({"seed": []}, "seed is []: give a whole number of at least 0"),
        ({"devices": ()}, "devices is empty: nothing would be checked"),
    ],
)
def test_options_of_the_wrong_type_are_refused(options: dict[str, Any], sentence: str) -> None:
    """An option that cannot be read is a usage error with its name, when it is given."""
    with pytest.raises(UsageError, match=f"^{re.escape(sentence)}"):
        conformance.parametrize("attn.py", **options)
