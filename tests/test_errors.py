from __future__ import annotations

from conformance.errors import DeclarationError, UsageError, did_you_mean


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
