"""Results and loaded candidates for tests of what is done with them."""

from __future__ import annotations

from typing import Any

from conformance.base.expected import ExpectedFailure
from conformance.base.results import ClauseResult, Status, Violation
from conformance.running.clause_run import PlannedClause
from conformance.running.workers.messages import Loaded, Ready

READY = Ready(
    environment={"python": "3.11", "torch": "2.6", "device": "cpu"},
    specification="0123456789ab",
    sentences={
        "mask.golden": "A masked key is absent.",
        "mask.no-leak": "Nothing leaks.",
        "shape.output": "One row a query.",
    },
)
PROBLEM = {
    "geometry": {
        "batch": 1,
        "num_heads": 2,
        "num_kv_heads": 2,
        "query_length": 3,
        "key_length": 4,
        "head_size": 5,
        "value_head_size": 6,
    },
    "dtype": "float32",
    "seed": 7,
    "values": "normal",
    "mask": {"pattern": "padding", "form": "keep", "shape": "B11K", "finite_bias": False},
    "causal": True,
}


def result(
    status: Status = "passed", slug: str = "mask.golden", level: str = "MUST", **more: Any
) -> ClauseResult:
    """One result; a failed one has a violation of kind ``value``."""
    if status == "failed":
        more.setdefault("violation", Violation(kind="value", message="off by 1"))
    return ClauseResult(
        id=slug, family=slug.partition(".")[0], level=level, status=status, seconds=0.5, **more
    )


def loaded(name: str = "mine", **more: Any) -> Loaded:
    """One candidate."""
    defaults: dict[str, Any] = {
        "name": name,
        "target": f"attn.py:{name}",
        "kind": "core",
        "declaration": {"kind": "core", "assumptions": []},
        "planned": (
            PlannedClause(
                id="mask.golden", family="mask", level="MUST", dtype="float32", device="cpu"
            ),
        ),
    }
    return Loaded(**{**defaults, **more})


def expected(clause: str = "mask.golden", **more: Any) -> ExpectedFailure:
    """One expectation."""
    return ExpectedFailure(clause=clause, reason="known", **more)
