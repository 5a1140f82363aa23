"""Correct attentions, and many wrong ones made of them by changing their text."""

from __future__ import annotations

import functools
import tempfile
from pathlib import Path
from typing import Final

from conformance import Candidate
from conformance.identification.opening import resolve_one

from .mutants import MUTANTS, Mutant, Text

__all__ = ["KERNELS", "MUTANTS", "Mutant", "correct", "load", "mutated"]

_FOLDER: Final = Path(__file__).resolve().parent / "kernels"
KERNELS: Final = tuple(sorted(path.stem for path in _FOLDER.glob("*.py")))


def correct(kernel: str) -> Candidate:
    """The candidate of a kernel as it stands."""
    return _only(_FOLDER / f"{kernel}.py")


def mutated(mutant: Mutant) -> str:
    """The text of a mutant's file; raises ValueError where an old text does not occur once."""
    text = (_FOLDER / f"{mutant.kernel}.py").read_text(encoding="utf-8")
    places: list[tuple[int, str, str]] = []
    for old, new in zip(_texts(mutant.old), _texts(mutant.new), strict=True):
        if text.count(old) != 1:
            msg = f"{mutant.name}: {old!r} occurs {text.count(old)} times in {mutant.kernel}.py"
            raise ValueError(msg)
        places.append((text.index(old), old, new))
    for place, old, new in sorted(places, reverse=True):
        text = text[:place] + new + text[place + len(old) :]
    return text


def load(mutant: Mutant, folder: Path | None = None) -> Candidate:
    """The candidate of a mutant, from a file in the folder, else in a new temporary one.

    A temporary file lasts as long as this process, for a report or a child may read it again.
    """
    folder = folder or Path(tempfile.mkdtemp(dir=_temporary().name))
    path = folder / f"{mutant.name.replace('-', '_')}.py"
    path.write_text(mutated(mutant), encoding="utf-8")
    return _only(path)


@functools.cache
def _temporary() -> tempfile.TemporaryDirectory[str]:
    """The folder of this process's files, removed when it ends."""
    return tempfile.TemporaryDirectory(prefix="naming-")


def _texts(text: Text) -> tuple[str, ...]:
    return (text,) if isinstance(text, str) else text


def _only(path: Path) -> Candidate:
    (candidate,) = resolve_one(str(path))
    return candidate
