from __future__ import annotations

from conformance.base.expected_file import entry_lines, list_line

TEXT = """\
# The head of the file.

# Why it leaks.
[[expected]]
clause = "mask.golden"
reason = '''
expires = 2020-01-01
[[expected]]
'''
expires = 2031-01-01
# a remark inside

[[ "expected" ]]   # another
"clause" = "shape.output"
reason = "x"
"""


def test_each_entry_has_its_lines() -> None:
    """An entry begins with the comments directly above its header, and its keys have lines."""
    first, second = entry_lines(TEXT)
    assert (first.first, first.header, first.end) == (3, 4, 13)
    assert first.keys == {"clause": 5, "reason": 6, "expires": 10}
    assert (second.first, second.header) == (13, 13)
    assert second.keys == {"clause": 14, "reason": 15}


def test_what_stands_in_a_text_is_no_line_of_the_file() -> None:
    """A header or a key inside a text of several lines is part of that text."""
    assert len(entry_lines(TEXT)) == 2
    assert entry_lines('a = """\n[[expected]]\n"""\n') == []


def test_lines_end_as_toml_says() -> None:
    """A separator that is no newline in TOML does not count as one."""
    text = '# odd:\u2028\r\n[[expected]]\r\nclause = "a"\r\n'
    (entry,) = entry_lines(text)
    assert (entry.header, entry.keys) == (2, {"clause": 3})


def test_a_list_has_one_line() -> None:
    """Entries that are written as a list have the line of its key."""
    assert list_line('# x\nexpected = [\n  {clause = "a"},\n]\n') == 2
    assert list_line("") is None
