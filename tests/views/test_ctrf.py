from __future__ import annotations

import json
from typing import Any

import pytest
from view_records import EVERY, RECORDS, of, validator

from conformance.views.ctrf import render_ctrf

SCHEMA = validator("ctrf-schema-0.0.json")


def read(report: dict[str, Any]) -> dict[str, Any]:
    """The document, which the schema of CTRF accepts."""
    document: dict[str, Any] = json.loads(render_ctrf(report), parse_constant=pytest.fail)
    SCHEMA.validate(document)
    return document


@pytest.mark.parametrize("name", RECORDS)
def test_documents_are_valid(name: str) -> None:
    """Every record gives a valid document, whose summary counts its tests."""
    results = read(RECORDS[name])["results"]
    summary, tests = results["summary"], results["tests"]
    assert summary["tests"] == len(tests)
    for status in ("passed", "failed", "skipped", "pending", "other"):
        assert summary[status] == sum(test["status"] == status for test in tests)
    assert results["environment"]["healthy"] == (summary["failed"] == 0)


def test_statuses_are_mapped_honestly() -> None:
    """Not applicable is skipped; a tolerated failure is other, with its own word."""
    tests = {
        test["name"]: (test["status"], test["rawStatus"])
        for test in read(of(*EVERY))["results"]["tests"]
    }
    assert tests["mask.golden[float32]"] == ("failed", "failed")
    assert tests["shape.output[float32]"] == ("passed", "passed")
    assert tests["mask.bias[float32]"] == ("skipped", "not-applicable")
    assert tests["mask.strided[float32]"] == ("other", "expected-failure")
    assert tests["mask.causal[float32]"] == ("failed", "untestable")
    assert tests["mask.window[float32]"] == ("failed", "unexpected-pass")
    assert tests["numerics.golden[float32]"] == ("failed", "error")
    assert tests["mask.no-leak[float32]"] == ("other", "failed")
