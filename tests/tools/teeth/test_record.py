"""The record of a run of the catalogue says what was caught, and its exit code follows."""

from __future__ import annotations

import dataclasses
import json

import pytest
from records import result
from teeth_records import BAD, GOOD, READY, correct, entry, failed, passed, record

from conformance.tools.teeth.jobs import TeethOptions
from conformance.tools.teeth.record import TeethProgress, build_record, exit_code
from conformance.views.teeth import summary_lines


def test_a_good_run_is_green() -> None:
    """Every mistake caught by its primary clause and nothing correct flagged: exit code 0."""
    assert exit_code(GOOD) == 0
    summary = GOOD["summary"]
    assert (summary["mistakes"], summary["caught"], summary["correct"]) == (2, 2, 1)
    assert not [name for name in ("missed", "primary_missed", "flagged") if summary[name]]
    assert summary["toothless"] == ["house.rule"]
    assert summary["toothless_judged"] == []


def test_a_record_is_json_of_schema_1() -> None:
    """The record survives JSON, and has the keys that docs/teeth.md names."""
    assert json.loads(json.dumps(GOOD, allow_nan=False)) == GOOD
    assert GOOD["schema"] == 1
    wanted = "tool environment profile seed seconds clauses mistakes correct summary".split()
    assert set(wanted) <= set(GOOD)
    (grave, _) = GOOD["mistakes"]
    assert grave["clauses"] == {
        "mask.golden": "failed",
        "shape.output": "failed",
        "mask.no-leak": "passed",
    }
    assert (grave["first"], grave["caught"], grave["primary_caught"]) == ("mask.golden", True, True)


def test_clauses_name_what_they_catch() -> None:
    """Each clause has its level, and the mistakes that it catches or is primary of."""
    by_slug = {clause["id"]: clause for clause in GOOD["clauses"]}
    assert by_slug["shape.output"]["caught"] == ["grave"]
    assert by_slug["mask.no-leak"]["primary_of"] == ["slight"]
    assert by_slug["house.rule"]["origin"] == "thirdparty"


def test_a_bad_run_is_red() -> None:
    """What escapes, a primary clause that passes, and a flagged candidate are each found."""
    summary = BAD["summary"]
    assert exit_code(BAD) == 1
    assert summary["missed"] == ["escaped"]
    assert summary["primary_missed"] == ["escaped", "elsewhere"]
    assert summary["flagged"] == ["accused"]
    assert summary["should_failed"] == ["accused"]
    assert summary["toothless_judged"] == ["house.rule"]


def test_clauses_about_other_devices_are_told_apart() -> None:
    """What asks nothing on a CPU is named as such where it caught nothing, and is no finding."""
    ready = dataclasses.replace(READY, elsewhere=frozenset({"house.rule", "mask.golden"}))
    caught = TeethProgress(ready=ready, loaded=[entry("m")], results={"m": [failed("mask.golden")]})
    matrix = build_record(
        dataclasses.replace(caught, complete={"m"}),
        TeethOptions(targets=()),
        first=False,
        judged=(),
        seconds=0.0,
    )
    assert matrix["summary"]["elsewhere"] == ["house.rule"]
    assert exit_code(matrix) == 0
    assert (True, "not run in one process on a CPU: house.rule") in summary_lines(matrix)


@pytest.mark.parametrize(
    "matrix",
    [
        record((entry("m"), [passed("mask.golden"), failed("shape.output")])),
        record((entry("m"), [passed("mask.golden")])),
        record((correct(), [failed("mask.golden")])),
        record((entry("m"), [failed("mask.golden")]), judged=("shape.output",)),
        record((entry("m"), [failed("mask.golden")]), unheard=(entry("n"),)),
    ],
    ids=["primary missed", "missed", "flagged", "toothless", "not run"],
)
def test_each_finding_alone_is_red(matrix: dict[str, object]) -> None:
    """No finding hides behind the others."""
    assert exit_code(matrix) == 1


def test_a_should_alone_flags_nothing() -> None:
    """A correct candidate may fail a SHOULD clause: it is told, and nothing is red."""
    matrix = record((correct(), [failed("mask.no-leak", "SHOULD"), passed("mask.golden")]))
    assert exit_code(matrix) == 0
    assert matrix["summary"]["should_failed"] == ["right"]


def test_a_may_catches_nothing() -> None:
    """A failed MAY clause is no catch."""
    matrix = record((entry("m"), [failed("house.rule", "MAY")]))
    assert matrix["summary"]["missed"] == ["m"]


def test_the_loudest_of_several_dtypes_counts() -> None:
    """A clause that fails in one dtype has failed, whatever the others say."""
    results = [passed("mask.golden"), failed("mask.golden"), passed("mask.golden")]
    (row,) = record((entry("m"), results))["mistakes"]
    assert row["clauses"] == {"mask.golden": "failed"}


def test_the_harness_own_fault_is_exit_3() -> None:
    """An error of the harness is told apart from a mistake that escapes."""
    matrix = record((entry("m"), [failed("mask.golden"), result("error", "shape.output")]))
    assert exit_code(matrix) == 3
    assert matrix["summary"]["errors"] == ["m"]


def test_an_interrupt_is_exit_130() -> None:
    """Ctrl-C wins over whatever was found before."""
    matrix = record((entry("m"), [passed("mask.golden")]), interrupted=True)
    assert exit_code(matrix) == 130


def test_what_has_no_primary_clause_is_caught_by_any() -> None:
    """A candidate that is only known to be broken needs no certain clause."""
    matrix = record((entry("m", primary=""), [failed("shape.output")]))
    assert exit_code(matrix) == 0
