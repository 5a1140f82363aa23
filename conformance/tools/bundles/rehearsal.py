"""Runs the script of a bundle once before anybody gets it: one that shows nothing is none."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Final

SHOWN: Final = "IT STILL FAILS"
NOT_ASKED: Final = "The candidate was not asked again: "
# Importing torch from a cold disk, and a candidate with all that it needs.
_LOADING: Final = 120.0


def why_not_shown(script: Path, timeout: float) -> str:
    """Why a script does not show the failure, though the candidate is as it was, or ""."""
    try:
        done = subprocess.run(  # noqa: S603 (our own script, in our own Python)
            [sys.executable, str(script)],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=2 * timeout + _LOADING,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return "asked by these calls alone it gives no answer"
    if SHOWN in done.stdout or "it still fails" in done.stderr:
        return ""
    told = [line for line in done.stdout.splitlines() if line.startswith(NOT_ASKED)]
    if told:
        return told[-1].removeprefix(NOT_ASKED)
    return "these calls alone do not show it: it needs more than they hold"
