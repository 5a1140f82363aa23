"""``check --definition``, and a replay of its record."""

from __future__ import annotations

from pathlib import Path

import pytest
from _paths import CHECKOUT
from workspaces import KERNEL, write

from conformance.__main__ import run

pytestmark = pytest.mark.usefixtures("warm_workers")

FILE = CHECKOUT / "candidates" / "definitions" / "gqa_paged_decode_h4_kv2_d8_ps4.json"
FIRST_PAGE = """
import torch
def run(q, k_cache, v_cache, kv_indptr, kv_indices, kv_last_page_len, sm_scale):
    return torch.zeros_like(q), q.new_zeros(q.shape[:2])
"""


def test_a_definition_is_kept_for_the_replay(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What fails by a definition fails again when the record is replayed."""
    write(folder, {"solution.py": FIRST_PAGE})
    options = ["--definition", str(FILE), "--only", "paged.golden", "--profile", "smoke"]
    assert run(["check", "solution.py:run", *options, "--no-explain", "--json", "a.json"]) == 1
    assert run(["replay", "a.json", "--trust"]) == 1
    assert "1 still fails" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["attn.py:my_kernel", "--definition", "no.json"], "the definition no.json cannot be read"),
        (["attn.py", "--definition", str(FILE)], "attn.py is"),
        (["attn.py:my_kernel", "--definition", str(FILE)], "takes neither the definition's inputs"),
        (["attn.py:my_kernel", "--definition", str(FILE), "--isolated"], "without --isolated"),
        (["model.onnx", "--definition", str(FILE)], "can be given for functions only"),
    ],
)
def test_what_no_definition_fits_is_refused(
    arguments: list[str], sentence: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One sentence and exit 2 for a file or a target that cannot be."""
    write(folder, {"attn.py": KERNEL, "model.onnx": ""})
    assert run(["check", *arguments]) == 2
    err = capsys.readouterr().err
    assert sentence in err
    assert err.count("\n") == 1
