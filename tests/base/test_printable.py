from __future__ import annotations

import pytest

from conformance.base.printable_text import printable, printable_record


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[31mred\x1b[0m", r"\x1b[31mred\x1b[0m"),
        ("\x9b2J and \x7f", r"\x9b2J and \x7f"),
        ("a\x00b\rc", r"a\x00b\rc"),
        ("right \u202e left", r"right \u202e left"),
        ("caf\udce9.py", r"caf\udce9.py"),
        ("two\nlines\tand tabs", "two\nlines\tand tabs"),
        ("λ ≤ 1 — größer 🙂 \\x1b", "λ ≤ 1 — größer 🙂 \\x1b"),
    ],
)
def test_what_cannot_be_printed_is_escaped(text: str, shown: str) -> None:
    """Control characters become escapes; letters, newlines and backslashes stay; twice is once."""
    assert printable(text) == shown
    assert printable(shown) == shown


def test_texts_of_a_record_are_escaped() -> None:
    """Texts and keys are escaped at any depth, everything else stays."""
    data = {"a\x1b": ["\x07", {"b": ["\x1b"]}], "c": [1, 2.5, None, True]}
    assert printable_record(data) == {
        r"a\x1b": [r"\x07", {"b": [r"\x1b"]}],
        "c": [1, 2.5, None, True],
    }
