from __future__ import annotations

from pathlib import Path

import pytest
from workspaces import KERNEL, write

from conformance.targets.target_strings import is_graph, split_site, why_foreign

PLAIN = (
    "import os\nimport torch\nfrom shutil import rmtree\n\n\nclass Layer(torch.nn.Module): ...\n"
)
FILES = {
    "attn.py": f"import os\nfrom shutil import rmtree\n{KERNEL}\n\ndef make():\n    return []\n",
    "plain.py": f"{PLAIN}\n\ndef wipe(): ...\n",
    "deploy.py": "def main(): ...\n",
    "broken.py": "import conformance\ndef (",
    "pkg/__init__.py": "from pkg.core import my_kernel\nfrom .core import *\n",
    "pkg/core.py": KERNEL,
    "round.py": "import conformance\nfrom round import more\n",
}


@pytest.fixture
def project(folder: Path) -> Path:
    """A working folder with files that declare candidates, and files that do not."""
    inside = folder / "project"
    write(inside, FILES)
    write(folder, {"outside.py": KERNEL})
    return inside


@pytest.mark.parametrize(
    "target",
    [
        "attn.py",
        "attn.py:my_kernel",
        "attn:my_kernel",
        "./attn.py:make",
        "plain.py:Layer",
        "pkg/core.py:my_kernel",
        "pkg.core:my_kernel",
        "pkg:my_kernel",
        "pkg:attend",
        "gone.py:my_kernel",
        "model.onnx",
    ],
)
def test_own(target: str, project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a file below the working folder declares, or hands on, is the user's."""
    monkeypatch.chdir(project)
    assert not why_foreign(target)


@pytest.mark.parametrize(
    ("target", "why"),
    [
        ("os:abort", "is no Python file below the working folder"),
        ("torch.hub:list", "is no Python file below the working folder"),
        ("json.tool:main", "is no Python file below the working folder"),
        ("no_such_module", "is no Python file below the working folder"),
        ("../outside.py:my_kernel", "is no Python file below the working folder"),
        ("a b:c", "is no Python file below the working folder"),
        ("deploy.py", "is a file that declares no candidate"),
        ("plain.py", "is a file that declares no candidate"),
        ("deploy.py:main", "is no candidate that its file declares"),
        ("broken.py:main", "lies in a file that cannot be read as Python"),
        ("plain.py:wipe", "is no candidate that its file declares"),
        ("plain.py:os.abort", "is no candidate that its file declares"),
        ("attn.py:os.abort", "is no candidate that its file declares"),
        ("attn.py:rmtree", "is no candidate that its file declares"),
        ("attn.py:torch.seed", "is no candidate that its file declares"),
        ("pkg:dedent", "is no candidate that its file declares"),
        ("round.py:more", "is no candidate that its file declares"),
    ],
)
def test_foreign(target: str, why: str, project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is installed, lies elsewhere, or is no candidate of a file, is not the user's."""
    monkeypatch.chdir(project)
    assert why_foreign(target) == why


@pytest.mark.parametrize(
    ("target", "file", "number"),
    [
        ("model.onnx", "model.onnx", None),
        ("a/Model.ONNX#12", "a/Model.ONNX", 12),
        ("odd#3.onnx", "odd#3.onnx", None),
        ("odd#3.onnx#0", "odd#3.onnx", 0),
        ("model.onnx#", "model.onnx#", None),
        ("model.onnx#-1", "model.onnx#-1", None),
        ("attn.py#2", "attn.py#2", None),
    ],
)
def test_an_attention_of_a_graph_has_a_number(target: str, file: str, number: int | None) -> None:
    """Behind the last number sign, and only of an ONNX file."""
    assert split_site(target) == (file, number)
    assert is_graph(target) is file.lower().endswith(".onnx")
