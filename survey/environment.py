"""An environment for one library: a thin layer over the one that the survey itself runs in.

What the library pins lies before what is there already (torch and the harness), so that a version
which disagrees is installed beside it and nothing that agrees is installed twice.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from .library import Library

_CHECKOUT: Final = Path(__file__).resolve().parent.parent
# The build of torch that is on every machine of the project; all else may disagree.
_PINNED: Final = "torch=="
_INSTALLING: Final = 1800.0
_LAST_LINES: Final = 3


class InstallationError(Exception):
    """Why a library cannot be installed, mostly in the words of pip."""


def _shared_paths() -> list[str]:
    """The folders of packages of this interpreter, without the folder it was started in."""
    script = "import json, sys; print(json.dumps(sys.path))"
    done = subprocess.run(
        [sys.executable, "-I", "-c", script], capture_output=True, text=True, check=True
    )
    base = Path(sys.base_prefix).resolve()
    return [
        path
        for path in json.loads(done.stdout)
        if Path(path).is_dir() and base not in Path(path).resolve().parents
    ]


@contextmanager
def environment(library: Library, folder: Path, *, keep: bool) -> Iterator[Path]:
    """The interpreter of a library's environment, removed afterwards unless it is kept.

    InstallationError with what pip says where its requirements cannot be installed.
    """
    place = folder / "environment"
    shutil.rmtree(place, ignore_errors=True)
    folder.mkdir(parents=True, exist_ok=True)
    try:
        yield _made(library, place)
    finally:
        if not keep:
            shutil.rmtree(place, ignore_errors=True)


def _made(library: Library, place: Path) -> Path:
    _run([sys.executable, "-m", "venv", "--without-pip", str(place)])
    binaries = "Scripts" if os.name == "nt" else "bin"
    python = place / binaries / "python"
    packages = next(place.rglob("site-packages"))
    (packages / "shared.pth").write_text("\n".join(_shared_paths()) + "\n", encoding="utf-8")
    constraint = place / "constraint.txt"
    pins = (_CHECKOUT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    constraint.write_text("\n".join(pin for pin in pins if pin.startswith(_PINNED)) + "\n", "utf-8")
    install = [
        *(sys.executable, "-m", "pip", "--python", str(python), "install", "--no-input"),
        *("--quiet", "--no-compile", "--constraint", str(constraint)),
    ]
    if library.alone:
        _run([*install, "--no-deps", *library.alone])
    if library.requirements:
        _run([*install, *library.requirements])
    return python


def _run(command: Sequence[str]) -> None:
    """Run a command; InstallationError with the last lines of what it says when it fails."""
    # tox pins everything for its own environments: a library's may disagree.
    surroundings = {name: text for name, text in os.environ.items() if name != "PIP_CONSTRAINT"}
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            env=surroundings,
            timeout=_INSTALLING,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        msg = f"the installation took longer than {_INSTALLING:g} s"
        raise InstallationError(msg) from error
    if done.returncode:
        said = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
        lines = said or done.stderr.strip().splitlines()
        raise InstallationError(" ".join(lines[-_LAST_LINES:]).removeprefix("ERROR: "))


def version(python: Path, distribution: str) -> str:
    """The installed version of a distribution; InstallationError where there is none."""
    script = f"import importlib.metadata as m; print(m.version({distribution!r}))"
    done = subprocess.run([python, "-I", "-c", script], capture_output=True, text=True, check=False)
    if done.returncode:
        msg = f"{distribution} is not installed by the requirements: name it first among them"
        raise InstallationError(msg)
    return done.stdout.strip()
