"""The files of GitHub, GitLab, pre-commit and tox: valid, and those of the documentation."""

from __future__ import annotations

import configparser
import json
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import action_running
import pytest
import view_records
from _paths import CHECKOUT
from action_running import ACTION, load
from sample_repository import surroundings

from conformance.base.expected import KEYS, ExpectedFailure
from conformance.cli.check import check_command

CI = CHECKOUT / "docs" / "ci"
HOOKS = CHECKOUT / ".pre-commit-hooks.yaml"
PAGE = (CHECKOUT / "docs" / "gate.md").read_text(encoding="utf-8")
SURVEY = (CHECKOUT / "docs" / "survey-howto.md").read_text(encoding="utf-8")
VALIDATED: dict[str, tuple[str, Path]] = {
    "action": ("check_jsonschema --builtin-schema vendor.github-actions", ACTION),
    "workflow": (
        "check_jsonschema --builtin-schema vendor.github-workflows",
        CI / "github-workflow.yml",
    ),
    "survey": (
        "check_jsonschema --builtin-schema vendor.github-workflows",
        CI / "survey-workflow.yml",
    ),
    "GitLab": ("check_jsonschema --builtin-schema vendor.gitlab-ci", CI / "gitlab-ci.yml"),
    "hooks": ("pre_commit validate-manifest", HOOKS),
    "hooks in use": ("pre_commit validate-config", CI / "pre-commit-config.yaml"),
    "local hook": ("pre_commit validate-config", CI / "pre-commit-local.yaml"),
}


def module(command: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run an installed module."""
    words = [sys.executable, "-Im", *shlex.split(command), *arguments]
    return subprocess.run(words, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(("command", "path"), VALIDATED.values(), ids=VALIDATED.keys())
def test_file_is_valid(command: str, path: Path) -> None:
    """The service's published schema, or the tool itself, accepts the file."""
    done = module(command, str(path))
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_file_with_a_mistake_is_not_valid(tmp_path: Path) -> None:
    """The schema sees what is wrong: an input without a description, say."""
    wrong = tmp_path / "action.yml"
    text = ACTION.read_text(encoding="utf-8")
    wrong.write_text(text.replace("using: composite", "using: compost"), encoding="utf-8")
    assert module("check_jsonschema --builtin-schema vendor.github-actions", str(wrong)).returncode


@pytest.mark.parametrize("path", sorted(CI.iterdir()), ids=lambda path: path.name)
def test_page_shows_file(path: Path) -> None:
    """What the page shows is the file, word for word; the TOML is explained there."""
    if path.suffix == ".toml":
        entries = tomllib.loads(path.read_text(encoding="utf-8"))["expected"]
        assert {key for entry in entries for key in entry} == set(KEYS)
        assert all(ExpectedFailure(**entry) for entry in entries)
        return
    assert (
        f"```{'text' if path.suffix == '.ini' else 'yaml'}\n{path.read_text()}```\n"
        in PAGE + SURVEY
    )


def hook_command() -> list[str]:
    """What pre-commit runs for the shipped hook as the documentation configures it."""
    (hook,) = load(HOOKS)
    (used,) = load(CI / "pre-commit-config.yaml")["repos"][0]["hooks"]
    assert (hook["id"], hook["language"], hook["pass_filenames"]) == (used["id"], "python", "false")
    return [*shlex.split(hook["entry"]), *used["args"]]


def gitlab_command() -> list[str]:
    """The command of the GitLab job."""
    (script,) = (
        line
        for line in load(CI / "gitlab-ci.yml")["attention-conformance"]["script"]
        if line.startswith("conformance ")
    )
    return shlex.split(script)


def tox_command() -> list[str]:
    """The command of the tox environment, as tox reads it."""
    done = module("tox config --conf", str(CI / "tox.ini"), "-e", "attention", "-k", "commands")
    assert done.returncode == 0, done.stdout + done.stderr
    parser = configparser.ConfigParser(interpolation=None)
    parser.read_string(done.stdout)
    return shlex.split(parser["testenv:attention"]["commands"])


@pytest.mark.parametrize(
    "command",
    [
        hook_command(),
        shlex.split(load(CI / "pre-commit-local.yaml")["repos"][0]["hooks"][0]["entry"]),
        gitlab_command(),
    ],
    ids=["hook", "local hook", "GitLab"],
)
def test_command_is_understood(command: Sequence[str]) -> None:
    """The command line takes each command as it is written, the expected failures included."""
    _understood(command)


def test_tox_is_understood() -> None:
    """So it takes the command of tox."""
    _understood(tox_command())


def _understood(command: Sequence[str]) -> None:
    assert list(command[:2]) == ["conformance", "check"]
    taken = check_command.make_context("check", list(command[2:])).params
    assert taken["targets"] == ("attention.py",)
    assert taken["expected_failures"] == Path("expected-failures.toml")


def test_artifacts_of_gitlab_are_written() -> None:
    """What the GitLab job keeps is what its command writes."""
    job = load(CI / "gitlab-ci.yml")["attention-conformance"]
    kept = {*job["artifacts"]["paths"], job["artifacts"]["reports"]["junit"]}
    assert kept <= set(gitlab_command())


def test_page_lists_inputs() -> None:
    """The page has a row for each input of the action, with its default."""
    declared: dict[str, Any] = load(ACTION)["inputs"]
    rows = dict(re.findall(r"^\| `([a-z-]+)` \|([^|]*)\|", PAGE, re.MULTILINE))
    assert set(declared) <= set(rows)
    for name, entry in declared.items():
        default = entry.get("default", "")
        assert rows[name].strip() in (f"`{default}`" if default else "", "the one without CUDA")


def test_workflow_gives_known_inputs() -> None:
    """The workflow of the documentation names inputs that there are."""
    steps = load(CI / "github-workflow.yml")["jobs"]["conformance"]["steps"]
    input_values = next(
        entry["with"] for entry in steps if "attention-conformance@" in entry["uses"]
    )
    assert action_running.inputs(input_values)["targets"] == "attention.py"


def test_what_users_give_is_no_part_of_a_script() -> None:
    """Inputs reach scripts through the environment only: in a script they could be any command."""
    steps = load(ACTION)["runs"]["steps"]
    assert [entry for entry in steps if "${{" in entry.get("run", "")] == []
    assert all(entry["shell"] == "bash" for entry in steps if "run" in entry)


GIVEN: dict[str, tuple[dict[str, str], list[str]]] = {
    "plain": (
        {"targets": "attention.py"},
        ["--profile", "quick", "--", "attention.py"],
    ),
    "everything": (
        {
            "targets": "a.py 'my file.py'\n--odd.py",
            "profile": "quick",
            "expected-failures": "known failures.toml",
            "fail-on": "should",
            "args": "--only 'mask.*' --seed 3",
        },
        [
            *("--profile", "quick", "--fail-on", "should"),
            *("--expected-failures", "known failures.toml", "--only", "mask.*", "--seed", "3"),
            *("--", "a.py", "my file.py", "--odd.py"),
        ],
    ),
    "hostile": (
        {"targets": "$(touch hacked) `touch hacked` ;touch", "args": "--only '$HOME;*'"},
        [
            *("--profile", "quick", "--only", "$HOME;*", "--"),
            *("$(touch", "hacked)", "`touch", "hacked`", ";touch"),
        ],
    ),
}


def listening(folder: Path, name: str, status: int = 0) -> Path:
    """A program that writes down what it is called with, a word a line."""
    surroundings(folder / "bin")
    words_file = folder / f"{name}.words"
    script = f'#!/bin/sh\nprintf "%s\\n" "$@" > "{words_file}"\nexit {status}\n'
    (folder / "bin" / name).write_text(script, encoding="utf-8")
    return words_file


@pytest.mark.parametrize(("input_values", "wanted"), GIVEN.values(), ids=GIVEN.keys())
def test_the_check_step_hands_words_on(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    input_values: dict[str, str],
    wanted: list[str],
) -> None:
    """Targets and arguments are split as a shell does, and nothing in them is run."""
    words_file = listening(tmp_path, "conformance", status=3)
    monkeypatch.setattr(
        action_running, "surroundings", lambda folder: {"PATH": f"{folder}:/usr/bin:/bin"}
    )
    done = action_running.run("check", input_values, tmp_path, tmp_path / "runner")
    assert (done.status, done.outputs["exit-code"]) == (3, "3")
    assert "report" not in done.outputs
    words = words_file.read_text(encoding="utf-8").splitlines()
    files = [index for index, word in enumerate(words) if "/report." in word]
    assert len(files) == 5
    taken = {index for file in files for index in (file - 1, file)}
    assert [word for index, word in enumerate(words) if index not in taken] == ["check", *wanted]
    assert not (tmp_path / "hacked").exists()


def test_what_is_not_quoted_right_is_refused(tmp_path: Path) -> None:
    """A quote that is not closed ends the step: no argument is lost in silence."""
    words_file = listening(tmp_path, "conformance")
    input_values = {"targets": "attention.py", "args": "--only 'mask.*"}
    assert action_running.run("check", input_values, tmp_path, tmp_path / "runner").status == 2
    assert not words_file.exists()


INSTALLED: dict[str, tuple[dict[str, str], bool, list[str]]] = {
    "torch without CUDA": (
        {},
        False,
        ["--index-url https://download.pytorch.org/whl/cpu torch", str(CHECKOUT)],
    ),
    "torch from PyPI": ({"torch-index": ""}, False, ["torch", str(CHECKOUT)]),
    "torch is there": (
        {"requirements": "-e . 'numpy >=2'"},
        True,
        [f"{CHECKOUT} -e . numpy >=2"],
    ),
}


@pytest.mark.parametrize(
    ("input_values", "there", "wanted"), INSTALLED.values(), ids=INSTALLED.keys()
)
def test_the_install_step(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    input_values: dict[str, str],
    there: bool,  # noqa: FBT001 (a table)
    wanted: list[str],
) -> None:
    """A missing torch comes first, then this version and what a project needs."""
    surroundings(tmp_path / "bin")
    words_file = tmp_path / "words"
    words_file.touch()
    program = (
        "#!/bin/sh\n"
        f'if [ "$1" = -m ]; then shift 3; echo "$@" >> "{words_file}"; exit 0; fi\n'
        f'case "$3" in *find_spec*) exit {0 if there else 1};; esac\n'
        f'case "$2" in *find_spec*) exit {0 if there else 1};; esac\n'
        f'exec "{sys.executable}" "$@"\n'
    )
    (tmp_path / "bin" / "python").write_text(program, encoding="utf-8")
    monkeypatch.setattr(
        action_running, "surroundings", lambda folder: {"PATH": f"{folder}:/usr/bin:/bin"}
    )
    input_values = {"targets": "attention.py", **input_values}
    done = action_running.run("install", input_values, tmp_path, tmp_path / "runner")
    assert done.status == 0, done.log
    assert words_file.read_text(encoding="utf-8").splitlines() == wanted


@pytest.mark.parametrize("base", [True, False])
def test_the_comment_of_a_pull_request(tmp_path: Path, base: bool) -> None:  # noqa: FBT001 (a case)
    """What changed from the base branch comes first, then the verdict; a push keeps the record."""
    reports = tmp_path / "reports"
    reports.mkdir()
    (reports / "report.json").write_text(json.dumps(view_records.RECORDS["every status"]))
    (reports / "report.markdown").write_text("## the verdict\n" + "long " * 20_000)

    def compare(event: str) -> action_running.Step:
        context = {
            "steps.check.outputs.folder": str(reports),
            "github.event_name": event,
            "github.base_ref": "main",
        }
        given = {"targets": "attention.py", "comment": "true"}
        return action_running.run("compare", given, tmp_path, tmp_path / "runner", context)

    if base:
        pushed = compare("push")
        assert (pushed.status, pushed.outputs) == (0, {}), pushed.log
    done = compare("pull_request")
    assert done.status == 0, done.log
    comment = Path(done.outputs["comment"]).read_text(encoding="utf-8")
    assert len(comment) < 65_536
    first, _, rest = comment.partition("## the verdict")
    assert rest
    assert ("No record of `main` to compare with" in first) == (not base)
    assert ("othing got worse" in first) == base, first
