from __future__ import annotations

import tomllib
from importlib import metadata

import pytest
from _paths import CHECKOUT

from conformance import __main__ as command
from conformance.base.requirements import outdated


def test_nothing_here_is_outdated() -> None:
    """The packages that these tests run with are new enough."""
    assert not outdated()


def test_each_requirement_can_be_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every dependency names the oldest version that does; each is told if it is older."""
    project = tomllib.loads((CHECKOUT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    monkeypatch.setattr(metadata, "version", lambda _name: "0.0.9")
    said = outdated()
    for needed in project["dependencies"]:
        assert f" 0.0.9 is installed, and attention-conformance needs {needed}" in said


def test_a_failure_beside_an_old_package(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is no failure of the harness: one sentence names the package, and the exit code is 2."""
    installed = metadata.version

    def version(name: str) -> str:
        return "1.23.5" if name == "numpy" else installed(name)

    monkeypatch.setattr(metadata, "version", version)
    monkeypatch.setattr("conformance.cli.cli.main", lambda **_given: 1 / 0)
    assert command.run(["check", "attn.py"]) == 2
    said = capsys.readouterr().err
    assert said.startswith(
        "conformance: numpy 1.23.5 is installed, and attention-conformance needs"
    )
