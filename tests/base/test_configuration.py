from __future__ import annotations

from pathlib import Path

import pytest
from workspaces import write

from conformance.base.configuration import NOTHING, Configuration, configuration
from conformance.cli.check import check_command
from conformance.errors import UsageError

WHOLE = """
[tool.conformance]
targets = ["attn.py:attend", "package.module"]
profile = "default"
only = "mask.*"
skip = ["shape.*", "state.*"]
expected-failures = "expected.toml"
max-time = "5m"
dtype = ["float32", "bfloat16"]
"""


def test_every_choice_of_a_project(folder: Path) -> None:
    """The table of the nearest pyproject.toml is read, its paths as seen from here."""
    write(folder, {"pyproject.toml": WHOLE, "attn.py": "", "sub/x.py": ""})
    assert configuration(folder / "sub") == Configuration(
        targets=("attn.py:attend", "package.module"),
        profile="full",
        only=("mask.*",),
        skip=("shape.*", "state.*"),
        expected_failures="expected.toml",
        max_time="5m",
        dtype=("float32", "bfloat16"),
    )


def test_the_command_line_wins(folder: Path) -> None:
    """An option that is given replaces the project's; the others stay."""
    write(folder, {"pyproject.toml": WHOLE, "attn.py": ""})
    chosen = check_command.make_context("check", []).params
    assert chosen["targets"] == ("attn.py:attend", "package.module")
    assert chosen["profile"] == "full"
    assert chosen["expected_failures"] == Path("expected.toml")
    given = ["other.py", "--profile", "smoke", "--only", "shape.output", "--dtype", "float64"]
    chosen = check_command.make_context("check", given).params
    assert chosen["targets"] == ("other.py",)
    assert (chosen["profile"], chosen["only"]) == ("smoke", ("shape.output",))
    assert (chosen["dtypes"], chosen["max_time"]) == (("float64",), "5m")


@pytest.mark.parametrize("text", ["", "[tool.other]\nx = 1", "is no TOML [", "# conformance"])
def test_a_project_without_choices(folder: Path, text: str) -> None:
    """Another project's file says nothing, whatever it holds, and quick is the profile."""
    write(folder, {"pyproject.toml": text})
    assert configuration(folder) == NOTHING
    assert check_command.make_context("check", ["x.py"]).params["profile"] == "quick"


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("profil = 'quick'", "has 'profil'; did you mean 'profile'?"),
        ("profile = 3", "profile is 3: give a text"),
        ("only = [3]", "only is [3]: give a text or a list of texts"),
        ("profile = 'quik'", "there is no profile 'quik'; did you mean 'quick'?"),
        ("dtype = 'float33'", "there is no dtype 'float33'; did you mean 'float32'?"),
        ("max-time = 'soon'", "'soon' is no duration"),
    ],
)
def test_a_wrong_choice(folder: Path, line: str, sentence: str) -> None:
    """It is refused with the file, the key and what to give."""
    write(folder, {"pyproject.toml": f"[tool.conformance]\n{line}\n"})
    with pytest.raises(UsageError) as caught:
        configuration(folder)
    assert f"[tool.conformance] of {folder / 'pyproject.toml'}" in str(caught.value)
    assert sentence in str(caught.value)
