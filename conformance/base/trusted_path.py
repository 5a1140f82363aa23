"""Where the judge of isolated candidates finds modules: in no folder that a candidate may lie in.

Python puts the working folder (``-m``) or a script's folder first on its path, and obeys
``PYTHONPATH``: a file there would be taken for a library's, and run in the judge.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from importlib.machinery import PathFinder
from importlib.util import find_spec
from pathlib import Path
from typing import Final

_OWN: Final = Path(__file__).resolve().parents[1]
_NEEDED: Final = ("torch", "numpy", "hypothesis", "psutil", "click", "jinja2", "safetensors")
_PROGRAM: Final = "import sys; sys.stdout.write('\\0'.join(sys.path))"
_VARIABLE: Final = "PYTHONPATH"


@cache
def trusted_path() -> tuple[str, ...]:
    """Python's own search path, and the folders of this package and of its dependencies."""
    told = subprocess.run(  # noqa: S603 (our own program)
        [sys.executable, "-P", "-E", "-c", _PROGRAM],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=True,
    )
    folders = told.stdout.split("\0")
    if _place(_OWN.name, folders) != str(_OWN.parent):  # of the same version as this process
        folders.insert(0, str(_OWN.parent))
    for name in _NEEDED:
        place = None if _place(name, folders) else _place(name)
        folders += [place] if place and place not in folders else []
    return tuple(folders)


def _place(name: str, folders: list[str] | None = None) -> str:
    """The folder of a module, searched in ``folders`` or by this process; "" if not found."""
    spec = find_spec(name) if folders is None else PathFinder.find_spec(name, folders)
    if spec is None or spec.origin is None:
        return ""
    file = Path(spec.origin)
    return str(file.parents[1] if spec.submodule_search_locations else file.parent)


def whole_path() -> list[str]:
    """The folders that this process searches for modules, the working folder by its name."""
    return [each or os.getcwd() for each in sys.path if not each or os.path.isabs(each)]  # noqa: PTH109, PTH117 (texts)


@contextlib.contextmanager
def looking_only_there() -> Iterator[None]:
    """Let Python processes that start meanwhile find modules on the trusted path alone."""
    folders, variable = sys.path[:], os.environ.pop(_VARIABLE, None)
    sys.path[:] = trusted_path()
    try:
        yield
    finally:
        sys.path[:] = folders
        if variable is not None:
            os.environ[_VARIABLE] = variable
