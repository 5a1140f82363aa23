"""The figures of docs/: ``python benchmarks/figures.py [FOLDER]`` writes them to docs/pictures.

They are made of the candidates, of bounds and of the tables in docs/tolerance-measured.md, and are
the same each time: a test compares. The pictures of clauses are made by ``python -m
conformance.tools.specification --pictures docs/pictures``.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

CHECKOUT: Final = Path(__file__).resolve().parent.parent
sys.path.append(str(CHECKOUT))  # for candidates: installed packages keep winning

from drawing import FIGURES  # noqa: E402 (after the path is set)


def main() -> int:
    """Write every figure."""
    folder = Path(sys.argv[1]) if sys.argv[1:] else CHECKOUT / "docs" / "pictures"
    for name, figure in FIGURES.items():
        (folder / f"{name}.svg").write_text(figure(), encoding="utf-8", newline="\n")
        print(folder / f"{name}.svg")
    return 0


if __name__ == "__main__":
    sys.exit(main())
