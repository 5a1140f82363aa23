"""Records of pretended runs of the catalogue, for tests of what is done with them."""

from __future__ import annotations

from typing import Any

from records import result

from conformance.base.results import ClauseResult
from conformance.running.workers.messages import Ready
from conformance.tools.teeth.jobs import LoadedEntry, TeethOptions
from conformance.tools.teeth.record import TeethProgress, build_record

READY = Ready(
    environment={"python": "3.11", "torch": "2.6"},
    specification="0123456789ab",
    sentences={
        "shape.output": "One row a query.",
        "mask.golden": "A masked key is absent.",
        "mask.no-leak": "Nothing leaks.",
        "house.rule": "Somebody else's.",
    },
    levels={
        "shape.output": "MUST",
        "mask.golden": "MUST",
        "mask.no-leak": "SHOULD",
        "house.rule": "MAY",
    },
    origins={"house.rule": "thirdparty"},
)
FAILS = {"status": "failed", "reason": "off by <1>"}


def entry(name: str, **more: Any) -> LoadedEntry:
    """A mistake whose primary clause is mask.golden."""
    defaults: dict[str, Any] = {
        "name": name,
        "target": "",
        "kind": "core",
        "declaration": {},
        "gauge": "",
        "deviations": (),
        "expected": (),
        "planned": (),
        "sentence": f"{name} is <wrong>.",
        "fix": "do it right",
        "primary": "mask.golden",
        "also": (),
        "origin": "tests",
        "correct": False,
    }
    return LoadedEntry(**{**defaults, **more})


def correct(name: str = "right") -> LoadedEntry:
    """A correct candidate."""
    return entry(name, correct=True, primary="", sentence="")


def failed(slug: str, level: str = "MUST") -> ClauseResult:
    """A clause that caught something."""
    return result("failed", slug, level, reason="off by <1>")


def passed(slug: str) -> ClauseResult:
    """A clause that let it pass."""
    return result("passed", slug)


def record(
    *pairs: tuple[LoadedEntry, list[ClauseResult]],
    judged: tuple[str, ...] = (),
    unheard: tuple[LoadedEntry, ...] = (),
    **more: Any,
) -> dict[str, Any]:
    """The record of entries with their results."""
    caught = TeethProgress(
        ready=READY,
        loaded=[*(mistake for mistake, _ in pairs), *unheard],
        results={mistake.name: results for mistake, results in pairs},
        complete={mistake.name for mistake, _ in pairs},
        interrupted=more.pop("interrupted", False),
    )
    options = TeethOptions(targets=(), profile="quick")
    first = more.pop("first", False)
    return build_record(caught, options, first=first, judged=judged, seconds=65.0)


GOOD = record(
    (entry("grave"), [failed("mask.golden"), failed("shape.output"), passed("mask.no-leak")]),
    (entry("slight", primary="mask.no-leak"), [failed("mask.no-leak", "SHOULD")]),
    (correct(), [passed("mask.golden"), passed("shape.output")]),
)
BAD = record(
    (entry("escaped"), [passed("mask.golden"), passed("shape.output")]),
    (entry("elsewhere"), [passed("mask.golden"), failed("shape.output")]),
    (correct("accused"), [failed("mask.golden"), failed("mask.no-leak", "SHOULD")]),
    judged=("shape.output", "house.rule"),
)
