"""Reports of candidates that fail, for tests of what is made of them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from textwrap import dedent
from typing import Any, Final

from examples import SMALL

from conformance.identification.opening import resolve_one
from conformance.running.runner import CandidateRun

HEAD: Final = "import torch\nimport conformance\n\n"
# Runs each script where nothing of the project can be imported, one after the other.
ALONE = """
import contextlib
import io
import json
import runpy
import sys


class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("conformance", "reference", "hypothesis", "rich", "click"):
            raise ImportError(f"{name} must not be needed")


sys.meta_path.insert(0, Blocked())
outcomes, runs = {}, json.loads(sys.argv[1])
for name, arguments in runs.items():
    sys.modules.pop("conformance", None)
    sys.argv = arguments
    output, code = io.StringIO(), 0
    with contextlib.redirect_stdout(output):
        try:
            runpy.run_path(arguments[0], run_name="__main__")
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else 1
    outcomes[name] = (code, output.getvalue())
print(json.dumps(outcomes))
"""
# A file, the clause it breaks, what mends it (a text and its replacement).
BrokenFile = tuple[str, str, tuple[str, str]]
# Mistakes whose failures any kind of script shows.
EITHER_WAY: Final[dict[str, BrokenFile]] = {
    "law": (
        """
        @conformance.core()
        def mine(query, key, value):
            row = torch.arange(query.shape[-2]).reshape(-1, 1) * 0.1
            query = query + row
            return (query @ key.mT * query.shape[-1] ** -0.5).softmax(-1) @ value
        """,
        "equivariance.queries",
        ("* 0.1", "* 0.0"),
    ),
    "exception": (
        """
        @conformance.core(masks=["keep"])
        def mine(query, key, value, *, keep=None):
            scores = query @ key.mT * query.shape[-1] ** -0.5
            if keep is not None:
                scores = scores.masked_fill(keep.view(-1), 1)
            return scores.softmax(-1) @ value
        """,
        "mask.golden",
        ("scores.masked_fill(keep.view(-1), 1)", 'scores.masked_fill(~keep, float("-inf"))'),
    ),
}


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


def run_alone(folder: Path, scripts: dict[str, list[str]]) -> dict[str, tuple[int, str]]:
    """Exit code and output of scripts, with their arguments, where no project can be imported."""
    (folder / "alone.py").write_text(ALONE)
    done = subprocess.run(
        [sys.executable, "-I", "alone.py", json.dumps(scripts)],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert not done.stderr, done.stderr
    outcomes: dict[str, tuple[int, str]] = json.loads(done.stdout)
    return outcomes
