from __future__ import annotations

from typing import Any

import pytest
from records import result
from view_records import FAILED, LOCATED, RECORDS, SHOULD_FAILED, candidate, record

from conformance.views.github import render_annotations


def commands(report: dict[str, Any]) -> list[str]:
    """The lines that GitHub reads."""
    return render_annotations(report).splitlines()


@pytest.mark.parametrize("name", RECORDS)
def test_every_line_is_one_command(name: str) -> None:
    """Nothing a candidate says begins a line or ends a command."""
    for line in render_annotations(RECORDS[name]).splitlines():
        assert line.startswith(("::error ", "::warning "))
        properties, _, message = line.removeprefix("::").partition("::")
        assert properties.count("=") >= properties.count(",") + 1
        assert "\r" not in message


def test_levels_and_places() -> None:
    """A failed MUST is an error at the candidate's line, a failed SHOULD a warning."""
    first, second = commands(record(candidate([FAILED, SHOULD_FAILED], location=LOCATED)))
    assert first == (
        "::error file=src/my attn.py,line=12,title=mine%3A scale-missing::scale-missing "
        "(no scale): off by 1 at [0, 0] (float32)%0Afix: divide by it%0A"
        "requires: A masked key is absent."
    )
    assert second.startswith("::warning file=src/my attn.py,line=12,title=mine%3A mask.no-leak::")
    assert not commands(record(candidate([SHOULD_FAILED])))  # it conforms


def test_escapes_are_github_s() -> None:
    """Percent signs and line ends in messages; colons and commas too in properties."""
    target = {"location": {"file": "a,b:c%.py", "line": 3}}
    reason = "50%\nof it: a, b"
    (line,) = commands(record(candidate([result("error", reason=reason)], "x,y:z", **target)))
    assert line.startswith("::error file=a%2Cb%3Ac%25.py,line=3,title=x%2Cy%3Az%3A mask.golden::")
    assert "::50%25%0Aof it: a, b (float32)" in line


def test_one_annotation_a_clause() -> None:
    """A clause that fails in several dtypes is told once, with all of them."""
    results = [result("failed", dtype=dtype) for dtype in ("float32", "float64", "bfloat16")]
    (line,) = commands(record(candidate(results)))
    assert line.endswith("%0Aalso in float64, bfloat16")


def test_what_is_not_shown_is_counted() -> None:
    """GitHub shows ten of a kind: the tenth counts the rest, and no candidate is passed over."""
    many = [result("failed", f"mask.number-{number}") for number in range(12)]
    report = record(candidate(many), candidate(many, "yours"))
    lines = commands(report)
    assert len(lines) == 10
    assert "title=mine%3A mask.number-0::" in lines[0]
    assert "title=yours%3A mask.number-0::" in lines[1]
    assert lines[-1].startswith("::error title=15 more failures::15 more failures are not shown")
    assert len(commands(record(candidate(many[:10])))) == 10


def test_one_annotation_a_cause() -> None:
    """Clauses that one mistake fails have one mark, which names them."""
    results = [FAILED.replace(id=slug) for slug in ("mask.golden", "mask.causal", "mask.no-leak")]
    (line,) = commands(record(candidate(results)))
    assert "title=mine%3A scale-missing::" in line
    assert line.endswith("%0Afails as well: mask.causal, mask.no-leak")


def test_a_clause_of_two_causes_is_marked_by_each() -> None:
    """Where a clause fails in two dtypes for two reasons, each mark tells its own."""
    other = [{**FAILED.diagnosis[0], "name": "scale-off", "text": "another scale"}]
    results = [FAILED, FAILED.replace(dtype="bfloat16", diagnosis=other)]
    first, second = commands(record(candidate(results)))
    assert "scale-missing::scale-missing (no scale)" in first
    assert "scale-off::scale-off (another scale)" in second
