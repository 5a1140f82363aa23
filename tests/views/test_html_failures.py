from __future__ import annotations

import shlex
from typing import Any

from failing_records import failing
from records import PROBLEM, result
from view_records import EVERY, PICTURED, candidate, record

from conformance.base.results import ClauseResult, Violation
from conformance.views.html_failures import Failure, anchors, failure, urgency
from conformance.views.html_words import complete


def of(*results: ClauseResult, name: str = "mine", others: int = 0) -> list[Failure]:
    """The failures of a candidate among others."""
    entries = [candidate(results, name), *(candidate([], f"other{n}") for n in range(others))]
    report = complete(record(*entries))
    return [failure(report, place, anchor) for place, anchor in anchors(report).items()]


def sentences(**more: Any) -> dict[str, str]:
    """What a failure is told as, by label."""
    (details,) = of(result("failed", **more))
    return dict(details.pairs)


def test_what_failed_has_details() -> None:
    """Failures, errors, expected failures and unexpected passes, each under its own anchor."""
    report = complete(record(candidate(EVERY)))
    statuses = [report["candidates"][0]["clauses"][place]["status"] for _, place in anchors(report)]
    assert set(statuses) == {"failed", "error", "expected-failure", "unexpected-pass"}
    assert len(set(anchors(report).values())) == len(statuses)


def test_the_most_urgent_comes_first() -> None:
    """Errors, failed MUSTs, unexpected passes, failed SHOULDs, expected failures."""
    report = complete(record(candidate(EVERY)))
    places = sorted(anchors(report), key=lambda place: urgency(report, place))
    clauses = [report["candidates"][0]["clauses"][place] for _, place in places]
    assert [(clause["status"], clause["level"]) for clause in clauses] == [
        ("error", "MUST"),
        ("failed", "MUST"),
        ("failed", "MUST"),
        ("unexpected-pass", "MUST"),
        ("failed", "SHOULD"),
        ("expected-failure", "MUST"),
    ]


def test_reason_and_finding_are_told_once() -> None:
    """A reason that repeats the violation is left out; another one is told beside it."""
    assert "reason" not in sentences(reason="off by 1")
    assert sentences(reason="not the expected failure")["reason"] == "not the expected failure"


def test_the_shares_of_the_bound_are_told() -> None:
    """What was measured, and what the bound consists of."""
    measured = {"margin": 2.5, "error": 1.0, "bound": 0.4, "parts": {"scores": 0.75, "sum": 0.25}}
    shown = sentences(violation=Violation(kind="value", message="off", measured=measured))
    assert shown["measured"] == "2.5 times the bound; the bound consists of scores 75%, sum 25%"


def test_a_failure_that_did_not_show_again_says_so() -> None:
    """Who replays it should know."""
    assert (
        "did not show again"
        in sentences(counterexample={"problem": PROBLEM, "repeated": False})["note"]
    )


def test_a_replay_is_one_word_to_a_shell() -> None:
    """Names with blanks, quotes and semicolons are quoted."""
    name = "my core; rm -rf 'x'"
    (details,) = of(result("failed", counterexample={"problem": PROBLEM}), name=name, others=1)
    assert shlex.split(details.replay) == [
        "conformance",
        "replay",
        f"REPORT.json#{name}/mask.golden",
    ]


def test_without_a_problem_there_is_no_replay() -> None:
    """An older record, or an exception of the harness, has nothing to replay."""
    (details,) = of(result("failed"))
    assert details.replay == ""


def test_a_real_failure_has_tensors() -> None:
    """Input, comparison and picture are there as tables; the weights are not shown twice."""
    report = complete(failing())
    ((place, anchor),) = anchors(report).items()
    details = failure(report, place, anchor)
    assert [heat.title for heat in details.compared] == ["expected", "got", "error / bound"]
    assert details.attention == []
    assert {heat.title for heat in details.calls[0].arguments} == {"query", "key", "value", "keep"}
    assert details.diagnosis == "mask-inverted"
    assert details.picture is not None
    assert [heat.title for heat in details.picture.weights] == [
        "expected weights",
        "got weights",
        "got - expected",
    ]
    expected, got, _ = (heat.grids[0].rows[0] for heat in details.picture.weights)
    assert expected != got


def test_a_failure_without_a_picture_shows_the_weights_of_its_calls() -> None:
    """A record without pictures has expected and got of each call."""
    report = complete(failing())
    ((place, anchor),) = anchors(report).items()
    clause = report["candidates"][0]["clauses"][place[1]]
    clause["diagnosis"] = [{**entry, "picture": None} for entry in clause["diagnosis"]]
    details = failure(report, place, anchor)
    assert details.picture is None
    assert [heat.title for heat in details.attention] == ["expected", "got"]


def test_a_picture_is_shown_once() -> None:
    """The next failure of the same name leads to the one that has the picture."""
    first, second = of(*PICTURED)
    assert first.picture is not None
    assert second.picture is not None
    assert (first.picture.slug, len(first.picture.weights), len(first.picture.logits)) == ("", 3, 3)
    assert second.picture.slug == "mask.causal"
    assert second.picture.anchor == first.anchor


def test_odd_counterexamples_are_told_as_far_as_they_go() -> None:
    """Calls without arguments, unknown layers and tensors without values break nothing."""
    data = {
        "problem": PROBLEM,
        "calls": [
            {},
            None,
            {"arguments": {"query": {"shape": [9, 9, 9], "dtype": "float32"}}, "layer": 7},
            {"refused": {"kind": "raised", "message": "no"}, "keywords": {"scale": 0.5}},
        ],
    }
    (details,) = of(result("failed", counterexample=data))
    assert len(details.calls) == 4
    assert "too large to be written out" in details.calls[2].arguments[0].note
    assert details.calls[3].refused == "no"
    assert "scale=0.5" in details.calls[3].title
