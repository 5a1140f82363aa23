from __future__ import annotations

import io
from typing import Any

import pytest
from records import result
from view_records import PICTURE, PICTURED, of

from conformance.base.results import ClauseResult
from conformance.views.explained_failure import show_failure

WHOLE = {
    "first": [0, 0],
    "sizes": [3, 2],
    "worst": [0, 1],
}


def shown(*results: ClauseResult, at: int = 0) -> str:
    """What is written of one of the results of a candidate."""
    (candidate,) = of(*results)["candidates"]
    file = io.StringIO()
    show_failure(candidate, candidate["clauses"][at], file, report="out.json")
    return file.getvalue()


def with_picture(**change: Any) -> ClauseResult:
    """A failure with a picture."""
    first = PICTURED[0]
    (entry,) = first.diagnosis
    return first.replace(diagnosis=[{**entry, "picture": {**PICTURE, **change}}])


def picture(**change: Any) -> list[str]:
    """The lines of a picture, from its title to the blank line behind it."""
    lines = shown(with_picture(**change)).splitlines()
    start = next(n for n, line in enumerate(lines) if line.startswith("  weights"))
    return lines[start : lines.index("", start)]


def test_three_tables_beside_each_other() -> None:
    """Hidden keys have a sign, with a weight or without; what is right is not written out."""
    assert picture(**WHOLE, logits=None) == [
        "  weights of head 1 of 2, where they differ most: query by key",
        "  expected weights          got weights           got - expected",
        r"  q\k        0         1    q\k      0       1    q\k         0          1",
        "    0    1.000          #     0  0.500   0.500#     0    -0.500     +0.500#",
        "    1    0.250     0.750      1  0.250   0.750      1         =          =",
        "    2  1.0e-05          #     2  0.000     nan#     2  -1.0e-05        nan#",
        "  # the key is hidden from the query   = as expected, to within rounding",
        "  query 4 gives the hidden key 8 the weight 0.5 instead of 0",
    ]


def test_logits_have_tables_of_their_own() -> None:
    """They follow the weights, and the legend says what they are."""
    lines = picture(**WHOLE)
    assert lines[6].split() == "expected logits got logits got - expected".split()
    assert lines[9].split() == "1 -1.000 0.000 1 -1.000 0.000 1 = =".split()
    assert "logits: the largest of each row is subtracted" in lines[-2]


def test_a_window_counts_from_where_it_begins() -> None:
    """Queries and keys have their own numbers, and the title says how many there are."""
    title, _, heads, first, *_ = picture()
    assert title.endswith("queries 4 to 6 of 7; keys 7 to 8 of 9")
    assert heads.split() == [r"q\k", "7", "8"] * 3
    assert first.split()[0] == "4"


@pytest.mark.parametrize("columns", ["60", "100", "200"])
def test_sixteen_keys_fit(monkeypatch: pytest.MonkeyPatch, columns: str) -> None:
    """The largest picture takes no more than 100 columns, and the worst weight is in it."""
    monkeypatch.setenv("COLUMNS", columns)
    cells = [[0.0625] * 16 for _ in range(16)]
    marks = [[True] * 16 for _ in range(16)]
    got = [[*row[:13], 0.12345, *row[14:]] for row in cells]
    lines = picture(
        first=[0, 0], sizes=[16, 16], worst=[3, 13], expected=cells, got=got, hidden=marks,
        wrong=marks, logits=None,
    )  # fmt: skip
    assert max(map(len, lines)) <= min(int(columns), 100)
    assert sum("0.123#" in line for line in lines) == 16
    assert sum("+0.061#" in line for line in lines) == 16
    assert any("those that fit here" in line for line in lines)


def test_what_is_wrong_comes_first_and_the_facts_last() -> None:
    """Mistake, fix and input, then the picture, then what was required and found."""
    text = shown(*PICTURED)
    said = (
        "mine mask.causal [MUST, float32, value]: failed",
        "diagnosis: causal-sees-next: the next key is seen",
        "fix:       shift it back",
        "on:        batch 1",
        "expected weights",
        "found:     off by 1",
        "replay:    conformance replay 'out.json#mine/mask.causal'",
    )
    places = [text.index(words) for words in said]
    assert places == sorted(places)


def test_the_picture_of_the_same_mistake_says_whose_it_is() -> None:
    """A failure whose picture stands at another one shows it, and names the other input."""
    text = shown(*PICTURED, at=1)
    assert "picture:   that of mask.causal, the same mistake, on batch 1" in text
    assert "got - expected" in text


def test_without_a_picture_there_is_none() -> None:
    """A failure without a diagnosis says that it has none, and that nothing was read."""
    text = shown(result("failed"))
    assert "diagnosis: none" in text
    assert "no picture: " in text
    assert "replay" not in text


def test_colours_are_for_those_who_want_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """A log is plain; FORCE_COLOR shades the cells; NO_COLOR means no control sequence at all."""
    assert "\x1b" not in shown(*PICTURED)
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    assert "\x1b[30;48;5;" in shown(*PICTURED)
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b" not in shown(*PICTURED)
