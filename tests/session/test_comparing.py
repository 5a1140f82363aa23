from __future__ import annotations

import copy
import io
import json
from pathlib import Path
from typing import Any

import pytest
from records import READY, loaded, result
from view_records import EVERY, STALE, candidate, cut, of, record

from conformance.base.record import exit_code, read_record
from conformance.base.results import ClauseResult
from conformance.errors import UsageError
from conformance.running.workers.messages import RunOptions
from conformance.session.comparing import (
    ComparedRecord,
    compared,
    difference,
    joined,
    read_sources,
    side,
    split,
)
from conformance.session.report import build_report, candidate_entry
from conformance.views.comparison import render_comparison_markdown as render_markdown
from conformance.views.comparison import show_comparison as show
from conformance.views.html import render_comparison as render_html


def test_records_are_distinguished_from_targets() -> None:
    """What ends in .json is a record, all else a target."""
    assert split(["a.py:b", "x.json", "m.onnx", "pkg"]) == (
        ("a.py:b", "m.onnx", "pkg"),
        (Path("x.json"),),
    )


def test_records_are_read(tmp_path: Path) -> None:
    """Each file is a source under its name on the command line."""
    path = tmp_path / "old.json"
    path.write_text(json.dumps(of(*EVERY)), encoding="utf-8")
    (source,) = read_sources([path])
    assert source.name == str(path)
    assert source.record["seed"] == 3


def test_a_record_named_twice_is_refused(tmp_path: Path) -> None:
    """Compared with itself nothing differs: it was another file that was meant."""
    path = tmp_path / "old.json"
    path.write_text(json.dumps(of()), encoding="utf-8")
    with pytest.raises(UsageError, match="named twice"):
        read_sources([path, tmp_path / "." / "old.json"])


def test_names_stay_unless_they_are_shared() -> None:
    """Candidates of one name are distinguished by where they are from."""
    first = record(candidate([result()], "a"), candidate([result()], "b"))
    joined_record = joined(
        [ComparedRecord(name="x", record=first), ComparedRecord(name="y", record=of(result()))]
    )
    assert [each["name"] for each in joined_record["candidates"]] == ["a", "b", "mine"]
    again = joined([ComparedRecord(name="x", record=first), ComparedRecord(name="y", record=first)])
    assert [each["name"] for each in again["candidates"]] == ["a (x)", "b (x)", "a (y)", "b (y)"]
    assert [each["source"] for each in again["candidates"]] == ["x", "x", "y", "y"]


def test_names_differ_even_within_a_source() -> None:
    """A record may have two candidates of one name."""
    twice = record(candidate([result()], "a"), candidate([result()], "a"))
    joined_record = joined([ComparedRecord(name="x", record=twice)])
    assert [each["name"] for each in joined_record["candidates"]] == ["a (x)", "a (x) 2"]


def test_what_differs_is_listed_and_what_is_the_same_stays() -> None:
    """One profile stays a word; two seeds are both shown, and so is each run's own."""
    other = {**of(result()), "seed": 9, "environment": {"torch": "2.7", "device": "cpu"}}
    joined_record = joined(
        [ComparedRecord(name="x", record=of(result())), ComparedRecord(name="y", record=other)]
    )
    assert (joined_record["profile"], joined_record["seed"]) == ("quick", "3 / 9")
    assert joined_record["environment"]["torch"] == "2.6 / 2.7"
    assert joined_record["environment"]["device"] == "cpu"
    assert [run["seed"] for run in joined_record["compared"]] == [3, 9]
    assert joined_record["seconds"] == 3.0


def test_a_comparison_is_a_record(tmp_path: Path) -> None:
    """Other commands read it, and its exit code is that of all candidates together."""
    red = ComparedRecord(name="x", record=record(candidate(EVERY), stale=[STALE]))
    green = ComparedRecord(name="y", record=of(result()))
    path = tmp_path / "both.json"
    path.write_text(json.dumps(joined([red, green])), encoding="utf-8")
    joined_record = read_record(path)
    assert len(joined_record["stale_expectations"]) == 1
    assert exit_code(joined_record) == exit_code(red.record)
    assert exit_code(joined([green])) == 0


def test_an_interrupted_source_interrupts_the_comparison() -> None:
    """Half a run is no verdict on all of it."""
    joined_record = joined(
        [
            ComparedRecord(name="x", record=of(result(), interrupted=True)),
            ComparedRecord(name="y", record=of(result())),
        ]
    )
    assert joined_record["interrupted"] is True


def test_old_records_are_joined() -> None:
    """The least that is a record has neither tool nor environment."""
    least = {"schema": 1, "candidates": []}
    joined_record = joined(
        [ComparedRecord(name="x", record=least), ComparedRecord(name="y", record=of(result()))]
    )
    assert joined_record["tool"]["name"] == "attention-conformance"
    assert len(joined_record["candidates"]) == 1


def test_what_a_source_lacks_is_shown() -> None:
    """A run that its limit cut, and a shard, are named with what they lack, in every view."""
    shard = {**of(result("untestable")), "shard": {"index": 1, "count": 4, "expected": []}}
    joined_record = joined(
        [ComparedRecord(name="x", record=cut(result())), ComparedRecord(name="y", record=shard)]
    )
    page = io.StringIO()
    show(joined_record, page)
    for text in (page.getvalue(), render_html(joined_record), render_markdown(joined_record)):
        assert "x: the limit of 60 s was reached: 7 clauses were not run" in text
        assert "y: shard 1 of 4" in text


def clause(status: str, kind: str = "value", *names: str, margin: Any = None) -> dict[str, Any]:
    """One side of a comparison, from a record's clause."""
    fails = status in ("failed", "expected-failure")
    return side(
        {
            "id": "mask.golden",
            "status": status,
            "violation": {"kind": kind, "message": "off by 1"} if fails else None,
            "diagnosis": [{"name": name} for name in names],
            "margin": margin,
            "examples": 40,
        }
    )


CHANGES: dict[str, tuple[dict[str, Any], dict[str, Any], str, bool]] = {
    "fails now": (clause("passed"), clause("failed"), "added", True),
    "fails now, as announced": (clause("passed"), clause("expected-failure"), "added", True),
    "fails since it was promised": (clause("not-applicable"), clause("failed"), "added", True),
    "the harness fails now": (clause("passed"), clause("error"), "added", True),
    "fixed": (clause("failed"), clause("passed"), "fixed", False),
    "fixed, and still announced": (
        clause("expected-failure"),
        clause("unexpected-pass"),
        "fixed",
        False,
    ),
    "another kind": (clause("failed"), clause("failed", "raised"), "changed", True),
    "another mistake": (
        clause("failed", "value", "a"),
        clause("failed", "value", "b"),
        "changed",
        True,
    ),
    "another kind, announced": (
        clause("failed"),
        clause("expected-failure", "raised"),
        "changed",
        True,
    ),
    "announced": (clause("failed"), clause("expected-failure"), "changed", False),
    "announced no more": (clause("expected-failure"), clause("failed"), "changed", True),
    "tested no more": (clause("passed"), clause("untestable"), "changed", True),
    "promised no more": (clause("passed"), clause("not-applicable"), "changed", True),
    "failed, promised no more": (clause("failed"), clause("not-applicable"), "changed", False),
    "tested now": (clause("untestable"), clause("passed"), "changed", False),
    "announced without reason": (clause("passed"), clause("unexpected-pass"), "changed", True),
    "as before": (clause("failed", "value", "a"), clause("failed", "value", "a"), "same", False),
    "passed as before": (clause("passed"), clause("passed"), "same", False),
    "nearer to the bound": (
        clause("passed", margin=0.2),
        clause("passed", margin=0.4),
        "drift",
        True,
    ),
    "a bit nearer": (clause("passed", margin=0.2), clause("passed", margin=0.39), "same", False),
    "farther": (clause("passed", margin=0.4), clause("passed", margin=0.2), "drift", False),
    "from exact": (clause("passed", margin=0.0), clause("passed", margin=0.02), "drift", True),
    "rounding": (clause("passed", margin=1e-9), clause("passed", margin=0.019), "same", False),
    "no margin before": (clause("passed"), clause("passed", margin=0.9), "same", False),
    "no margin now": (clause("passed", margin=0.9), clause("passed"), "same", False),
    "no number": (clause("passed", margin="inf"), clause("passed", margin=0.9), "same", False),
}


@pytest.mark.parametrize(("old", "new", "change", "worse"), CHANGES.values(), ids=CHANGES.keys())
def test_what_became_of_a_clause(
    old: dict[str, Any],
    new: dict[str, Any],
    change: str,
    worse: bool,  # noqa: FBT001 (a table)
) -> None:
    """A change has one name; it is worse when less is known to hold, or a failure is another."""
    found_change, is_worse, how = compared(old, new, ratio=2.0)
    assert (found_change, is_worse) == (change, worse)
    assert bool(how) == (change != "same")


def test_how_a_failure_changed_is_reported() -> None:
    """Kinds and diagnoses are reported with the earlier ones."""
    old, new = clause("expected-failure", "value", "a"), clause("failed", "raised", "b", "c")
    assert compared(old, new, ratio=2.0)[2] == (
        "status expected-failure, now failed; kind value, now raised; diagnosed as a, now b or c"
    )


@pytest.mark.parametrize("more", [{"same_problems": False}, {"examples": 60}])
def test_margins_of_other_problems_are_no_worse(more: dict[str, Any]) -> None:
    """Where other problems were drawn, or more of them, a margin that moved is reported only."""
    old = clause("passed", margin=0.2)
    new = clause("passed", margin=0.8) | {"examples": more.pop("examples", 40)}
    change, worse, how = compared(old, new, ratio=2.0, **more)
    assert (change, worse) == ("drift", False)
    assert how == "margin 0.2, now 0.8 (4.0 times as near to the bound)"


def test_the_ratio_is_given() -> None:
    """Who wants to hear of smaller drifts gives a smaller ratio."""
    sides = clause("passed", margin=0.2), clause("passed", margin=0.3)
    assert compared(*sides, ratio=1.2)[0] == "drift"
    assert compared(*sides, ratio=2.0)[0] == "same"


def entry(name: str, *results: ClauseResult, **more: Any) -> dict[str, Any]:
    """One candidate of a record."""
    return candidate_entry(loaded(name, **more), results, READY.sentences)


def run_of(*entries: dict[str, Any], seed: int = 0) -> dict[str, Any]:
    """A record of a run."""
    options = RunOptions(targets=("attn.py",), profile="quick", seed=seed)
    return build_report(READY, options, entries)


PASSED = result(margin=0.1)
FAILED = result("failed")
SHAPE = result(slug="shape.output")


def test_a_record_is_no_worse_than_itself() -> None:
    """Nothing changed: all is as before."""
    same = run_of(entry("mine", PASSED, FAILED, SHAPE))
    changes = difference(same, copy.deepcopy(same))
    assert not changes.pop("worse")
    assert (changes.pop("same"), changes.pop("schema"), changes.pop("ratio")) == (3, 1, 2.0)
    assert not any(changes.values())


def test_a_new_failure_is_worse() -> None:
    """Clause and verdict are reported, with both sides."""
    changes = difference(run_of(entry("mine", PASSED)), run_of(entry("mine", FAILED)))
    (added,) = changes["added"]
    assert (added["candidate"], added["clause"], added["dtype"]) == (
        "mine",
        "mask.golden",
        "float32",
    )
    assert (added["old"]["status"], added["new"]["kind"]) == ("passed", "value")
    (verdict,) = changes["verdicts"]
    assert (verdict["old"], verdict["new"], verdict["worse"]) == ("conforms", "fails", True)
    assert changes["worse"]


def test_the_other_way_round_it_is_fixed() -> None:
    """What failed and passes now is fixed: nothing got worse."""
    changes = difference(run_of(entry("mine", FAILED)), run_of(entry("mine", PASSED)))
    assert len(changes["fixed"]) == 1
    assert not changes["worse"]


def test_dtypes_and_devices_are_distinguished() -> None:
    """A clause is compared with itself in the same dtype on the same device."""
    old = run_of(entry("mine", result(), result(dtype="float64"), result(device="cuda")))
    new = run_of(entry("mine", result(), result(dtype="float64"), result("failed", device="cuda")))
    (added,) = difference(old, new)["added"]
    assert (added["dtype"], added["device"]) == ("float32", "cuda")


WHO_GOES: dict[str, tuple[dict[str, Any], dict[str, Any], str, bool]] = {
    "a candidate that conforms comes": (run_of(), run_of(entry("mine", PASSED)), "came", False),
    "a candidate that fails comes": (run_of(), run_of(entry("mine", FAILED)), "came", True),
    "a candidate that conforms goes": (run_of(entry("mine", PASSED)), run_of(), "went", True),
    "a candidate that fails goes": (run_of(entry("mine", FAILED)), run_of(), "went", False),
    "a clause that passes comes": (
        run_of(entry("mine", PASSED)),
        run_of(entry("mine", PASSED, SHAPE)),
        "came",
        False,
    ),
    "a clause that fails comes": (
        run_of(entry("mine", SHAPE)),
        run_of(entry("mine", SHAPE, FAILED)),
        "came",
        True,
    ),
    "a clause that passed goes": (
        run_of(entry("mine", PASSED, SHAPE)),
        run_of(entry("mine", PASSED)),
        "went",
        True,
    ),
    "a clause that failed goes": (
        run_of(entry("mine", FAILED, SHAPE)),
        run_of(entry("mine", SHAPE)),
        "went",
        False,
    ),
}


@pytest.mark.parametrize(("old", "new", "where", "worse"), WHO_GOES.values(), ids=WHO_GOES.keys())
def test_who_came_and_went(
    old: dict[str, Any],
    new: dict[str, Any],
    where: str,
    worse: bool,  # noqa: FBT001 (a table)
) -> None:
    """What comes and fails is worse, and what goes and held."""
    changes = difference(old, new)
    assert len(changes[where]) == 1
    assert changes["worse"] is worse


def test_clauses_of_another_specification_may_go() -> None:
    """A newer version may know a clause no more: that is reported, but no candidate's fault."""
    old, new = run_of(entry("mine", PASSED, SHAPE)), run_of(entry("mine", PASSED))
    new["tool"]["specification"] = "another"
    changes = difference(old, new)
    assert changes["conditions"] == [
        {"name": "tool.specification", "old": "0123456789ab", "new": "another"}
    ]
    assert len(changes["went"]) == 1
    assert not changes["worse"]


def test_surroundings_are_reported() -> None:
    """Seed and environment that differ are reported; a margin under another seed is no worse."""
    old, new = run_of(entry("mine", PASSED)), run_of(entry("mine", result(margin=0.9)), seed=1)
    new["environment"]["torch"] = "9.9"
    changes = difference(old, new)
    assert {each["name"] for each in changes["conditions"]} == {"seed", "environment.torch"}
    assert len(changes["drift"]) == 1
    assert not changes["worse"]


def test_promises_that_differ_are_reported() -> None:
    """A declaration that promises less is reported, long values shortened."""
    old = run_of(entry("mine", PASSED, declaration={"masks": ["keep"] * 100, "scale": True}))
    new = run_of(entry("mine", PASSED, declaration={"masks": []}))
    changes = difference(old, new)["declarations"]
    assert [(each["name"], each["new"]) for each in changes] == [("masks", "[]"), ("scale", None)]
    assert len(changes[0]["old"]) < 150


def test_expectations_that_hold_no_more_are_worse() -> None:
    """An expectation that went stale or expired makes it worse; one that is gone does not."""
    old, new = run_of(entry("mine", PASSED)), run_of(entry("mine", PASSED))
    new["stale_expectations"] = [
        {"clause": "mask.*", "candidate": "*", "problem": "expired", "why": "it was accepted"}
    ]
    assert difference(old, new)["worse"]
    assert not difference(new, old)["worse"]
    assert len(difference(new, old)["expectations"]) == 1


def test_candidates_of_one_name_are_all_compared() -> None:
    """None of several candidates, or entries of a clause, is lost for its name."""
    old = run_of(entry("mine", PASSED), entry("mine", PASSED))
    new = run_of(entry("mine", PASSED), entry("mine", PASSED, FAILED))
    changes = difference(old, new)
    assert [each["candidate"] for each in changes["came"]] == ["mine (2)"]
    assert changes["worse"]


def test_an_old_record_is_enough() -> None:
    """A record with no more than each needs is compared, too."""
    old = {"schema": 1, "candidates": [{"name": "mine", "verdict": "conforms", "clauses": []}]}
    clause = {"id": "mask.golden", "status": "failed"}
    new = {"schema": 1, "candidates": [{**old["candidates"][0], "clauses": [clause]}]}
    assert difference(old, new)["worse"]
    assert not difference(new, old)["worse"]


def test_a_run_that_is_not_whole_is_reported() -> None:
    """What a limit or a shard left out is not taken for what changed in a candidate."""
    whole = run_of(entry("mine", PASSED))
    cut = {**whole, "limit": {"seconds": 60.0, "reached": True}}
    shard = {**whole, "shard": {"index": 2, "count": 4, "expected": []}}
    some = {**whole, "options": {"only": ["mask.*", "shape.*"], "skip": [], "dtypes": None}}
    assert difference(whole, some)["conditions"] == [
        {"name": "--only", "old": None, "new": "mask.*, shape.*"}
    ]
    assert difference(whole, cut)["conditions"] == [
        {"name": "time limit", "old": "not reached", "new": "reached after 60.0 s"}
    ]
    assert difference(shard, whole)["conditions"] == [
        {"name": "shard", "old": "2 of 4", "new": "the whole run"}
    ]
