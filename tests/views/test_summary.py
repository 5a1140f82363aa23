from __future__ import annotations

import re
from typing import Any

import pytest
from records import PROBLEM, loaded, result

from conformance.base.mistake import UNKNOWN
from conformance.base.results import ClauseResult, Violation
from conformance.session.report import candidate_entry
from conformance.views.complete import complete
from conformance.views.summary import summary
from conformance.views.wording import counterexample


def failure(slug: str, name: str, **more: Any) -> ClauseResult:
    """A failed clause with a diagnosis."""
    entry = {"name": name, "text": f"{name} is wrong", "fix": f"mend {name}", "confidence": 1.0}
    violation = Violation(kind="value", message=f"{slug} is off by 1")
    return result(
        "failed",
        slug,
        violation=violation,
        counterexample={"problem": PROBLEM},
        diagnosis=[entry],
        **more,
    )


def lines(
    results: list[ClauseResult], width: int = 100, *, alone: bool = True, advised: bool = False
) -> list[str]:
    """The lines of a candidate with these results."""
    entry = candidate_entry(loaded(), results, {})
    (candidate,) = complete({"candidates": [entry]})["candidates"]
    return [line.plain for line in summary(candidate, width, alone=alone, advised=advised)]


def test_a_cause_is_told_once() -> None:
    """Fourteen failures of one mistake name it once, with one fix, one input and all clauses."""
    shown = lines([failure(f"mask.number-{n}", "scale-missing") for n in range(14)])
    text = "\n".join(shown)
    assert shown[0].endswith("fails, 14 of 14 MUST clauses failed, for 1 cause")
    assert text.count("scale-missing is wrong") == text.count("mend scale-missing") == 1
    assert text.count("batch 1, heads 2") == 1
    assert set(re.findall(r"mask\.number-\d+", text)) == {f"mask.number-{n}" for n in range(14)}


def test_many_clauses_leave_room_for_the_next_cause() -> None:
    """They are counted by family: the second cause has its fix and its input, too."""
    many = [failure(f"{area}.number-{n}", "x") for area in ("mask", "shape") for n in range(40)]
    text = "\n".join(lines([*many, failure("state.unseen", "y")]))
    assert "explains mask.* 40, shape.* 40 (80 clauses)" in text
    assert "mend x" in text
    assert "mend y" in text
    assert text.count("batch 1, heads 2") == 2


def test_a_mistake_of_one_dtype_is_said_to_be_one() -> None:
    """Of a candidate that is right in float32, the dtype that is wrong is what to look at."""
    wrong = [failure(f"mask.number-{n}", "scale-missing", dtype="bfloat16") for n in range(2)]
    assert any("(2 clauses, in bfloat16 alone)" in line for line in lines([*wrong, result()]))
    assert not any("alone" in line for line in lines(wrong))


def test_a_passing_candidate_has_few_lines() -> None:
    """A verdict, what passed, what did not apply; with the run's own two lines that makes five."""
    shown = lines([result(margin=0.5), result("not-applicable", "mask.no-leak")])
    assert len(shown) == 3
    assert "conforms" in shown[0]


@pytest.mark.parametrize("causes", [1, 3, 9, 60])
def test_forty_lines_of_a_hundred_columns(causes: int) -> None:
    """However many causes there are, and however long their texts: the most telling come first."""
    results = [
        failure(f"mask.clause-{n}-{m}", f"mistake-{n} {'very ' * 60}long")
        for n in range(causes)
        for m in range(4)
    ]
    shown = lines(results)
    assert len(shown) <= 36
    assert max(map(len, shown)) <= 100
    assert any("mistake-0" in line for line in shown)


@pytest.mark.parametrize("kind", ["should", "error", "untestable", "warning"])
def test_forty_lines_whatever_there_is_much_of(kind: str) -> None:
    """Forty recommendations, errors, reasons or warnings leave room for the cause."""
    long = "very " * 100
    results = [failure("mask.golden", "scale-missing", reason=long)]
    for n in range(0 if kind == "warning" else 40):
        if kind == "should":
            violation = Violation(kind="value", message=f"{n} {long}")
            results.append(result("failed", f"s.c{n}", level="SHOULD", violation=violation))
        else:
            results.append(result(kind, f"s.c{n}", reason=f"{n} {long}"))
    entry = candidate_entry(
        loaded(), results, {}, warnings=[long] * 40 if kind == "warning" else ()
    )
    (candidate,) = complete({"candidates": [entry]})["candidates"]
    shown = [line.plain for line in summary(candidate, advised=True)]
    assert len(shown) <= 36
    assert max(map(len, shown)) <= 100
    assert any("mend scale-missing" in line for line in shown)
    assert any(re.search(r"3\d more .*\(-vv lists all\)", line) for line in shown)


def test_why_nothing_was_tested_is_said_before_names() -> None:
    """Where slugs and reason have no room in one line, the reason is what stays."""
    reason = "not run: the candidate hung in three clauses before this one"
    results = [result("untestable", f"equivariance.number-{n}", reason=reason) for n in range(9)]
    assert f"untestable: 9 clauses ({reason})" in lines(results)


def test_a_should_without_a_known_mistake_says_what_was_found() -> None:
    """Its one line is the clause's own reason, and not that no mistake is known."""
    shown = lines([result(), failure("mask.no-leak", UNKNOWN, level="SHOULD")], advised=True)
    assert "SHOULD failed: mask.no-leak: mask.no-leak is off by 1" in shown


def test_a_cause_that_is_called_as_its_clause_names_it_once() -> None:
    """What it explains is what it is called: no line says so again."""
    odd = result("failed", "model.sites", violation=Violation(kind="value", message="off by 1"))
    for alone in (True, False):
        text = "\n".join(lines([odd], alone=alone))
        assert "model.sites: off by 1" in text
        assert "explains" not in text


def test_of_several_each_takes_less() -> None:
    """Among several candidates a cause is a name, a fix and its clauses, without the input."""
    shown = lines([failure("mask.golden", "scale-missing")], alone=False)
    assert any("mend scale-missing" in line for line in shown)
    assert not any("batch 1" in line for line in shown)


def test_slugs_stay_whole() -> None:
    """Narrow lines are broken between words."""
    slug = "equivariance.batch-independent-of-everything"
    shown = lines([failure(slug, "mixes-items")], width=50)
    assert sum(slug in line for line in shown) == 2


def test_what_a_mask_is_taken_for_is_said_before_the_line_ends() -> None:
    """Behaviour comes first of the assumptions, construction last, and why is left out."""
    assumed = [
        f"constructed as CausalAttention(mask={'x' * 100})",
        "kind: layer",
        "causal: always",
        "input x: x, axes BLE (by behaviour: a change of one row changes other rows of the answer)",
        "input mask: drop, axes BK (by behaviour: 1 takes a key out of the answer)",
    ]
    declaration = {"kind": "graph", "assumptions": assumed}
    entry = candidate_entry(loaded(kind="graph", declaration=declaration), [result()], {})
    (candidate,) = complete({"candidates": [entry]})["candidates"]
    shown = [line.plain for line in summary(candidate, 100)]
    (line,) = (line for line in shown if line.startswith("assumed: "))
    start = "assumed: input mask: drop, axes BK; causal: always; kind: layer; input x: x"
    assert line.startswith(start)
    assert line.endswith("… (-vv shows all)")
    assert len(line) <= 100


def test_a_call_that_is_cut_to_no_items_is_said_to_be() -> None:
    """The sizes are those of the problem, so that the input says what was made of it."""
    tensor = {"shape": [0, 2, 1, 4], "dtype": "float32", "values": []}
    call = {"arguments": {"query": tensor}, "keywords": {}}
    assert "cut to query [0, 2, 1, 4]" in counterexample({"problem": PROBLEM, "calls": [call]})
    assert "cut to" not in counterexample({"problem": PROBLEM, "calls": []})
