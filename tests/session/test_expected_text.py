from __future__ import annotations

import tomllib
from datetime import date
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from records import expected
from refusals import refused

from conformance.base.expected import ExpectedFailure
from conformance.errors import UsageError
from conformance.session.accepted_failures import Acceptance, NewExpectation
from conformance.session.renewing import ExpectationFile, entry_text, read_written, rewrite

PATH = Path("known.toml")
TEXT = """\
# Ours: ask the kernel team.

# Seen since March,
#   on every machine.
[[expected]]
clause   = "shape.output"   # aligned by hand
reason = "known"

[[expected]]
clause = "mask.golden"
reason = 'known'
# to be looked at again
expires = 2031-01-01
"""


def kept(text: str) -> Acceptance:
    """An acceptance that keeps all of a file."""
    return Acceptance(kept=tuple(entry for entry, _ in read_written(text, PATH).entries))


def test_what_stays_is_not_touched() -> None:
    """Kept entries are sorted, with their comments, their order of keys and their spacing."""
    text = rewrite([read_written(TEXT, PATH)], kept(TEXT), PATH)
    head, first, second = text.rstrip().split("\n\n")
    assert head == "# Ours: ask the kernel team."
    assert first == TEXT.split("\n\n")[2].strip()
    assert second == TEXT.split("\n\n")[1]
    assert text.endswith('aligned by hand\nreason = "known"\n')


def test_it_is_the_same_the_second_time() -> None:
    """Writing what was written changes no byte."""
    once = rewrite([read_written(TEXT, PATH)], kept(TEXT), PATH)
    assert rewrite([read_written(once, PATH)], kept(once), PATH) == once


def test_what_is_dropped_takes_its_comments_along() -> None:
    """Comments directly above an entry go with it, the head stays."""
    (_, second) = kept(TEXT).kept
    text = rewrite([read_written(TEXT, PATH)], Acceptance(kept=(second,)), PATH)
    assert "every machine" not in text
    assert text.startswith("# Ours")


def test_a_new_file_says_what_it_is() -> None:
    """Without a head of its own a file begins with a few lines for its reader, even when empty."""
    text = rewrite([], Acceptance(), PATH)
    assert text.startswith("# Failures that are known and accepted")
    assert tomllib.loads(text) == {}


def test_new_entries_have_comments_on_lines_of_their_own() -> None:
    """What a candidate said becomes comments that cannot end their line, and are not endless."""
    said = 'x\n[[expected]]\x1b[2J\r"' + "long " * 100
    text = rewrite(
        [], Acceptance(added=(NewExpectation(entry=expected(), comments=(said,)),)), PATH
    )
    assert len(tomllib.loads(text)["expected"]) == 1
    assert "\x1b" not in text
    assert max(map(len, text.splitlines())) <= 110


def test_files_are_joined() -> None:
    """The first file's head and texts come before the second's; what both say stands once."""
    other = '# Theirs.\n\n[[expected]]\nclause = "mask.golden"\nreason = "known"\n'
    both = [read_written(TEXT, PATH), read_written(other, PATH)]
    entries = tuple(dict.fromkeys(entry for file in both for entry, _ in file.entries))
    text = rewrite(both, Acceptance(kept=entries), PATH)
    assert "Theirs" not in text
    assert len(tomllib.loads(text)["expected"]) == 3


def test_a_list_becomes_tables() -> None:
    """Entries written as a list are written as tables, below the file's first comments."""
    text = '# Ours.\nexpected = [{clause = "mask.golden", reason = "known", kind = "value"}]\n'
    again = rewrite([read_written(text, PATH)], kept(text), PATH)
    assert again == (
        '# Ours.\n\n[[expected]]\nclause = "mask.golden"\nreason = "known"\nkind = "value"\n'
    )
    empty = "# Ours.\nexpected = []\n"
    added = Acceptance(added=(NewExpectation(entry=expected()),))
    assert "expected = [" not in rewrite([read_written(empty, PATH)], added, PATH)


def test_ends_of_lines_stay() -> None:
    """A file with the line ends of Windows keeps them."""
    text = TEXT.replace("\n", "\r\n")
    again = rewrite([read_written(text, PATH)], kept(text), PATH)
    assert again == rewrite([read_written(TEXT, PATH)], kept(TEXT), PATH).replace("\n", "\r\n")


@given(
    reason=st.text(min_size=1).filter(str.strip),
    candidate=st.text(min_size=1).filter(str.strip),
    day=st.none() | st.dates(),
)
def test_any_text_survives(reason: str, candidate: str, day: date | None) -> None:
    """Whatever a person or a candidate is called, the file says it, or is refused as a whole."""
    entry = ExpectedFailure(clause="mask.golden", reason=reason, candidate=candidate, expires=day)
    try:
        text = rewrite([], Acceptance(added=(NewExpectation(entry=entry),)), PATH)
    except UsageError:
        with pytest.raises(UnicodeEncodeError):
            f"{reason}{candidate}".encode()
        return
    assert [file for file, _ in read_written(text, PATH).entries] == [entry]


def test_what_cannot_be_written_is_refused() -> None:
    """Half a character is not TOML: the file is left as it is."""
    entry = ExpectedFailure(clause="mask.golden", reason="known", candidate="a\udc80")
    message = "known.toml is left as it is: a name or a reason in it cannot be written as TOML"
    with refused(message, UsageError):
        rewrite([], Acceptance(added=(NewExpectation(entry=entry),)), PATH)


def test_only_what_restricts_is_written() -> None:
    """An entry has the keys that say something."""
    assert entry_text(expected(device="cuda"), ["why"]) == (
        '# why\n[[expected]]\nclause = "mask.golden"\nreason = "known"\ndevice = "cuda"\n'
    )
    assert read_written("", PATH) == ExpectationFile()
