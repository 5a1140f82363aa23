from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from records import loaded

from conformance.base.parameter_names import OptionParameter
from conformance.clauses.registry import all_clauses
from conformance.errors import UsageError
from conformance.session.order import SOONEST, check_unchecked, last_failed, remember_failed


def record(*failed: str, **more: Any) -> dict[str, Any]:
    """A record in which some clauses failed and one passed."""
    clauses = [{"id": slug, "status": "failed"} for slug in failed]
    return {"candidates": [{"clauses": [*clauses, {"id": "a.z", "status": "passed"}]}], **more}


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of the user's that is empty."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "attention-conformance" / "failed.json"


def test_what_failed_is_remembered_for_its_targets() -> None:
    """Each set of targets has its own failures, until they pass."""
    remember_failed(["one.py"], record("a.b", "a.c", "a.b"))
    remember_failed(["two.py"], record("a.d"))
    assert last_failed(["one.py"]) == ("a.b", "a.c")
    assert last_failed(["two.py"]) == ("a.d",)
    assert last_failed(["one.py", "two.py"]) == ()
    remember_failed(["one.py"], record())
    assert (last_failed(["one.py"]), last_failed(["two.py"])) == ((), ("a.d",))


def test_an_interrupted_run_leaves_what_is_remembered() -> None:
    """It has not asked everything."""
    remember_failed(["one.py"], record("a.b"))
    remember_failed(["one.py"], record(interrupted=True))
    assert last_failed(["one.py"]) == ("a.b",)


@pytest.mark.parametrize("text", ["", "{", "[1]", '{"x": 3}', "[" * 100_000])
def test_a_cache_that_is_not_ours_is_no_hindrance(cache: Path, text: str) -> None:
    """Nothing is remembered, and it is written anew."""
    cache.parent.mkdir()
    cache.write_text(text, encoding="utf-8")
    assert last_failed(["one.py"]) == ()
    remember_failed(["one.py"], record("a.b"))
    assert last_failed(["one.py"]) == ("a.b",)
    damaged = dict.fromkeys(json.loads(cache.read_text(encoding="utf-8")), 3)
    cache.write_text(json.dumps(damaged), encoding="utf-8")
    assert last_failed(["one.py"]) == ()
    remember_failed(["one.py"], record("a.b"))
    assert isinstance(json.loads(cache.read_text(encoding="utf-8")), dict)


def test_a_cache_that_cannot_be_written_is_no_hindrance(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where a file is in its way, the run goes on and remembers nothing."""
    (tmp_path / "file").write_text("", encoding="utf-8")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    remember_failed(["one.py"], record("a.b"))
    assert last_failed(["one.py"]) == ()


def test_the_order_names_clauses() -> None:
    """Every clause of the order exists, once, and can fail a run: it is a MUST."""
    musts = {clause.id for clause in all_clauses() if clause.level == "MUST"}
    assert len(SOONEST) == len(set(SOONEST)) > 10
    assert set(SOONEST) <= musts


def test_a_name_that_nobody_leaves_unchecked_is_refused() -> None:
    """A typing error accepts no mask silently; a glob may match nothing."""
    mask = OptionParameter(name="attn_mask", option="mask")
    candidates = [loaded(), loaded(unchecked=(mask,))]
    check_unchecked(["attn_mask", "*_bias"], candidates)
    with pytest.raises(UsageError, match=r"--unchecked atn_mask names no .* 'attn_mask'?"):
        check_unchecked(["atn_mask"], candidates)
    with pytest.raises(UsageError, match=r"not declared$"):
        check_unchecked(["zz"], candidates[:1])
