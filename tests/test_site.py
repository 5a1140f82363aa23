"""How the site of the documentation searches."""

from __future__ import annotations

import json
import shutil
import subprocess

import pytest
from _paths import CHECKOUT

SCORER = (CHECKOUT / "docs" / "_static" / "search_scorer.js").read_text(encoding="utf-8")


@pytest.mark.skipif(shutil.which("node") is None, reason="there is no node to run JavaScript with")
@pytest.mark.parametrize(
    ("asked", "wanted"),
    [("tolerance", "docs/tolerance"), ("Kernels", "docs/kernels"), ("pytest", "docs/start-pytest")],
)
def test_a_page_that_is_called_as_what_is_asked_comes_first(asked: str, wanted: str) -> None:
    """The page of that name wins over pages that Sphinx finds better; measurements come last."""
    found = [["benchmarks/README", "", "", None, 15], ["docs/faq", "", "", None, 15]]
    found.append([wanted, "", "", None, 5])
    script = (
        f"globalThis.location = {{search: '?q={asked}'}};\n{SCORER}\n"
        f"console.log(JSON.stringify({json.dumps(found)}.map(Scorer.score)))"
    )
    done = subprocess.run(["node", "-e", script], capture_output=True, text=True, check=True)  # noqa: S607 (found above)
    costs, questions, named = json.loads(done.stdout)
    assert named > questions > costs
    assert (CHECKOUT / f"{wanted}.md").exists()
