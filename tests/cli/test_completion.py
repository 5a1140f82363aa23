"""What a shell completes, and the help."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import click
import pytest
from command_line import COMMAND
from workspaces import KERNEL, UNSCALED, write

from conformance.__main__ import run
from conformance.clauses.registry import all_clauses
from conformance.cli import COMMANDS, cli
from conformance.cli._help import PURPOSES, Command
from conformance.cli.completion import written_slugs

SHELLS = ["bash", "zsh", "fish"]


def completed(folder: Path, line: str, shell: str = "fish") -> list[str]:
    """The words that a line can be completed with; fish is told words, and no more."""
    *words, begun = line.split(" ")
    environment = {
        **os.environ,
        "_CONFORMANCE_COMPLETE": f"{shell}_complete",
        "COMP_WORDS": " ".join(words),
        "COMP_CWORD": begun,
    }
    done = subprocess.run(
        COMMAND, capture_output=True, text=True, check=True, cwd=folder, env=environment
    )
    return [row.partition(",")[2] for row in done.stdout.splitlines() if row]


def test_slugs_are_read_where_they_are_written() -> None:
    """Without torch the same clauses are found as with it."""
    own = {clause.id for clause in all_clauses() if not clause.origin}
    assert set(written_slugs()) == own


def test_clauses_targets_and_files_are_completed(folder: Path) -> None:
    """Families first, the clauses of one that is begun, and what a file defines."""
    cells = '{"cells": [{"cell_type": "code", "source": ["class Cell: ...\\n"]}]}'
    write(folder, {"attn.py": KERNEL + UNSCALED, "note.ipynb": cells})
    assert "mask" in completed(folder, "conformance check attn.py --only ma")
    assert "mask.causal" in completed(folder, "conformance check attn.py --skip mask.caus")
    assert completed(folder, "conformance check attn.py:my") == ["attn.py:my_kernel"]
    assert completed(folder, "conformance check note.ipynb:") == ["note.ipynb:Cell"]
    assert completed(folder, "conformance check gone.py:") == []
    assert completed(folder, "conformance check at") == ["at"]  # a file: the shell knows it


def test_what_can_be_explained_is_completed(folder: Path) -> None:
    """Clauses, families and names of mistakes; no mistake as long as nothing is begun."""
    begun = completed(folder, "conformance explain mask")
    assert {"mask", "mask.causal", "mask-ignored"} <= {*begun}
    assert completed(folder, "conformance explain causal-top-l") == ["causal-top-left"]
    empty = completed(folder, "conformance explain ")
    assert "mask.causal" in empty
    assert "causal-top-left" not in empty


def test_completion_brings_in_nothing_heavy() -> None:
    """A key is pressed in some hundredths of a second, not in the seconds that torch takes."""
    code = (
        "import sys; from conformance.cli.completion import written_slugs; written_slugs(); "
        "sys.exit('torch' in sys.modules)"
    )
    subprocess.run([sys.executable, "-Ic", code], check=True)


def test_bash_completes_behind_a_colon(folder: Path) -> None:
    """Bash itself breaks words at colons; what it then inserts is the rest alone."""
    write(folder, {"attn.py": KERNEL + UNSCALED})
    program = folder / "bin" / "conformance"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {" ".join(COMMAND)} "$@"\n', encoding="utf-8")
    program.chmod(0o755)
    script = """
        eval "$(conformance completion bash)"
        COMP_LINE="conformance check attn.py:my"; COMP_POINT=${#COMP_LINE}
        COMP_WORDS=(conformance check attn.py : my) COMP_CWORD=4
        _conformance_completion conformance my :
        echo "${COMPREPLY[@]}"
    """
    path = f"{program.parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        [str(shutil.which("bash")), "--norc", "-c", script],
        capture_output=True,
        text=True,
        check=True,
        cwd=folder,
        env={**os.environ, "PATH": path},
    )
    assert done.stdout.strip() == "my_kernel"


@pytest.mark.parametrize("shell", SHELLS)
def test_scripts_are_ones_that_the_shell_reads(
    shell: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each names the command and asks it; a shell that is here finds no mistake in it."""
    assert run(["completion", shell]) == 0
    script = capsys.readouterr().out
    assert f"_CONFORMANCE_COMPLETE={shell}_complete" in script
    if (program := shutil.which(shell)) is not None:
        subprocess.run([program, "-n"], input=script, text=True, check=True)


def commands() -> list[Command]:
    """The commands of the command line, all of them with options by purpose."""
    assert all(isinstance(command, Command) for command in COMMANDS)
    return [command for command in COMMANDS if isinstance(command, Command)]


def test_each_option_has_one_purpose() -> None:
    """Where options are many, none but --help stands apart, and none is listed twice."""
    listed = [name for names in PURPOSES.values() for name in names]
    assert len(listed) == len(set(listed))
    known = {parameter.name for command in commands() for parameter in command.params}
    assert set(listed) <= known
    for name in ("check", "compare", "merge", "teeth", "render"):
        own = (each for each in cli.commands[name].params if isinstance(each, click.Option))
        assert {each.name for each in own} <= set(listed)


def test_examples_are_command_lines_that_are_understood() -> None:
    """Every example of a help parses: its options are there."""
    for command in commands():
        for line, _ in command.examples:
            words = line.split()
            if command.name == "completion":  # lines of shells, whose scripts another test reads
                continue
            assert words[:2] == ["conformance", command.name]
            command.make_context(str(command.name), words[2:])


def test_help_shows_purposes_and_examples(capsys: pytest.CaptureFixture[str]) -> None:
    """Help begins with what most look for, and ends with lines to copy."""
    assert run(["check", "--help"]) == 0
    out = capsys.readouterr().out
    assert [out.index(f"\n{title}:\n") for title in PURPOSES] == sorted(
        out.index(f"\n{title}:\n") for title in PURPOSES
    )
    assert "\n    conformance check attention.py:MyAttention\n" in out
    assert run(["--help"]) == 0
    assert "To understand a failure:" in capsys.readouterr().out
