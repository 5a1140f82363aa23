"""Reports of candidates that fail, for tests of what is made of them."""

from __future__ import annotations

import json
from pathlib import Path
from textwrap import dedent
from typing import Any, Final

from examples import SMALL

from conformance.running.runner import CandidateRun
from conformance.targets.resolving import resolve_one

HEAD: Final = "import torch\nimport conformance\n\n"


def failing(target: str, slug: str) -> dict[str, Any]:
    """The entry of a candidate whose clause has failed."""
    (candidate,) = resolve_one(target)
    run = CandidateRun(candidate, profile=SMALL, only=(slug,))
    results = [run.run(planned) for planned in run.planned()]
    (failed,) = [result for result in results if result.status == "failed"]
    return {
        "name": candidate.name,
        "target": candidate.target,
        "kind": candidate.shown_kind,
        "beside": None,
        "verdict": "fails",
        "clauses": [{**failed.as_json(), "requirement": "It holds."}],
    }


def report(path: Path, *candidates: dict[str, Any]) -> str:
    """Write the report of some candidates, and say where."""
    tool = {"name": "attention-conformance", "version": "0", "specification": "0123456789ab"}
    record = {"schema": 1, "tool": tool, "environment": {"torch": "2"}, "candidates": candidates}
    path.write_text(json.dumps(record), encoding="utf-8")
    return str(path)


def write_candidate(path: Path, text: str) -> str:
    """Write a file that declares ``mine``, and name it as a target."""
    path.write_text(HEAD + dedent(text), encoding="utf-8")
    return f"{path}:mine"
