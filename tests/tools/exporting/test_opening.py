"""Modules are found by target, and built again with the weights that they had."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from _paths import CHECKOUT

from conformance.adapters.source import source_of
from conformance.errors import UsageError
from conformance.targets.resolving import object_of
from conformance.tools.exporting.job import keep_source, module_of

FILE = CHECKOUT / "tests" / "support" / "modules_to_export.py"


@pytest.mark.parametrize("name", ["instance", "Itself", "multihead"])
def test_instance_class_and_function(name: str) -> None:
    """An instance is taken as it is, a class is constructed, a function called; in eval mode."""
    module = module_of(f"{FILE}:{name}")
    assert isinstance(module, torch.nn.Module)
    assert not module.training


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("number", "is 3: name a torch.nn.Module"),
        ("Needy", "Needy needs secret to be constructed"),
        ("raising", "ValueError: not today"),
        ("with_arguments", "takes arguments: name a torch.nn.Module"),
        ("candidate", "is a declared candidate, which holds no module"),
        ("nothing", "has no attribute 'nothing'"),
        ("", "names no object"),
    ],
)
def test_what_is_no_module(name: str, sentence: str) -> None:
    """Bad targets are told in one sentence."""
    with pytest.raises(UsageError, match=sentence.replace("(", r"\(")):
        module_of(f"{FILE}:{name}" if name else str(FILE))


def test_kept_source_has_the_same_weights(tmp_path: Path) -> None:
    """The file beside the graphs builds the module with the weights that were exported."""
    module = module_of(f"{FILE}:multihead")
    script = keep_source(f"{FILE}:multihead", module, tmp_path)
    again = object_of(f"{script}:module")()
    assert source_of(again, "again").module is again
    for name, tensor in module.state_dict().items():
        assert torch.equal(tensor, again.state_dict()[name])


@pytest.mark.parametrize("name", ["\\users", 'a"""b'])
def test_kept_source_compiles_in_any_folder(tmp_path: Path, name: str) -> None:
    """A folder's name with a backslash or quotes in it is no part of the code."""
    folder = tmp_path / name
    folder.mkdir()
    script = keep_source(f"{FILE}:multihead", module_of(f"{FILE}:multihead"), folder)
    compile(script.read_text(encoding="utf-8"), str(script), "exec")


def test_kept_source_works_elsewhere(tmp_path: Path) -> None:
    """A target named in another folder, by a dotted name, is found again."""
    (tmp_path / "mine.py").write_text("from torch import nn\n\nlayer = nn.Linear(2, 3)\n")
    out = tmp_path / "out"
    out.mkdir()
    keep = (
        "from pathlib import Path\n"
        "from conformance.tools.exporting.job import keep_source, module_of\n"
        f"print(keep_source('mine:layer', module_of('mine:layer'), Path({str(out)!r})))\n"
    )
    subprocess.run([sys.executable, "-c", keep], cwd=tmp_path, check=True)
    environment = {**os.environ, "PYTHONPATH": str(out)}
    code = "import source; print(tuple(source.module().weight.shape))"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=out, check=True, capture_output=True, env=environment
    )
    assert done.stdout.decode().strip() == "(3, 2)"


def test_another_module_by_now(tmp_path: Path) -> None:
    """Weights that no longer fit are told."""
    script = keep_source(f"{FILE}:multihead", torch.nn.Linear(2, 3), tmp_path)
    with pytest.raises(UsageError, match="is no longer what was exported"):
        object_of(f"{script}:module")()
