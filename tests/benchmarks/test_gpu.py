"""The page that a GPU run writes: hardware, versions, verdicts, failures; or one sentence."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from workspaces import KERNEL, UNSCALED, write

from benchmarks import gpu

pytestmark = pytest.mark.usefixtures("warm_workers")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device here")
def test_without_a_gpu_it_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    """One sentence on standard error, exit code 2."""
    assert gpu.main([]) == 2
    out, err = capsys.readouterr()
    assert not out
    assert err.startswith("gpu: cuda cannot be used here: torch sees no device but the CPU here")
    assert err.count("\n") == 1


def test_the_page_has_everything_to_record(folder: Path) -> None:
    """A verdict for each candidate, the versions, and each failure with its sentence."""
    write(folder, {"attn.py": KERNEL + UNSCALED})
    words = ["--device", "cpu", "--profile", "quick", "--only", "numerics.golden", "attn.py"]
    assert gpu.main([*words, "--markdown", "page.md"]) == 1
    page = (folder / "page.md").read_text(encoding="utf-8")
    assert page.startswith("# quick profile on cpu, ")
    for line in ("- hardware: ", "- driver: ", "- versions: torch ", "- specification: "):
        assert line in page
    assert "| my_kernel | conforms | 1 | 0 | 0 |" in page
    assert "- unscaled numerics.golden [MUST, float32] failed: " in page


def test_what_cannot_be_checked_is_exit_code_2(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The targets that could be checked are on the page; a page without a folder is told first."""
    write(folder, {"attn.py": KERNEL})
    words = ["--device", "cpu", "--profile", "quick", "--only", "numerics.golden", "attn.py"]
    assert gpu.main([*words, "missing.py", "--markdown", "page.md"]) == 2
    assert "| my_kernel | conforms |" in (folder / "page.md").read_text(encoding="utf-8")
    assert "missing.py" in capsys.readouterr().err
    assert gpu.main([*words, "--markdown", "nowhere/page.md"]) == 2
    assert "nowhere/page.md cannot be written" in capsys.readouterr().err
