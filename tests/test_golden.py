from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import conformance
from conformance import _golden

TREES = {
    "package": ("reference/__init__.py", "MINE = True\n"),
    "module": ("reference.py", "MINE = True\n"),
    "broken package": ("reference/__init__.py", "raise RuntimeError('not for you')\n"),
}


def run(code: str, folder: Path) -> str:
    """What a script prints, run among a user's own packages."""
    script = folder / "script.py"
    script.write_text(code, encoding="utf-8")
    # tox keeps scripts' own folders off the path; a user's Python does not.
    environment = {name: text for name, text in os.environ.items() if name != "PYTHONSAFEPATH"}
    done = subprocess.run(
        [sys.executable, str(script)],
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
        env=environment,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.fixture
def users_folder(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """A folder with a ``reference`` of the user's own."""
    name, text = TREES[request.param]
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text(text, encoding="utf-8")
    return tmp_path


BEFORE = "import reference\nimport conformance\n"
AFTER = "import conformance\nconformance.STANDARD\nimport reference\n"
SHOW = (
    "assert reference.MINE and not hasattr(reference, 'STANDARD')\n"
    "print(conformance.STANDARD.scale, type(conformance.STANDARD).__name__)\n"
)


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    ("users_folder", "order"), [("package", BEFORE), ("module", AFTER)], indirect=["users_folder"]
)
def test_users_reference_is_left_alone(users_folder: Path, order: str) -> None:
    """A user's own ``reference`` neither hides the golden nor is hidden by it, first or last."""
    assert run(order + SHOW, users_folder) == "inverse-sqrt-head-size Semantics"


@pytest.mark.parametrize("users_folder", ["broken package"], indirect=True)
def test_users_reference_is_never_imported(users_folder: Path) -> None:
    """The harness loads its golden without looking at what the path calls ``reference``."""
    code = (
        "import sys, conformance\nfrom conformance._golden import golden\n"
        "print(golden.STANDARD == conformance.STANDARD, 'reference' in sys.modules)"
    )
    assert run(code, users_folder) == "True False"


def test_golden_is_loaded_once() -> None:
    """Loading again gives the same module, so that its classes stay the same."""
    assert _golden._load() is _golden.golden
    assert sys.modules["_attention_conformance_reference"] is _golden.golden


def test_golden_is_the_one_of_this_distribution() -> None:
    """The golden lies next to the package that loads it."""
    home = Path(str(conformance.__file__)).resolve().parent.parent
    assert Path(str(_golden.golden.__file__)).resolve() == home / "reference" / "__init__.py"
