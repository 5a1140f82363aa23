from __future__ import annotations

import pytest

from conformance.base.profile import profile_named
from conformance.errors import DeclarationError, NonconformanceError, UsageError, did_you_mean


def test_near_word_is_suggested() -> None:
    """A near miss gets the one word that is meant, not the whole list."""
    assert did_you_mean("keeep", ("keep", "drop")) == "; did you mean 'keep'?"


def test_strange_word_gets_the_list() -> None:
    """A word like no other gets the list of known words, sorted."""
    assert did_you_mean("zzz", ("keep", "drop", "bias")) == "; known: bias, drop, keep"


def test_declaration_errors_are_value_errors_and_usage_errors() -> None:
    """A wrong declaration can be caught as a ValueError, and the command line knows it."""
    assert issubclass(DeclarationError, ValueError)
    assert issubclass(DeclarationError, UsageError)


@pytest.mark.parametrize("kind", [UsageError, NonconformanceError])
def test_an_error_in_a_notebook(kind: type[UsageError | NonconformanceError]) -> None:
    """IPython shows the user's own lines and the sentence, no frame of the harness."""
    with pytest.raises(UsageError) as caught:
        profile_named("quik")
    error = caught.value if kind is UsageError else kind("it fails")
    lines = error._render_traceback_()
    assert lines[-1] == f"{kind.__name__}: {error}"
    own = [line for line in lines[:-1] if 'profile_named("quik")' in line]
    assert lines[:-1] == own
    assert len(own) == (kind is UsageError)
