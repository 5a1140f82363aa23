from __future__ import annotations

import io
from typing import Any

from conformance.session.comparing import difference
from conformance.views.diff import render_diff_markdown, show_diff


def clause(slug: str, status: str, **more: Any) -> dict[str, Any]:
    """One clause of a record."""
    fails = status in ("failed", "expected-failure")
    common = {"level": "MUST", "dtype": "float32", "device": "cpu", "examples": 40}
    violation = {"kind": "value", "message": "off | by <1>\x1b[2J"} if fails else None
    return {"id": slug, "status": status, "violation": violation, **common, **more}


def record(verdict: str, *clauses: dict[str, Any], **more: Any) -> dict[str, Any]:
    """A record of one candidate."""
    candidate = {"name": "mine", "verdict": verdict, "clauses": list(clauses)}
    return {"schema": 1, "seed": 0, "candidates": [candidate], **more}


def test_the_cpu_is_named_nowhere() -> None:
    """Terminal and markdown say the condition of a clause in the same words."""
    old, new = (record("fails", clause("mask.golden", status)) for status in ("passed", "failed"))
    changes = difference(old, new)
    file = io.StringIO()
    show_diff(changes, file)
    assert "mine mask.golden [MUST float32]: " in file.getvalue()
    assert "| `mask.golden` | MUST float32 |" in render_diff_markdown(changes)


OLD = record(
    "conforms",
    clause("mask.golden", "passed"),
    clause("shape.output", "failed", diagnosis=[{"name": "a"}]),
    clause("numerics.golden", "passed", margin=0.1),
    clause("state.pure", "passed"),
    clause("state.eval", "passed"),
)
NEW = record(
    "fails",
    clause("mask.golden", "failed", diagnosis=[{"name": "mask-inverted"}]),
    clause("shape.output", "passed"),
    clause("numerics.golden", "passed", margin=0.5),
    environment={"torch": "9.9"},
)


def shown(changes: dict[str, Any]) -> str:
    """What is printed into a pipe."""
    file = io.StringIO()
    show_diff(changes, file)
    return file.getvalue()


def test_what_got_worse_is_told_line_by_line() -> None:
    """Each change stands on a line of its own with the clause and its condition."""
    lines = shown(difference(OLD, NEW)).splitlines()
    assert "environment.torch: nothing, now 9.9" in lines
    assert "mine: conforms, now fails" in lines
    assert (
        r"  mine mask.golden [MUST float32]: passed, now failed (mask-inverted): "
        r"off | by <1>\x1b[2J"
    ) in lines
    drift = "margin 0.1, now 0.5 (5.0 times as near to the bound)"
    assert f"  mine numerics.golden [MUST float32]: {drift}" in lines
    assert "  mine shape.output [MUST float32]: failed, now passed" in lines
    assert lines[-1] == (
        "worse: 1 new failure, 1 margin that moved, 1 fixed, 2 went, 0 clauses as before"
    )


def test_clauses_that_went_share_a_line() -> None:
    """Clauses that went alike do not fill a page."""
    assert "  mine [MUST float32], passed: state.pure, state.eval" in shown(difference(OLD, NEW))


def test_nothing_got_worse() -> None:
    """The last line says so, and what is as before is counted."""
    assert shown(difference(OLD, OLD)) == "\nnothing got worse: 5 clauses as before\n"


def test_expectations_and_candidates_are_told() -> None:
    """A candidate that came, and an expectation that holds no more, have their lines."""
    new = {
        **OLD,
        "candidates": [*OLD["candidates"], {"name": "b", "verdict": "fails", "clauses": []}],
    }
    new["stale_expectations"] = [{"clause": "mask.*", "candidate": "*", "why": "nothing failed"}]
    text = shown(difference(OLD, new))
    assert "the expected failure mask.* of * is stale: nothing failed" in text
    assert "  b: fails\n" in text


def test_another_failure_than_the_expected_one_is_told() -> None:
    """An expectation that another mistake answers to reads as a sentence, both ways."""
    stale = {"clause": "mask.golden", "candidate": "mine", "problem": "different", "why": "it is X"}
    new = {**OLD, "stale_expectations": [stale]}
    sentence = "the expected failure mask.golden of mine fails in another way"
    assert f"{sentence}: it is X\n" in shown(difference(OLD, new))
    assert f"{sentence} no more\n" in shown(difference(new, OLD))


def test_markdown_shows_texts_and_obeys_none() -> None:
    """Tables hold what candidates said as it is: no pipe, tag or escape gets through."""
    text = render_diff_markdown(difference(OLD, NEW))
    assert text.startswith("## ❌ Attention conformance: what changed\n\nworse: ")
    assert "### New failures (1)" in text
    assert r"off \| by &lt;1&gt;\\x1b\[2J" in text
    assert "\x1b" not in text
    assert all(line.count(" | ") == 4 for line in text.splitlines() if line.startswith("| ❌"))


def test_markdown_of_no_change_is_short() -> None:
    """Where nothing changed there is no table."""
    text = render_diff_markdown(difference(OLD, OLD))
    assert text.startswith("## ✅")
    assert "|" not in text


def test_markdown_is_cut_and_says_so() -> None:
    """Thousands of changes do not break a comment."""
    many = [clause(f"mask.number-{number}", "passed") for number in range(300)]
    broken = [{**one, "status": "failed", "violation": {"message": "m" * 900}} for one in many]
    text = render_diff_markdown(difference(record("conforms", *many), record("fails", *broken)))
    assert len(text) < 60_000
    assert "and 200 more" in text
