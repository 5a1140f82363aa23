"""A virtual environment that holds some distributions and what they require, and nothing else."""

from __future__ import annotations

import re
import sys
import venv
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path

# The name at the start of a requirement; those for an extra are left out.
_NAME = re.compile(r"[A-Za-z0-9._-]+")


def fresh_environment(folder: Path, *distributions: str) -> Path:
    """Make one and return its Python. Their files are links to those of the running Python."""
    venv.EnvBuilder(with_pip=False, symlinks=True).create(folder)
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    site = folder / "lib" / version / "site-packages"
    for distribution in _required(distributions):
        for top in {file.parts[0] for file in distribution.files or () if file.parts[0] != ".."}:
            link = site / top
            if not link.exists():
                link.symlink_to(Path(str(distribution.locate_file(top))).resolve())
    return folder / "bin" / "python"


def _required(names: Iterable[str]) -> list[metadata.Distribution]:
    """The distributions and all that they require, as far as it is installed."""
    distributions: dict[str, metadata.Distribution] = {}
    waiting = list(names)
    while waiting:
        name = waiting.pop().lower()
        try:
            distribution = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            continue
        if name not in distributions:
            distributions[name] = distribution
            needed = [line for line in distribution.requires or () if "extra ==" not in line]
            waiting += [match.group() for line in needed if (match := _NAME.match(line))]
    return list(distributions.values())
