"""``conformance identify``: what it prints, writes and answers to the shell."""

from __future__ import annotations

import io
import json
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import pytest
from _paths import CHECKOUT
from workspaces import KERNEL, UNSCALED, write

from conformance.__main__ import run
from conformance.identification.opening import resolve
from conformance.session.checking import check
from conformance.tools import identify as session
from conformance.views.tool_texts import show_identification

pytestmark = pytest.mark.usefixtures("warm_workers")

TARGET = f"{CHECKOUT / 'tests' / 'support' / 'undeclared_attention.py'}:one_head"


def test_facts_and_declaration_are_written(
    workspace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The table and the declaration are printed, and both files hold the same."""
    files = ["--output", "out.py", "--json", "out.json"]
    assert run(["identify", TARGET, "--no-check", *files]) == 0
    out = capsys.readouterr().out
    record = json.loads((workspace / "out.json").read_text(encoding="utf-8"))
    text = (workspace / "out.py").read_text(encoding="utf-8")
    assert record["declaration"] == text
    assert "@conformance.core(" in out
    assert (record["schema"], record["identified"]) == (1, True)
    for fact in record["facts"]:
        assert fact["fact"] in out
        assert fact["confidence"] in ("certain", "likely", "undetermined")


@pytest.mark.parametrize("others", ["float32", "float32 and bfloat16"])
def test_an_interrupted_check_ends_the_command(
    others: str, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C while the declaration is checked begins no further run, whatever dtypes are left."""

    def interrupted(*_arguments: Any, **_options: Any) -> NoReturn:
        runs.append(1)
        raise KeyboardInterrupt

    runs: list[int] = []
    monkeypatch.setattr(session, "check", partial(check, make_pool=interrupted))
    facts = [{"fact": "dtypes", "value": dict.fromkeys(others.split(" and "), True)}]
    with pytest.raises(KeyboardInterrupt):
        session.write_checked({"declaration": "import torch\n", "facts": facts}, workspace / "d.py")
    assert len(runs) == 1
    assert (workspace / "d.py").read_text(encoding="utf-8") == "import torch\n"


def test_files_are_distinct_and_of_use(workspace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One name for both files, no name, and a graph's declaration are refused before any work."""
    refused = {
        ("attn.py:f", "--output", "d.py", "--json", "d.py"): "name the same file d.py",
        ("attn.py:f", "--output", "-"): "--output - names no file",
        ("model.onnx#1", "--output", "d.py"): "no declaration is written for an ONNX file",
    }
    for arguments, sentence in refused.items():
        assert run(["identify", *arguments]) == 2
        assert sentence in capsys.readouterr().err
        assert not [path for path in workspace.iterdir() if path.name in ("d.py", "-")]


def test_standard_output_may_have_the_record(
    workspace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """``--json -`` is JSON alone, what people read goes to standard error, and no file is made."""
    assert run(["identify", TARGET, "--json", "-"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["identified"] is True
    assert "A declaration to paste" in err
    assert not (workspace / "-").exists()


def test_a_part_of_what_is_built_is_written_so_that_it_can_be_made(workspace: Path) -> None:
    """What is written of a part of a module runs, and makes that part."""
    built = """
        from torch import nn
        def build():
            return nn.Sequential(nn.MultiheadAttention(12, 3, batch_first=True))
        """
    write(workspace, {"attn.py": built})
    assert run(["identify", "attn.py:build.0", "--no-check", "--output", "out.py"]) == 0
    (candidate,) = resolve(["out.py"])
    assert candidate.name == "build_0"


def test_a_declared_candidate_is_compared(
    workspace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What is declared is not believed: the scale that is found contradicts it."""
    write(workspace, {"attn.py": KERNEL + UNSCALED})
    assert run(["identify", "attn.py:unscaled"]) == 0
    out = capsys.readouterr().out
    assert "the declaration contradicts this: declared scale 1/sqrt(head size)" in out
    assert "semantics=conformance.STANDARD.replace(scale='none')" in out


def test_a_module_alone_must_mean_one_thing(
    workspace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A file with several things is bad input, and they are named."""
    write(workspace, {"attn.py": KERNEL + UNSCALED})
    assert run(["identify", "attn.py"]) == 2
    assert "attn.py is a module: name one object in it" in capsys.readouterr().err


def test_view_is_a_function_of_the_record() -> None:
    """The view needs no run: what was not identified is said, and nothing is cut off."""
    record = {
        "name": "it",
        "form": "function",
        "target": "a:it",
        "identified": False,
        "reason": "it \x1bhides",
        "facts": [
            {
                "fact": "kind",
                "found": "core",
                "value": None,
                "evidence": "a shape",
                "confidence": "likely",
            }
        ],
        "declaration": None,
    }
    file = io.StringIO()
    show_identification(record, file)
    text = file.getvalue()
    assert "core (likely)" in text
    assert "nothing could be identified: it \\x1bhides" in text


def test_a_pipe_has_no_wide_lines() -> None:
    """Long cells are folded: no line of the table is wider than 160 columns."""
    fact = {
        "fact": "shapes that do not fit",
        "found": "accepted: " + "words " * 40,
        "value": None,
        "evidence": "evidence " * 30,
        "confidence": "certain",
    }
    record = {
        "name": "it",
        "form": "function",
        "target": "a:it",
        "identified": True,
        "reason": "",
        "facts": [fact],
        "declaration": None,
    }
    file = io.StringIO()
    show_identification(record, file)
    text = file.getvalue()
    assert text.count("evidence") == 31
    assert text.count("words") == 40
    assert max(map(len, text.splitlines())) <= 160


@pytest.mark.parametrize(
    ("output", "said"),
    [
        ("torch.py", "--output torch.py would hide the module torch from what is written there: "),
        ("types.py", "--output types.py would hide the module types from what is written there: "),
        ("attn.py", "--output attn.py is what is read: give another name"),
    ],
)
def test_a_declaration_hides_no_module(
    output: str, said: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A name under which what is declared could not import what it needs is refused at once."""
    write(folder, {"attn.py": KERNEL})
    assert run(["identify", "attn.py:my_kernel", "--output", output]) == 2
    assert capsys.readouterr().err.startswith(f"conformance: {said}")
    assert (folder / "attn.py").read_text(encoding="utf-8") == KERNEL
