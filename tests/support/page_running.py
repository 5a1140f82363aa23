"""Runs the blocks of one page in an empty folder."""

from __future__ import annotations

import doctest
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import yaml
from _paths import CHECKOUT
from page_blocks import Block

DATA: Final[Mapping[str, Callable[[str], Any]]] = {
    "toml": tomllib.loads,
    "json": json.loads,
    "yaml": yaml.safe_load,
}
BASH: Final = shutil.which("bash") or "bash"
PROSE: Final = ("text", "html", "diff", "markdown")
MATCHING: Final = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
# What a user's shell finds in the environment that everything is installed in.
PROGRAMS: Final = {
    "conformance": "-m conformance",
    "pytest": "-m pytest -p no:cacheprovider",
    "python": "",
}
# Runs the unnamed blocks of a page, which see each other's names, as one module.
RUNNER: Final = """
import json, sys, types
page = sys.modules["page"] = types.ModuleType("page")
for number, source in enumerate(json.load(open(sys.argv[1], encoding="utf-8")), 1):
    exec(compile(source, f"block {number}", "exec"), vars(page))
"""


@dataclass
class Outcome:
    """What became of the blocks of a page: the lines of those that ran, and what went wrong."""

    ran: set[int] = field(default_factory=set)
    failures: list[str] = field(default_factory=list)


def run(blocks: Sequence[Block], folder: Path) -> Outcome:
    """Run the blocks of a page that are not skipped."""
    page = _Page(folder / "page", _programs(folder / "bin"))
    page.folder.mkdir()
    # Pages speak of what is checked here as a reader sees it, from the root of a checkout.
    (page.folder / "candidates").symlink_to(CHECKOUT / "candidates")
    for block in blocks:
        if not block.reason:
            page.take(block)
    page.finish()
    return page.outcome


class _Page:
    """A page in the middle of its run."""

    def __init__(self, folder: Path, environment: Mapping[str, str]) -> None:
        self.folder = folder
        self.environment = environment
        self.outcome = Outcome()
        self.waiting: list[Block] = []  # Python that no command has run yet
        self.last: tuple[str, int, str] | None = None  # command, exit status, what it printed

    def take(self, block: Block) -> None:
        """Run one block, or keep it for the end."""
        if block.language == "python":
            compile(block.source, f"line {block.line}", "exec")
            self._write(block)
            self.waiting.append(block)
        elif block.language in ("console", "sh"):
            for command, shown in block.commands():
                self._command(command, shown, block)
            self.outcome.ran.add(block.line)
        elif block.language in DATA:
            DATA[block.language](block.source)
            self._write(block)
            self.outcome.ran.add(block.line)
        elif block.language in PROSE:
            self.outcome.ran.add(block.line)

    def finish(self) -> None:
        """Run the Python that no command has run, and hold the last command to success."""
        self._settle()
        if self.waiting:
            blocks = self.folder.parent / "blocks.json"
            sources = [block.source for block in self.waiting]
            blocks.write_text(json.dumps(sources), encoding="utf-8")
            self._shell(f"python -c {shlex.quote(RUNNER)} {shlex.quote(str(blocks))}")
            self.outcome.ran |= {block.line for block in self.waiting}
            self._settle()

    def _write(self, block: Block) -> None:
        if block.name:
            path = self.folder / block.name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(block.source, encoding="utf-8")

    def _command(self, command: str, shown: str, block: Block) -> None:
        command = re.sub(r"\s{2,}#.*", "", command)
        if command == "echo $?":
            status = 0 if self.last is None else self.last[1]
            self.last = None
            self._agree(command, shown, str(status))
            return
        self._settle()
        for named in [kept for kept in self.waiting if kept.name and _names(command, kept.name)]:
            self.waiting.remove(named)
            self.outcome.ran.add(named.line)
        added = f"{command} {block.adds}" if command.startswith("conformance ") else command
        self._agree(command, shown, self._shell(added))

    def _agree(self, command: str, shown: str, printed: str) -> None:
        """Hold what is shown to what was printed; nothing shown agrees with everything."""
        agrees = doctest.OutputChecker().check_output(shown, printed.rstrip() + "\n", MATCHING)
        if shown.strip() and not agrees:
            self.outcome.failures.append(f"$ {command}\nshows\n{shown}\nbut prints\n{printed}")

    def _settle(self) -> None:
        """Require that the last command succeeded, unless its exit status was compared."""
        if self.last is not None and self.last[1]:
            command, status, printed = self.last
            self.outcome.failures.append(f"$ {command}\nends with {status}:\n{printed[-4000:]}")
        self.last = None

    def _shell(self, command: str) -> str:
        done = subprocess.run(
            [BASH, "-c", command],
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            encoding="utf-8",
            check=False,
            env={**self.environment},
        )
        self.last = command, done.returncode, done.stdout
        return done.stdout


def _names(command: str, name: str) -> bool:
    """Whether a command speaks of a file, as a file or as a module."""
    module = name.removesuffix(".py").replace("/", ".")
    return name in command or re.search(rf"\b{re.escape(module)}[.:\s]", f"{command} ") is not None


def _programs(folder: Path) -> dict[str, str]:
    """The environment of a user whose shell finds the programs that are under test."""
    folder.mkdir()
    for name, options in PROGRAMS.items():
        script = folder / name
        script.write_text(f'#!/bin/sh\nexec "{sys.executable}" {options} "$@"\n', encoding="utf-8")
        script.chmod(0o755)
    removed = ("PYTHONSAFEPATH", "GITHUB_ACTIONS", "GITHUB_STEP_SUMMARY", "COLUMNS")
    inherited = {name: value for name, value in os.environ.items() if name not in removed}
    path = os.pathsep.join([str(folder), inherited.get("PATH", "")])
    return {**inherited, "PATH": path, "OMP_NUM_THREADS": "1", "NO_COLOR": "1"}
