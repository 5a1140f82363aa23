"""Runs the shell steps of action.yml as GitHub's runner does, as far as that goes without it."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml
from _paths import CHECKOUT
from sample_repository import surroundings

ACTION: Final = CHECKOUT / "action.yml"
_EXPRESSION: Final = re.compile(r"\$\{\{\s*(.*?)\s*\}\}")
_BASH: Final = shutil.which("bash") or "bash"


@dataclass(frozen=True, kw_only=True)
class Step:
    """What became of a step: its exit status, its log, its outputs and its summary."""

    status: int
    log: str
    outputs: Mapping[str, str]
    summary: str


def load(path: Path) -> Any:
    """A YAML file whose every scalar is a text, so that ``on`` is no truth value."""
    return yaml.load(path.read_text(encoding="utf-8"), Loader=yaml.BaseLoader)  # noqa: S506 (texts)


def step(name: str) -> Any:
    """A step of the action by its id."""
    return next(one for one in load(ACTION)["runs"]["steps"] if one.get("id") == name)


def inputs(given: Mapping[str, str]) -> dict[str, str]:
    """The inputs of the action with their defaults; unknown and missing ones are refused."""
    known = load(ACTION)["inputs"]
    assert set(given) <= set(known)
    assert {name for name, one in known.items() if one.get("required") == "true"} <= set(given)
    return {name: str(given.get(name, one.get("default", ""))) for name, one in known.items()}


def run(name: str, given: Mapping[str, str], repository: Path, folder: Path) -> Step:
    """Run a step in a repository; ``folder`` holds what the runner keeps."""
    folder.mkdir(exist_ok=True)
    one, values = step(name), inputs(given)
    assert one["shell"] == "bash"
    assert not _EXPRESSION.search(one["run"]), "what users give must not be part of a script"
    output, summary, temporary = (folder / part for part in ("output", "summary", "temp"))
    output.touch()
    summary.touch()
    temporary.mkdir(exist_ok=True)
    script = folder / "script.sh"
    script.write_text(one["run"], encoding="utf-8")
    done = subprocess.run(
        [_BASH, "--noprofile", "--norc", "-e", "-o", "pipefail", str(script)],
        cwd=repository / _evaluated(one["working-directory"], values),
        env={
            **surroundings(folder.parent / "bin"),
            **{key: _evaluated(value, values) for key, value in one["env"].items()},
            "GITHUB_ACTIONS": "true",
            "GITHUB_WORKSPACE": str(repository),
            "GITHUB_OUTPUT": str(output),
            "GITHUB_STEP_SUMMARY": str(summary),
            "RUNNER_TEMP": str(temporary),
        },
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        check=False,
    )
    lines = output.read_text(encoding="utf-8").splitlines()
    return Step(
        status=done.returncode,
        log=done.stdout,
        outputs=dict(line.split("=", 1) for line in lines),
        summary=summary.read_text(encoding="utf-8"),
    )


def _evaluated(text: str, values: Mapping[str, str]) -> str:
    """A text with the expressions of inputs, and of the action's path, put in."""

    def value(found: re.Match[str]) -> str:
        scope, _, name = found[1].partition(".")
        return (
            str(CHECKOUT) if found[1] == "github.action_path" else {"inputs": values}[scope][name]
        )

    return _EXPRESSION.sub(value, text)
