from __future__ import annotations

import json
from typing import Any

import pytest
from records import result
from view_records import (
    EVERY,
    FAILED,
    LOCATED,
    RECORDS,
    SHOULD_FAILED,
    STALE,
    candidate,
    of,
    record,
    validator,
)

from conformance.views.sarif import FINGERPRINT, render_sarif

SCHEMA = validator("sarif-2.1.0-rtm.5.json")


def read(report: dict[str, Any]) -> dict[str, Any]:
    """The one run of the log, which the schema of SARIF 2.1.0 accepts."""
    log = json.loads(render_sarif(report), parse_constant=pytest.fail)
    SCHEMA.validate(log)
    (run,) = log["runs"]
    rules = [rule["id"] for rule in run["tool"]["driver"]["rules"]]
    assert len(set(rules)) == len(rules)
    assert all(rules[finding["ruleIndex"]] == finding["ruleId"] for finding in run["results"])
    return dict(run)


@pytest.mark.parametrize("name", RECORDS)
def test_logs_are_valid(name: str) -> None:
    """Every record gives a valid log, and no two results have one fingerprint."""
    prints = [
        finding["partialFingerprints"][FINGERPRINT] for finding in read(RECORDS[name])["results"]
    ]
    assert len(set(prints)) == len(prints)


def test_levels_follow_the_clauses() -> None:
    """MUST is an error, SHOULD a warning; what passed or does not apply is no result."""
    kinds = {
        (finding["ruleId"], finding["properties"]["status"]): (finding["kind"], finding["level"])
        for finding in read(of(*EVERY))["results"]
    }
    assert kinds == {
        ("mask.golden", "failed"): ("fail", "error"),
        ("mask.strided", "expected-failure"): ("fail", "note"),
        ("mask.causal", "untestable"): ("fail", "error"),
        ("mask.window", "unexpected-pass"): ("fail", "error"),
        ("mask.no-leak", "failed"): ("fail", "warning"),
        ("mask.leak", "untestable"): ("fail", "warning"),
    }


def test_an_expected_failure_is_suppressed() -> None:
    """With the reason that the user gave."""
    (finding,) = read(of(result("expected-failure", reason="known")))["results"]
    assert finding["suppressions"] == [
        {"kind": "external", "status": "accepted", "justification": "known"}
    ]


def test_rules_are_the_clauses() -> None:
    """Each clause of the record is a rule with help as text and markdown, and its level."""
    report = of(FAILED, SHOULD_FAILED, result(slug="shape.output"))
    report["clauses"] = {
        "mask.golden": {
            "level": "MUST (core), SHOULD (layer)",
            "sentence": "A masked key is absent.",
            "source": "attn_mask of ONNX",
            "counterfactual": "no mask",
        }
    }
    rules = {rule["id"]: rule for rule in read(report)["tool"]["driver"]["rules"]}
    assert set(rules) == {"mask.golden", "mask.no-leak", "shape.output"}
    rule = rules["mask.golden"]
    assert rule["name"] == "MaskGolden"
    assert rule["shortDescription"]["text"] == "A masked key is absent."
    assert rule["defaultConfiguration"]["level"] == "error"
    assert rules["mask.no-leak"]["defaultConfiguration"]["level"] == "warning"
    assert "Source: attn_mask of ONNX." in rule["help"]["text"]
    assert "- Source: attn\\_mask of ONNX" in rule["help"]["markdown"]
    assert "tell apart: no mask" in rule["help"]["text"]
    assert "helpUri" not in rule


def test_help_is_linked_where_the_documentation_is_published() -> None:
    """A distribution that says where its documentation is gives every rule a link."""
    report = of(FAILED)
    report["tool"]["documentation"] = "https://docs.example/"
    driver = read(report)["tool"]["driver"]
    assert driver["informationUri"] == "https://docs.example/"
    page = "https://docs.example/docs/specification.html"
    assert driver["rules"][0]["helpUri"] == f"{page}#mask-golden-must"


def test_the_strictest_level_is_the_rule_s() -> None:
    """A layer's SHOULD does not weaken the rule that is a core's MUST."""
    weak = candidate([result("failed", level="SHOULD")], "weak", kind="layer")
    report = record(weak, candidate([FAILED], "strong"))
    (rule,) = read(report)["tool"]["driver"]["rules"]
    assert rule["defaultConfiguration"]["level"] == "error"
    assert [finding["level"] for finding in read(report)["results"]] == ["warning", "error"]


def test_results_are_at_the_candidate() -> None:
    """At its file and line from the repository's root, and under its name."""
    (finding,) = read(record(candidate([FAILED], location=LOCATED)))["results"]
    (place,) = finding["locations"]
    assert place["physicalLocation"] == {
        "artifactLocation": {"uri": "src/my%20attn.py", "uriBaseId": "%SRCROOT%"},
        "region": {"startLine": 12},
    }
    assert place["logicalLocations"][0]["name"] == "mine"


PLACES: dict[str, tuple[dict[str, Any], dict[str, Any] | None]] = {
    "an older record": ({"target": "a/b.py:x"}, {"uri": "a/b.py", "uriBaseId": "%SRCROOT%"}),
    "a graph": ({"target": "a/b.onnx"}, {"uri": "a/b.onnx", "uriBaseId": "%SRCROOT%"}),
    "on Windows": ({"target": "a\\b.py:x"}, {"uri": "a/b.py", "uriBaseId": "%SRCROOT%"}),
    "elsewhere": ({"target": "/opt/é.py:x"}, {"uri": "file:///opt/%C3%A9.py"}),
    "on a drive": ({"target": "C:\\x\\b.py:x"}, {"uri": "file:///C:/x/b.py"}),
    "a module": ({"target": "package.module:x"}, None),
    "a name": ({"target": "registered"}, None),
}


@pytest.mark.parametrize(("more", "artifact"), PLACES.values(), ids=PLACES.keys())
def test_places_without_a_location(more: dict[str, Any], artifact: dict[str, Any] | None) -> None:
    """The target may tell the file; where nothing does, the name alone is the place."""
    (finding,) = read(record(candidate([FAILED], **more)))["results"]
    (place,) = finding["locations"]
    assert place.get("physicalLocation", {}).get("artifactLocation") == artifact
    assert place["logicalLocations"][0]["fullyQualifiedName"] == more["target"]


def test_fingerprints_are_stable() -> None:
    """Neither another line, another message nor another neighbour changes a fingerprint."""

    def prints(*entries: dict[str, Any]) -> set[str]:
        return {
            finding["partialFingerprints"][FINGERPRINT]
            for finding in read(record(*entries))["results"]
        }

    moved = candidate([FAILED.replace(reason="again")], location={"file": "b.py", "line": 99})
    assert prints(candidate([FAILED], location=LOCATED)) == prints(moved)
    assert prints(moved) < prints(candidate([SHOULD_FAILED], "other"), moved)


def test_what_is_no_finding_is_a_notification() -> None:
    """A failing harness, an interrupt and a contradicted declaration are no results."""
    run = read(of(result("error", reason="the golden is ill"), interrupted=True))
    (invocation,) = run["invocations"]
    assert invocation["executionSuccessful"] is False
    broken, interrupted = invocation["toolExecutionNotifications"]
    assert "the golden is ill" in broken["message"]["text"]
    assert broken["associatedRule"]["id"] == "mask.golden"
    assert interrupted["descriptor"]["id"] == "run.interrupted"
    warned = read(record(candidate([FAILED], warnings=["it lies"])))["invocations"][0]
    assert warned["executionSuccessful"] is True
    assert warned["toolConfigurationNotifications"][0]["message"]["text"] == "mine: it lies"


def test_a_red_run_has_a_result() -> None:
    """A stale expectation, and a candidate of which nothing ran, have rules of their own."""
    stale = read(record(candidate([result()]), stale=[STALE]))["results"]
    assert [(finding["ruleId"], finding["level"]) for finding in stale] == [
        ("expectation.stale", "error")
    ]
    assert [finding["ruleId"] for finding in read(of())["results"]] == ["verdict"]
    assert not read(of(result()))["results"]


def test_messages_have_no_links() -> None:
    """``[…](…)`` of a message is not taken for a link by viewers."""
    text = read(RECORDS["nasty"])["results"][0]["message"]["text"]
    assert "](" not in text
