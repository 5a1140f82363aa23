"""Files that commands write: never over a file of the user's, always over their own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import teeth_records
import view_records
from command_line import FEW
from workspaces import KERNEL, UNSCALED, write

from conformance.__main__ import run
from conformance.base.files import check_writable
from conformance.base.record import record_text
from conformance.views import COMPARED, TERMINAL, VIEWS
from conformance.views.html import render_teeth
from conformance.views.teeth import render_teeth_markdown

pytestmark = pytest.mark.usefixtures("warm_workers")

SOURCE = "# mine\n"
RENDERED = [view.option for view in (*VIEWS, TERMINAL)]


@pytest.fixture
def work(folder: Path) -> Path:
    """A folder with a file of the user's, a candidate that fails and the report of its run."""
    write(folder, {"mine.py": SOURCE, "attn.py": KERNEL + UNSCALED})
    for name in ("a.json", "b.json"):
        text = json.dumps(view_records.RECORDS["every status"])
        (folder / name).write_text(text, encoding="utf-8")
    return folder


@pytest.mark.parametrize(
    "command",
    [
        *(["render", "a.json", option] for option in RENDERED),
        *(["check", "attn.py", option] for option in ("--json", *RENDERED[:-1])),
        *(["compare", "a.json", "b.json", view.option] for view in COMPARED),
        ["compare", "a.json", "b.json", "--json"],
        ["diff", "a.json", "b.json", "--json"],
        ["diff", "a.json", "b.json", "--markdown"],
        ["merge", "a.json", "b.json", "--json"],
        ["teeth", "--json"],
        ["teeth", "--html"],
        ["teeth", "--markdown"],
        ["identify", "attn.py:attend", "--output"],
        ["identify", "attn.py:attend", "--json"],
        ["export-check", "attn.py:attend", "--json"],
        ["replay", "a.json#mask.strided", "--emit-script"],
    ],
    ids=" ".join,
)
def test_a_file_of_the_users_is_never_replaced(
    command: list[str], work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before anything runs, each option that writes a file refuses one that it did not write."""
    assert run([*command, "mine.py"]) == 2
    said = f"{command[-1]} {work / 'mine.py'} is there already, and {command[-1]} did not write it"
    assert said in capsys.readouterr().err
    assert (work / "mine.py").read_text(encoding="utf-8") == SOURCE


def test_expected_failures_are_not_written_over_a_source(
    work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """``--write-expected`` keeps what it finds in a file, and so refuses what is no such file."""
    write(work, {"mine.py": "x = print\n"})
    assert run(["check", "attn.py", *FEW, "--write-expected", "mine.py"]) == 2
    assert "mine.py cannot be read as TOML" in capsys.readouterr().err
    assert (work / "mine.py").read_text(encoding="utf-8") == "x = print\n"


@pytest.mark.parametrize("name", view_records.RECORDS)
@pytest.mark.parametrize("option", RENDERED)
def test_a_view_is_written_again(name: str, option: str, folder: Path) -> None:
    """Whatever a record holds, its view may take the place of the one written before."""
    text = json.dumps(view_records.RECORDS[name])
    (folder / "r.json").write_text(text, encoding="utf-8")
    for _ in range(2):
        assert run(["render", "r.json", option, "view"]) == 0
    (folder / "view").write_text("", encoding="utf-8")
    assert run(["render", "r.json", option, "view"]) == 0


def test_the_matrix_is_written_again(folder: Path) -> None:
    """The three forms of a run of the catalogue may take the place of earlier ones."""
    made = {"--json": record_text, "--html": render_teeth, "--markdown": render_teeth_markdown}
    for option, render in made.items():
        (folder / "teeth").write_text(render(teeth_records.GOOD), encoding="utf-8")
        check_writable(folder / "teeth", option)


def test_tools_write_their_files_again(work: Path) -> None:
    """The same command twice: a comparison, a difference, a run, a script and a declaration."""
    compare = ["--json", "c.json", "--html", "c.html", "--markdown", "c.md"]
    checked = ["--json", "r.json", "--write-expected", "e.toml"]
    for _ in range(2):
        run(["compare", "a.json", "b.json", *compare])
        run(["diff", "a.json", "b.json", "--json", "d.json", "--markdown", "d.md"])
        assert run(["check", "attn.py:unscaled", *FEW, *checked]) == 0
        assert run(["replay", "r.json#numerics.golden", "--emit-script", "s.py"]) == 1
        found = ["identify", "attn.py:attend", "--output", "declared.py", "--json", "i.json"]
        assert run([*found, "--no-check"]) == 0
    assert {path.name for path in work.iterdir()} >= {"c.md", "d.json", "s.py", "declared.py"}


def test_merge_keeps_its_shards(work: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The merged record never takes the place of a shard, which a second merge would need."""
    before = (work / "a.json").read_bytes()
    assert run(["merge", "a.json", "b.json", "--json", "a.json"]) == 2
    assert "--json a.json is one of the shards: give another name" in capsys.readouterr().err
    assert (work / "a.json").read_bytes() == before


def test_exports_keep_what_a_folder_holds(work: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """``export-check --keep`` takes a folder of its own, or an empty one."""
    assert run(["export-check", "attn.py:attend", "--keep", "."]) == 2
    assert "--keep . is a folder with other files in it" in capsys.readouterr().err
    write(work, {"source.py": SOURCE})
    assert run(["export-check", "attn.py:attend", "--keep", "."]) == 2
    assert "source.py is there already, and --keep did not write it" in capsys.readouterr().err
