"""The command as a user starts it, and the report that it writes."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, Final

COMMAND: Final = [sys.executable, "-Im", "conformance"]
FEW: Final = ("--profile", "quick", "--only", "shape.output", "--only", "numerics.golden")


def record(folder: Path) -> Any:
    """The report that was written."""
    return json.loads((folder / "out.json").read_text(encoding="utf-8"))
