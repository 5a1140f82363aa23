"""Little libraries and records of a survey, for its tests."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

FILE = '''"""{name}: what is judged of it."""

from torch import nn

REQUIREMENTS = {requirements!r}
CANDIDATES = {candidates!r}
PROMISES = {promises!r}
DECIDED = {decided!r}


def layer():
    """A layer."""
    return nn.MultiheadAttention(4, 2)
'''


def library_file(
    folder: Path,
    name: str,
    requirements: list[str] | None = None,
    candidates: Mapping[str, str] | None = None,
    promises: tuple[Mapping[str, Any], ...] = (),
    decided: tuple[Mapping[str, Any], ...] = (),
) -> Path:
    """Write the file of a library with one layer, and return it."""
    path = folder / f"survey_{name}.py"
    text = FILE.format(
        name=name,
        requirements=["torch==2.13.0"] if requirements is None else requirements,
        candidates=candidates or {"layer": "identify"},
        promises=promises,
        decided=decided,
    )
    path.write_text(text, encoding="utf-8")
    return path


def clause(slug: str, **more: Any) -> dict[str, Any]:
    """A clause that a candidate fails."""
    return {
        "id": slug,
        "level": "MUST",
        "status": "failed",
        "kind": "value",
        "reason": "wrong",
        "cause": "",
        **more,
    }


def candidate(name: str, verdict: str = "conforms", **more: Any) -> dict[str, Any]:
    """One candidate of a record."""
    return {
        "name": name,
        "way": "check",
        "kind": "core",
        "verdict": verdict,
        "reason": "",
        "declared": {"masks": ["keep"], "empty_rows": "zeros"},
        "worst": {"clause": "numerics.golden", "margin": 0.25},
        "passed": "mask.golden numerics.golden",
        "clauses": [],
        **more,
    }


def record(library: str, *candidates: dict[str, Any], **more: Any) -> dict[str, Any]:
    """The record of a library."""
    return {
        "survey": 1,
        "library": library,
        "distribution": library,
        "version": "1.0",
        "requirements": [f"{library}==1.0"],
        "date": "2026-11-24",
        "tool": "0.1.0",
        "python": "3.11",
        "torch": "2.13.0",
        "status": "judged",
        "reason": "",
        "seconds": 1.0,
        "about": f"{library}: what is judged of it.",
        "promises": [],
        "candidates": list(candidates),
        **more,
    }
