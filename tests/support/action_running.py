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
    return next(
        each_step for each_step in load(ACTION)["runs"]["steps"] if each_step.get("id") == name
    )


def inputs(values: Mapping[str, str]) -> dict[str, str]:
    """The inputs of the action with their defaults; unknown and missing ones are refused."""
    declared = load(ACTION)["inputs"]
    assert set(values) <= set(declared)
    assert {name for name, entry in declared.items() if entry.get("required") == "true"} <= set(
        values
    )
    return {
        name: str(values.get(name, entry.get("default", ""))) for name, entry in declared.items()
    }


def run(
    name: str,
    input_values: Mapping[str, str],
    repository: Path,
    folder: Path,
    context: Mapping[str, str] | None = None,
) -> Step:
    """Run a step in a repository; ``folder`` holds what the runner keeps.

    ``context`` are further expressions and their values, such as ``github.event_name``.
    """
    folder.mkdir(exist_ok=True)
    action_step = step(name)
    values = {f"inputs.{name}": text for name, text in inputs(input_values).items()}
    values |= {"github.action_path": str(CHECKOUT), **(context or {})}
    assert action_step["shell"] == "bash"
    assert not _EXPRESSION.search(action_step["run"]), (
        "what users give must not be part of a script"
    )
    output, summary, temporary = (folder / part for part in ("output", "summary", "temp"))
    output.touch()
    summary.touch()
    temporary.mkdir(exist_ok=True)
    script = folder / "script.sh"
    script.write_text(action_step["run"], encoding="utf-8")
    done = subprocess.run(
        [_BASH, "--noprofile", "--norc", "-e", "-o", "pipefail", str(script)],
        cwd=repository / _evaluated(action_step["working-directory"], values),
        env={
            **surroundings(folder.parent / "bin"),
            **{key: _evaluated(value, values) for key, value in action_step["env"].items()},
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
    """A text with the values of its expressions put in."""
    return _EXPRESSION.sub(lambda match: values[match[1]], text)
