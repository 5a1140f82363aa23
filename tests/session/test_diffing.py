from __future__ import annotations

import copy
from typing import Any

import pytest
from records import READY, loaded, result

from conformance.base.results import ClauseResult
from conformance.running.workers.messages import RunOptions
from conformance.session.diffing import difference
from conformance.session.report import build_report, candidate_entry


def entry(name: str, *results: ClauseResult, **more: Any) -> dict[str, Any]:
    """One candidate of a record."""
    return candidate_entry(loaded(name, **more), results, READY.sentences)


def record(*entries: dict[str, Any], seed: int = 0) -> dict[str, Any]:
    """A record of a run."""
    options = RunOptions(targets=("attn.py",), profile="quick", seed=seed)
    return build_report(READY, options, entries)


PASSED = result(margin=0.1)
FAILED = result("failed")
SHAPE = result(slug="shape.output")


def test_a_record_is_no_worse_than_itself() -> None:
    """Nothing changed: all is as before."""
    same = record(entry("mine", PASSED, FAILED, SHAPE))
    changes = difference(same, copy.deepcopy(same))
    assert not changes.pop("worse")
    assert (changes.pop("same"), changes.pop("schema"), changes.pop("ratio")) == (3, 1, 2.0)
    assert not any(changes.values())


def test_a_new_failure_is_worse() -> None:
    """Clause and verdict are reported, with both sides."""
    changes = difference(record(entry("mine", PASSED)), record(entry("mine", FAILED)))
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
    changes = difference(record(entry("mine", FAILED)), record(entry("mine", PASSED)))
    assert len(changes["fixed"]) == 1
    assert not changes["worse"]


def test_dtypes_and_devices_are_distinguished() -> None:
    """A clause is compared with itself in the same dtype on the same device."""
    old = record(entry("mine", result(), result(dtype="float64"), result(device="cuda")))
    new = record(entry("mine", result(), result(dtype="float64"), result("failed", device="cuda")))
    (added,) = difference(old, new)["added"]
    assert (added["dtype"], added["device"]) == ("float32", "cuda")


WHO_GOES: dict[str, tuple[dict[str, Any], dict[str, Any], str, bool]] = {
    "a candidate that conforms comes": (record(), record(entry("mine", PASSED)), "came", False),
    "a candidate that fails comes": (record(), record(entry("mine", FAILED)), "came", True),
    "a candidate that conforms goes": (record(entry("mine", PASSED)), record(), "went", True),
    "a candidate that fails goes": (record(entry("mine", FAILED)), record(), "went", False),
    "a clause that passes comes": (
        record(entry("mine", PASSED)),
        record(entry("mine", PASSED, SHAPE)),
        "came",
        False,
    ),
    "a clause that fails comes": (
        record(entry("mine", SHAPE)),
        record(entry("mine", SHAPE, FAILED)),
        "came",
        True,
    ),
    "a clause that passed goes": (
        record(entry("mine", PASSED, SHAPE)),
        record(entry("mine", PASSED)),
        "went",
        True,
    ),
    "a clause that failed goes": (
        record(entry("mine", FAILED, SHAPE)),
        record(entry("mine", SHAPE)),
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
    old, new = record(entry("mine", PASSED, SHAPE)), record(entry("mine", PASSED))
    new["tool"]["specification"] = "another"
    changes = difference(old, new)
    assert changes["conditions"] == [
        {"name": "tool.specification", "old": "0123456789ab", "new": "another"}
    ]
    assert len(changes["went"]) == 1
    assert not changes["worse"]


def test_surroundings_are_reported() -> None:
    """Seed and environment that differ are reported; a margin under another seed is no worse."""
    old, new = record(entry("mine", PASSED)), record(entry("mine", result(margin=0.9)), seed=1)
    new["environment"]["torch"] = "9.9"
    changes = difference(old, new)
    assert {each["name"] for each in changes["conditions"]} == {"seed", "environment.torch"}
    assert len(changes["drift"]) == 1
    assert not changes["worse"]


def test_promises_that_differ_are_reported() -> None:
    """A declaration that promises less is reported, long values shortened."""
    old = record(entry("mine", PASSED, declaration={"masks": ["keep"] * 100, "scale": True}))
    new = record(entry("mine", PASSED, declaration={"masks": []}))
    changes = difference(old, new)["declarations"]
    assert [(each["name"], each["new"]) for each in changes] == [("masks", "[]"), ("scale", None)]
    assert len(changes[0]["old"]) < 150


def test_expectations_that_hold_no_more_are_worse() -> None:
    """An expectation that went stale or expired makes it worse; one that is gone does not."""
    old, new = record(entry("mine", PASSED)), record(entry("mine", PASSED))
    new["stale_expectations"] = [
        {"clause": "mask.*", "candidate": "*", "problem": "expired", "why": "it was accepted"}
    ]
    assert difference(old, new)["worse"]
    assert not difference(new, old)["worse"]
    assert len(difference(new, old)["expectations"]) == 1


def test_candidates_of_one_name_are_all_compared() -> None:
    """None of several candidates, or entries of a clause, is lost for its name."""
    old = record(entry("mine", PASSED), entry("mine", PASSED))
    new = record(entry("mine", PASSED), entry("mine", PASSED, FAILED))
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
    whole = record(entry("mine", PASSED))
    cut = {**whole, "limit": {"seconds": 60.0, "reached": True}}
    shard = {**whole, "shard": {"index": 2, "count": 4, "expected": []}}
    assert difference(whole, cut)["conditions"] == [
        {"name": "time limit", "old": "not reached", "new": "reached after 60.0 s"}
    ]
    assert difference(shard, whole)["conditions"] == [
        {"name": "shard", "old": "2 of 4", "new": "the whole run"}
    ]
