"""Where the checkout is, for tests of what is not in the wheel."""

from __future__ import annotations

import sys
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[2]


def append_checkout() -> None:
    """Make ``candidates`` importable, last on the path: installed packages keep winning."""
    if str(CHECKOUT) not in sys.path:
        sys.path.append(str(CHECKOUT))
