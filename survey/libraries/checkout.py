"""Puts the checkout last on the path: for its ``candidates`` and ``benchmarks``."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[2]))
