"""The table of a module's exports: verdicts, failed clauses, who is to blame."""

from __future__ import annotations

import io
from typing import Any

from conformance.views.tool_texts import show_exports


def row(opset: int, verdict: str, **more: Any) -> dict[str, Any]:
    common = {"exporter": "legacy", "opset": opset, "path": f"legacy-{opset}.onnx"}
    return {**common, "verdict": verdict, "reason": "because", "failed": [], "blame": None, **more}


def shown(*rows: dict[str, Any]) -> str:
    report = {
        "module": {"target": "m.py:layer", "inputs": {"x": {"shape": [2, 5, 8]}}, "source": "s.py"},
        "exports": list(rows),
        "candidates": [],
        "profile": "quick",
        "seed": 0,
        "seconds": 1.5,
        "interrupted": False,
    }
    file = io.StringIO()
    show_exports(report, file)
    return file.getvalue()


def test_a_row_an_export() -> None:
    """Each export has its verdict, the clauses that failed and the step with its stage."""
    blame = {"step": "source", "stage": "scores"}
    text = shown(
        row(18, "conforms", failed=["shape.empty-query"]),
        row(20, "fails", failed=["numerics.golden"], blame=blame),
        row(23, "unsupported"),
    )
    lines = text.splitlines()
    assert any("conforms" in line and "SHOULD: shape.empty-query" in line for line in lines)
    assert any("numerics.golden" in line and "source (scores)" in line for line in lines)
    assert lines[-1].startswith("3 exports: 1 conforms, 1 fails, 1 unsupported")
    assert "m.py:layer exported with x [2, 5, 8]" in text
    assert "1 export: 1 conforms" in shown(row(18, "conforms"))


def test_exports_that_fail_alike_are_told_once() -> None:
    """What an exporter says at two opsets is said once, with both."""
    text = shown(row(18, "not-exported"), row(20, "not-exported"), row(23, "conforms"))
    assert text.count("because") == 1
    assert "legacy at opset 18, 20: not-exported, because" in text
