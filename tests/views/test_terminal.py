from __future__ import annotations

import io
from typing import Any

import pytest
from records import PROBLEM, READY, loaded, result

from conformance.base.results import ClauseResult, Violation
from conformance.running.workers.messages import RunOptions
from conformance.session.report import build_report, candidate_entry
from conformance.views.summary import WIDTH
from conformance.views.terminal import EVERYTHING, SUMMARY, show

OPTIONS = RunOptions(targets=("attn.py",), profile="quick")
FAILED = result(
    "failed",
    reason="off by 1",
    violation=Violation(kind="value", message="off by 1 at [0, 0]"),
    counterexample={"problem": PROBLEM},
    diagnosis=[
        {
            "name": "scale-missing",
            "text": "equals attention without a scale",
            "fix": "divide by the root of the head size",
            "confidence": 0.75,
        },
        {"name": "unknown-mistake", "text": "it has facts", "fix": "", "confidence": 0.0},
    ],
)


def shown(*candidates: list[ClauseResult], verbosity: int = EVERYTHING, **more: Any) -> str:
    """What is written for candidates with these results, by default in full."""
    names = ["mine", "yours", "theirs"]
    entries = [
        candidate_entry(loaded(name), results, READY.sentences)
        for name, results in zip(names, candidates, strict=False)
    ]
    file = io.StringIO()
    show(build_report(READY, OPTIONS, entries, seconds=1.5, **more), file, verbosity)
    return file.getvalue()


def test_a_failure_is_explained() -> None:
    """A failing clause comes with its requirement, what was found, on what, and the diagnosis."""
    text = shown([FAILED])
    assert "failed mask.golden [MUST, value]" in text
    assert "requires:  A masked key is absent." in text
    assert "found:     off by 1 at [0, 0]" in text
    assert (
        "on:        batch 1, heads 2, queries 3, keys 4, head size 5, value head size 6, values "
        "normal, mask padding as keep[B, 1, 1, K], causal, dtype float32, seed 7"
    ) in text
    assert "diagnosis: scale-missing: equals attention without a scale (confidence 0.75)" in text
    assert "or:        unknown-mistake: it has facts\n" in text
    assert "fix:       divide by the root of the head size" in text


def test_several_candidates_in_a_table() -> None:
    """Several candidates are compared in a table, then explained where that is needed."""
    expected = result("expected-failure", reason="fills with -1e6")
    text = shown([result(margin=0.5)], [FAILED], [expected, result("not-applicable")])
    lines = [line.split() for line in text[text.index("candidate  ") :].splitlines()]
    assert lines[0] == "candidate verdict passed failed expected n/a seconds worst margin".split()
    assert lines[1] == ["mine", "conforms", "1", "-", "-", "-", "0.5", "0.5"]
    assert lines[2] == ["yours", "fails", "-", "1", "-", "-", "0.5", "-"]
    assert lines[3][:2] == ["theirs", "conforms-with-deviations"]
    assert "attn.py:mine" not in text
    assert "expected failure: mask.golden (fills with -1e6)" in text
    assert "3 candidates: 1 conforms, 1 fails, 1 conforms-with-deviations" in text


def test_warnings_on_conforming_candidates_are_shown_once() -> None:
    """What several conforming candidates are warned of stands below their table."""
    names, warnings = ("mine", "yours"), ["a call changed what judges it"]
    entries = [candidate_entry(loaded(name), [result()], READY.sentences) for name in names]
    entries = [{**entry, "warnings": warnings} for entry in entries]
    file = io.StringIO()
    show(build_report(READY, OPTIONS, entries, seconds=1.5), file, SUMMARY)
    assert file.getvalue().count("a call changed") == 1
    assert "warning: mine, yours: a call changed what judges it\n" in file.getvalue()


def test_a_failed_should_among_several_is_one_line() -> None:
    """What does not decide the verdict does not crowd out what does."""
    should = FAILED.replace(level="SHOULD")
    assert "requires:" in shown([should])
    text = shown([should], [result()])
    assert "failed mask.golden [SHOULD, value]: off by 1 at [0, 0] (off by 1)" in text
    assert "requires:" not in text
    assert "SHOULD failed" in text


def test_a_note_on_the_run_is_broken_into_lines() -> None:
    """What isolation keeps apart is a long list, and a summary is a hundred columns wide."""
    isolated = ", ".join(["a process of its own"] * 9)
    more = {"isolated": isolated}
    lines = shown([result()], verbosity=SUMMARY, more=more).splitlines()
    assert any(line.startswith("isolated: a process") for line in lines)
    assert max(map(len, lines)) <= WIDTH


def test_a_pipe_gets_plain_text() -> None:
    """Without a terminal there is no colour, no line broken and no blank at a line's end."""
    message = "wrong " * 60
    text = shown([result("failed", violation=Violation(kind="value", message=message.strip()))])
    assert "\x1b" not in text
    assert message.strip() in text
    assert all(line == line.rstrip() for line in text.splitlines())


def test_columns_are_honoured(monkeypatch: pytest.MonkeyPatch) -> None:
    """A width that is asked for is kept."""
    monkeypatch.setenv("COLUMNS", "60")
    assert max(len(line) for line in shown([FAILED]).splitlines()) <= 60


SLUGS = ("equivariance.batch-independent", "mask.no-leak-nonfinite")


@pytest.mark.parametrize("width", [40, 80, 200])
@pytest.mark.parametrize("candidates", [1, 3])
@pytest.mark.parametrize("dtypes", [("float32",), ("float32", "float64")])
def test_slugs_stay_whole(
    monkeypatch: pytest.MonkeyPatch, width: int, candidates: int, dtypes: tuple[str, ...]
) -> None:
    """A slug is never cut or broken, so that it can be copied, and no line is too wide."""
    monkeypatch.setenv("COLUMNS", str(width))
    results = [
        result(slug=slug, margin=0.125, examples=40, dtype=dtype)
        for slug in SLUGS
        for dtype in dtypes
    ]
    should = FAILED.replace(level="SHOULD")
    lines = shown(*[[*results, should]] * candidates).splitlines()
    words = " ".join(lines).split()
    alone = candidates == 1
    # The slug with the worst margin, which a table of several candidates has no room for.
    worst = 1 if alone else candidates * ("candidate verdict" not in " ".join(words))
    assert words.count(SLUGS[0]) == worst + (len(dtypes) if alone else 0)
    assert words.count(SLUGS[1]) == (len(dtypes) if alone else 0)
    assert max(map(len, lines)) <= width
    assert "…" not in "".join(lines)


def test_narrow_rows_say_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """Below its slug, or its candidate, stands what the table has beside it."""
    monkeypatch.setenv("COLUMNS", "60")
    single = shown([result(margin=0.125, examples=40, binding=31)])
    assert "mask.golden\n  MUST passed, 40 examples, 31 binding, margin 0.12, 0.50 s\n" in single
    two = shown([result(margin=0.5)], [FAILED, result("not-applicable", "mask.bias")])
    assert "mine\n  conforms: 1 passed, 0.50 s, worst margin 0.5 mask.golden\n" in two
    assert "yours\n  fails: 1 failed, 1 n/a, 1.0 s\n" in two


def test_control_characters_are_escaped() -> None:
    """No text of a candidate's moves the cursor, changes colours or hides what follows."""
    evil = "\x1b[2J\x9b31m\x00\u202e"
    violation = Violation(kind="raised", message=f"raised {evil}")
    text = shown(
        [result("failed", reason=evil, violation=violation)], [result("untestable", reason=evil)]
    )
    assert text.count(r"\x1b[2J\x9b31m\x00\u202e") == 4
    assert text.replace("\n", "").isprintable()


def test_markup_in_messages_stays_text() -> None:
    """Square brackets of a message are no markup."""
    violation = Violation(kind="value", message="at [bold] and [/x]")
    assert "at [bold] and [/x]" in shown([result("failed", violation=violation)])


def test_blame_is_told_once() -> None:
    """Clauses that one step is to blame for refer to the first; what was found is not repeated."""
    blame = {"step": "graph", "text": "the export is to blame (off by 1)"}
    failures = [
        result("failed", slug=slug, blame=blame) for slug in ("mask.golden", "mask.no-leak")
    ]
    blames = [line.partition("blame:")[2].strip() for line in shown(failures).splitlines()]
    assert [text for text in blames if text] == ["the export is to blame", "as in mask.golden"]


@pytest.mark.parametrize(("kind", "first"), [("graph", True), ("core", False)])
def test_where_assumptions_stand(kind: str, first: bool) -> None:  # noqa: FBT001
    """What is read off a graph comes before its failures, other assumptions at the end."""
    candidate = loaded(kind=kind, declaration={"kind": kind, "assumptions": ["it is so"]})
    file = io.StringIO()
    entry = candidate_entry(candidate, [FAILED], READY.sentences)
    show(build_report(READY, OPTIONS, [entry]), file, EVERYTHING)
    text = file.getvalue()
    assert (text.index("assumed: it is so") < text.index("failed mask.golden [")) == first


def test_a_passing_candidate_takes_five_lines() -> None:
    """Verdict, what passed, what did not apply, and the run: no empty line comes first."""
    text = shown([result(), result("not-applicable", "mask.no-leak")], verbosity=SUMMARY)
    lines = text.splitlines()
    assert len(lines) == 5
    assert lines[0].startswith("mine (core, attn.py:mine): conforms")
