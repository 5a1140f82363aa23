"""A pretended distribution of a third party: a folder that a path can name, with entry points."""

from __future__ import annotations

import re
from pathlib import Path

from _paths import CHECKOUT
from workspaces import write

DOCUMENT = CHECKOUT / "docs" / "extending.md"
CLAUSES = "attention_conformance.clauses"
MISTAKES = "attention_conformance.mistakes"


def example() -> str:
    """The module that docs/extending.md shows."""
    block = re.search(
        r"^```python\n(# .*?)^```$", DOCUMENT.read_text("utf-8"), re.MULTILINE | re.DOTALL
    )
    assert block
    return block[1]


def distribution(folder: Path, module: str, groups: dict[str, str]) -> Path:
    """Lay out ``thirdparty 1.0`` below a folder; ``groups`` are lines of its entry points."""
    points = "".join(f"[{group}]\n{line}\n" for group, line in groups.items())
    write(
        folder,
        {
            "thirdparty.py": module,
            "thirdparty-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: thirdparty\n"
            "Version: 1.0\n",
            "thirdparty-1.0.dist-info/entry_points.txt": points,
        },
    )
    return folder
