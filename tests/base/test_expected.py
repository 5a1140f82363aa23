from __future__ import annotations

from datetime import UTC, date, datetime

import pytest
from refusals import refused

from conformance.base.expected import ExpectedFailure, Place, entry_lines, list_line, read_expected
from conformance.errors import DeclarationError


def test_dict_of_reasons() -> None:
    """A dict maps slugs to reasons, or to whole expectations."""
    whole = ExpectedFailure(clause="mask.*", reason="known", kind="raised")
    read = read_expected({"mask.golden": "upstream bug", "mask.*": whole})
    assert read == (ExpectedFailure(clause="mask.golden", reason="upstream bug"), whole)


def test_nothing_is_expected_by_default() -> None:
    """Without expectations none are read."""
    assert read_expected(None) == ()


@pytest.mark.parametrize("name", ["clause", "reason", "candidate", "dtype", "device"])
@pytest.mark.parametrize("value", ["", "  ", None, 3])
def test_empty_texts_are_refused(name: str, value: object) -> None:
    """An expectation without a clause or a reason excuses nothing."""
    message = f"an expected failure's {name} is {value!r}: give a text that is not empty"
    with refused(message, DeclarationError):
        ExpectedFailure(**{"clause": "mask.golden", "reason": "known", name: value})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "value", "hint"),
    [
        ("kind", "raise", "did you mean 'raised'?"),
        (
            "kind",
            "",
            "known: crashed, dtype, file, finite, hung, memory, mutated, not-called, not-raised, ",
        ),
        ("dtype", "bfloat", "did you mean 'bfloat16'?"),
        ("dtype", "int*", "known: bfloat16, float16, float32, float64"),
    ],
)
def test_unknown_words_are_refused(name: str, value: str, hint: str) -> None:
    """A kind that no violation has, or a dtype that none is judged in, could never be met."""
    with pytest.raises(DeclarationError) as caught:
        ExpectedFailure(**{"clause": "mask.golden", "reason": "known", name: value})
    assert f"an expected failure's {name} is {value!r}, which is unknown; {hint}" in str(
        caught.value
    )


@pytest.mark.parametrize(("kind", "covered"), [("value", True), ("raised", False), ("hung", False)])
def test_crashes_must_be_named(kind: str, covered: bool) -> None:  # noqa: FBT001 (a table)
    """An expectation without a kind does not excuse exceptions, crashes and hangs."""
    assert ExpectedFailure(clause="mask.golden", reason="known").covers(kind) is covered
    assert ExpectedFailure(clause="mask.golden", reason="known", kind=kind).covers(kind)


def test_globs_restrict() -> None:
    """Candidate, clause and dtype are globs, and all three must match."""
    entry = ExpectedFailure(clause="mask.*", reason="known", candidate="sd*", dtype="float16")
    assert entry.concerns("sdpa", "mask.golden", "float16")
    assert not entry.concerns("sdpa", "mask.golden", "float32")
    assert not entry.concerns("flash", "mask.golden", "float16")
    assert not entry.exact


@pytest.mark.parametrize("value", ["", " ", 3, ["mask-inverted"]])
def test_a_diagnosis_is_a_name(value: object) -> None:
    """A diagnosis that is no name could never match."""
    with pytest.raises(DeclarationError, match="an expected failure's diagnosis is"):
        ExpectedFailure(clause="mask.golden", reason="known", diagnosis=value)  # type: ignore[arg-type]


@pytest.mark.parametrize("value", [date(2030, 6, 15), "2030-06-15", " 2030-06-15 ", "20300615"])
def test_a_last_day_is_a_date_or_a_text(value: date | str) -> None:
    """A date of TOML or Python, or a text in ISO 8601, are the same last day."""
    entry = ExpectedFailure(clause="mask.golden", reason="known", expires=value)
    assert entry.expires == date(2030, 6, 15)
    assert entry.as_json()["expires"] == "2030-06-15"


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("soon", "'soon'"),
        ("2030-02-30", "'2030-02-30'"),
        (20300615, "20300615"),
        (True, "True"),
        (datetime(2030, 6, 15, 10, tzinfo=UTC), "2030-06-15T10:00:00+00:00"),
    ],
)
def test_what_is_no_day_is_refused(value: object, shown: str) -> None:
    """A word, an impossible day or a time of day is refused, with an example."""
    message = f"an expected failure's expires is {shown}: give a day such as 2027-01-31"
    with refused(message, DeclarationError):
        ExpectedFailure(clause="mask.golden", reason="known", expires=value)  # type: ignore[arg-type]


def test_a_place_is_no_part_of_an_expectation() -> None:
    """Where it is written makes two expectations no different, and has words."""
    place = Place(file="known.toml", line=7, keys={"kind": 9})
    placed = ExpectedFailure(clause="mask.golden", reason="known", place=place)
    assert placed == ExpectedFailure(clause="mask.golden", reason="known")
    assert (str(place), place.where("kind")) == ("line 7 of known.toml", "line 9 of known.toml")
    assert str(Place(file="the declaration of mine")) == "the declaration of mine"
    assert placed.as_json()["line"] == 7


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
