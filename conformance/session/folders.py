"""Folders that are written in one step: readers see nothing, or all of it."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from ..errors import UsageError


def check_folder(folder: Path, option: str = "--output") -> None:
    """Require that a folder can be made there; raises UsageError for one that holds anything."""
    if folder.is_dir():
        if any(folder.iterdir()):
            msg = f"{option} {folder} is a folder with files in it: name one that is new or empty"
            raise UsageError(msg)
    elif folder.exists() or folder.is_symlink():
        msg = f"{option} {folder} is no folder: name one that is new or empty"
        raise UsageError(msg)
    home = folder.resolve().parent
    if not home.is_dir():
        msg = f"{option} {folder} cannot be written: there is no folder {home}"
        raise UsageError(msg)


@contextlib.contextmanager
def staged(folder: Path, option: str = "--output") -> Iterator[Path]:
    """A folder beside the one that is asked for, which it becomes when all is written.

    Raises UsageError where that cannot be; whatever goes wrong, nothing is left behind.
    """
    check_folder(folder, option)
    goal = folder.resolve()
    try:
        making = Path(tempfile.mkdtemp(prefix=f".{goal.name}.", dir=goal.parent))
    except OSError as error:
        raise _unwritable(folder, option, error) from None
    try:
        yield making
        making.chmod(0o777 & ~_umask())
        making.replace(goal)
    except OSError as error:
        raise _unwritable(folder, option, error) from None
    finally:
        shutil.rmtree(making, ignore_errors=True)


def _unwritable(folder: Path, option: str, error: OSError) -> UsageError:
    return UsageError(f"{option} {folder} cannot be written: {error.strerror or error}")


def _umask() -> int:
    """What new files are not allowed; it can be read by setting it only."""
    mask = os.umask(0o022)
    os.umask(mask)
    return mask
