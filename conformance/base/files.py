"""Files and folders that are written in one step: readers see the old one, or the whole new one."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from ..errors import UsageError


def check_distinct(files: Mapping[str, Path | None]) -> None:
    """Require that no two options name one file: the second would replace the first one's file."""
    taken: dict[Path, str] = {}
    for option, path in files.items():
        if path is None or _is_special(path):
            continue
        other = taken.setdefault(path.resolve(), option)
        if other != option:
            msg = f"{other} and {option} name the same file {path}: give each its own"
            raise UsageError(msg)


def check_writable(path: Path, option: str) -> None:
    """Require that a file can be written there; raises UsageError. Leaves nothing behind."""
    path = path.resolve()
    if path.is_dir():
        msg = f"{option} {path} is a folder: name a file"
        raise UsageError(msg)
    if not path.parent.is_dir():
        msg = f"{option} {path} cannot be written: there is no folder {path.parent}"
        raise UsageError(msg)
    try:
        if path.exists():
            path.open("ab").close()
        if not _is_special(path):
            _temporary(path).open("xb").close()
            _temporary(path).unlink()
    except OSError as error:
        raise _unwritable(option, path, error) from None


def write_text(text: str, path: Path) -> None:
    """Write a text; raises UsageError when the folder went away or the disk is full."""
    path = path.resolve()
    data = text.encode("utf-8", errors="backslashreplace")
    try:
        if _is_special(path):
            path.write_bytes(data)
            return
        try:
            _temporary(path).write_bytes(data)
            _temporary(path).replace(path)
        except BaseException:
            with contextlib.suppress(OSError):
                _temporary(path).unlink()
            raise
    except OSError as error:
        msg = f"the report {path} cannot be written: {error.strerror or error}"
        raise UsageError(msg) from None


def _temporary(path: Path) -> Path:
    return path.with_name(f".{path.name}.{os.getpid()}.tmp")


def _is_special(path: Path) -> bool:
    """A device or a pipe, which cannot be replaced by a file."""
    return path.exists() and not path.is_file()


def check_folder(folder: Path, option: str = "--output") -> None:
    """Require that a folder can be made there; raises UsageError for one that holds anything."""
    if folder.is_dir():
        if any(folder.iterdir()):
            msg = f"{option} {folder} is a folder with files in it: name one that is new or empty"
            raise UsageError(msg)
    elif folder.exists() or folder.is_symlink():
        msg = f"{option} {folder} is no folder: name one that is new or empty"
        raise UsageError(msg)
    parent = folder.resolve().parent
    if not parent.is_dir():
        msg = f"{option} {folder} cannot be written: there is no folder {parent}"
        raise UsageError(msg)


@contextlib.contextmanager
def staged(folder: Path, option: str = "--output") -> Iterator[Path]:
    """A temporary folder that becomes the requested one when all is written.

    Raises UsageError where that cannot be; whatever goes wrong, nothing is left behind.
    """
    check_folder(folder, option)
    goal = folder.resolve()
    try:
        temporary = Path(tempfile.mkdtemp(prefix=f".{goal.name}.", dir=goal.parent))
        try:
            yield temporary
            temporary.chmod(0o777 & ~_umask())
            temporary.replace(goal)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
    except OSError as error:
        raise _unwritable(option, folder, error) from None


def _unwritable(what: str, path: Path, error: OSError) -> UsageError:
    return UsageError(f"{what} {path} cannot be written: {error.strerror or error}")


def _umask() -> int:
    """The permissions that new files do not get; only setting the mask returns it."""
    mask = os.umask(0o022)
    os.umask(mask)
    return mask
