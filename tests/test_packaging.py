"""What is built, installed and run is what the repository says."""

from __future__ import annotations

import configparser
import importlib
import importlib.metadata
import os
import re
import subprocess
import sys
import tomllib
import zipfile
from collections import Counter
from pathlib import Path

import pytest
from _paths import CHECKOUT
from hatchling.builders.wheel import WheelBuilder
from packaging.requirements import Requirement

PACKAGES = ("conformance", "reference")
PROJECT = tomllib.loads((CHECKOUT / "pyproject.toml").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The names of the files in a freshly built wheel."""
    folder = tmp_path_factory.mktemp("wheel")
    (path,) = WheelBuilder(str(CHECKOUT)).build(directory=str(folder), versions=["standard"])
    with zipfile.ZipFile(path) as archive:
        return archive.namelist()


def constraints() -> dict[str, str]:
    """Every pinned name, in canonical spelling, with its version."""
    lines = (CHECKOUT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = [line.split("==") for line in lines if line and not line.startswith("#")]
    return {canonical(name): version for name, version in pins}


def canonical(name: str) -> str:
    """A distribution's name as indexes compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def requirements() -> list[Requirement]:
    """Everything that pyproject asks for: dependencies, extras, groups and the build."""
    project = PROJECT["project"]
    groups = [project["dependencies"], PROJECT["build-system"]["requires"]]
    groups.extend(project["optional-dependencies"].values())
    groups.extend(PROJECT["dependency-groups"].values())
    return [Requirement(entry) for group in groups for entry in group if isinstance(entry, str)]


@pytest.mark.parametrize("name", PACKAGES)
def test_tox_tests_the_installed_wheel(name: str) -> None:
    """Under tox both packages come from site-packages, although the checkout lies at hand."""
    home = Path(str(importlib.import_module(name).__file__))
    under_tox = "TOX_ENV_NAME" in os.environ
    assert ("site-packages" in home.parts) or not under_tox
    assert home.is_relative_to(CHECKOUT / name) or "site-packages" in home.parts


def test_subprocesses_of_tox_use_the_installed_wheel() -> None:
    """A Python started in the checkout imports what the test process itself has imported."""
    command = [sys.executable, "-c", "import conformance; print(conformance.__file__)"]
    answer = subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == importlib.import_module("conformance").__file__


def test_wheel_holds_the_two_packages_and_nothing_else(wheel: list[str]) -> None:
    """Candidates, tests and benchmarks stay out of the wheel."""
    folders = {name.partition("/")[0] for name in wheel}
    information = {name for name in folders if name.endswith(".dist-info")}
    assert len(information) == 1
    assert folders - information == set(PACKAGES)


@pytest.mark.parametrize("name", PACKAGES)
def test_wheel_is_typed(wheel: list[str], name: str) -> None:
    """Each package carries the marker that makes type checkers read its annotations."""
    assert f"{name}/py.typed" in wheel


def test_wheel_holds_every_module(wheel: list[str]) -> None:
    """No module of the checkout is forgotten, whatever its folder."""
    sources = [path for name in PACKAGES for path in (CHECKOUT / name).rglob("*.py")]
    expected = {path.relative_to(CHECKOUT).as_posix() for path in sources}
    assert expected <= set(wheel)


def test_wheel_carries_the_licence(wheel: list[str]) -> None:
    """The licence travels with the code."""
    assert [name for name in wheel if name.endswith(".dist-info/licenses/LICENSE")]


def test_entry_points_exist() -> None:
    """The command and the pytest plugin point at objects that are there."""
    entries = importlib.metadata.distribution("attention-conformance").entry_points
    groups = {entry.group: entry for entry in entries}
    assert callable(groups["console_scripts"].load())
    assert groups["pytest11"].load().__name__ == "conformance.pytest_plugin"


@pytest.mark.parametrize("requirement", requirements(), ids=str)
def test_requirement_is_pinned_within_its_bounds(requirement: Requirement) -> None:
    """constraints.txt pins whatever pyproject asks for, to a version that pyproject admits."""
    version = constraints()[canonical(requirement.name)]
    assert requirement.specifier.contains(version)


def test_ci_runs_the_commands_of_the_readme() -> None:
    """.ci/run and README give the two commands in the same words."""
    script = (CHECKOUT / ".ci" / "run").read_text(encoding="utf-8")
    readme = (CHECKOUT / "README.md").read_text(encoding="utf-8")
    in_script = re.findall(r"^step '(python3 .*)'$", script, re.MULTILINE)
    in_readme = re.findall(r"^(python3 -m venv .*)$", readme, re.MULTILINE)
    assert in_readme == in_script
    assert [command.rpartition(" ")[2] for command in in_readme] == ["candidates", "tests"]


def test_the_nightly_run_holds_more(nightly_tests: Counter[Path]) -> None:
    """A thousand tests of the whole suite are nightly, and tox has a run of them all."""
    whole = set((CHECKOUT / "tests").rglob("test_*.py")) == set(nightly_tests)
    assert not whole or nightly_tests.total() > 1000
    environments = configparser.ConfigParser(interpolation=None)
    environments.read(CHECKOUT / "tox.ini", encoding="utf-8")
    everyday, nightly = (
        environments[f"testenv:{name}"]["commands"] for name in ("tests", "nightly")
    )
    assert nightly == everyday.replace("--dist=worksteal", '--dist=worksteal -m ""')
    assert ".venv/bin/tox -e nightly" in (CHECKOUT / ".ci" / "nightly").read_text(encoding="utf-8")


def test_every_refused_lint_rule_has_a_reason() -> None:
    """Each ignored rule in pyproject stands on a line of its own with a comment."""
    text = (CHECKOUT / "pyproject.toml").read_text(encoding="utf-8")
    rules = re.findall(r'^  "[A-Z]+[0-9]*",(.*)$', text, re.MULTILINE)
    assert rules
    assert all(re.fullmatch(r" +# \S.*", comment) for comment in rules)
