"""A repository of a pretended user who gates its attention: its files, and what happens to them."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from _paths import CHECKOUT
from workspaces import write

# The clauses that its gate asks, so that a run takes seconds.
ASKED: Final = ("--profile", "quick", "--only", "mask.single-key", "--only", "mask.golden")
_KERNEL: Final = """
import conformance


@conformance.core(masks=["keep"], empty_rows="any")
def my_kernel(query, key, value, *, keep=None):
    scores = query @ key.mT / query.shape[-1] ** 0.5
    if keep is not None:
        scores = scores.masked_fill({hidden}, {fill})
    return scores.softmax(-1) @ value
"""
# It hides keys with a finite number, as is known; then it is mended, hides the wrong keys, or
# hides them with another number.
KNOWN: Final = _KERNEL.format(hidden="~keep", fill="-1e4")
MENDED: Final = _KERNEL.format(hidden="~keep", fill='float("-inf")')
REGRESSED: Final = _KERNEL.format(hidden="keep", fill="-1e4")
DIFFERENT: Final = _KERNEL.format(hidden="~keep", fill="-1e6")
EXPECTED: Final = """\
# Ours: ask the kernel team.

# Seen in March.
[[expected]]
clause = "mask.single-key"
reason = "hidden keys are filled with -1e4"
kind = "value"
diagnosis = "mask-fill-1e4"
expires = 2099-03-31
"""


def make(folder: Path, kernel: str = KNOWN, expected: str = EXPECTED) -> None:
    """Write the repository: its attention, what it knows to fail, its workflow."""
    workflow = (CHECKOUT / "docs" / "ci" / "github-workflow.yml").read_text(encoding="utf-8")
    write(
        folder,
        {
            "attention.py": kernel,
            "expected-failures.toml": expected,
            ".github/workflows/attention.yml": workflow,
        },
    )


def surroundings(folder: Path) -> Mapping[str, str]:
    """The environment of a shell that finds the programs under test, in a folder of their own."""
    folder.mkdir(exist_ok=True)
    for name, options in {"conformance": "-m conformance", "python": ""}.items():
        script = folder / name
        script.write_text(f'#!/bin/sh\nexec "{sys.executable}" {options} "$@"\n', encoding="utf-8")
        script.chmod(0o755)
    removed = ("GITHUB_", "PRE_COMMIT", "TOX_", "COLUMNS")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(removed)}
    path = os.pathsep.join([str(folder), kept.get("PATH", "")])
    return {**kept, "PATH": path, "OMP_NUM_THREADS": "1", "NO_COLOR": "1"}
