"""The errors that are answered with one sentence and exit code 2, and how names are suggested."""

from __future__ import annotations

import difflib
import os
import traceback
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

# Begins each line below the sentence of an error: a command, lines to paste, how it was raised.
BELOW: Final = "\n  "
RAISED_AT: Final = f"{BELOW}raised at "
TO_CHECK: Final = f"{BELOW}to check "


def lines_to_paste(place: str, lines: Iterable[str], target: str) -> str:
    """Lines below a sentence to paste into a place, and the command that checks the result."""
    return f"{BELOW}paste into {place}:{indented(lines)}{BELOW}and run: conformance check {target}"


def indented(lines: Iterable[str]) -> str:
    """Lines to paste, which no terminal breaks."""
    return "".join(f"\n      {line}".rstrip(" ") if line else "\n" for line in lines)


_HARNESS: Final = f"{Path(__file__).resolve().parent}{os.sep}"


class _ShownInNotebooks(BaseException):
    """An error whose frames of the harness IPython leaves out."""

    def _render_traceback_(self) -> list[str]:
        """The user's own lines, those of cells and files alike, then the sentence."""
        frames = [
            frame
            for frame in traceback.extract_tb(self.__traceback__)
            if not frame.filename.startswith((_HARNESS, "<frozen")) and frame.line
            if f"{os.sep}IPython{os.sep}" not in frame.filename
        ]
        lines = [f"line {frame.lineno} of {frame.name}: {frame.line}" for frame in frames]
        return [*lines, f"{type(self).__name__}: {self}"]


class UsageError(_ShownInNotebooks, Exception):
    """What the user gave cannot be used: one sentence saying what, where and what to do."""


class NonconformanceError(_ShownInNotebooks, AssertionError):
    """A candidate does not conform: the verdict with its causes, as ``raise_for_verdict`` says."""


class DeclarationError(UsageError, ValueError):
    """A candidate's declaration is wrong or contradicts itself.

    ``lacking`` are arguments of ``conformance.module`` that would say what nobody could guess.
    """

    def __init__(self, text: str, lacking: str = "") -> None:
        super().__init__(text)
        self.lacking = lacking


class OtherAttentionError(DeclarationError):
    """A module computes another attention than that of products: no declaration mends it."""


class ConstructionError(DeclarationError):
    """No instance of a class can be made; ``why`` is the reason, without advice.

    ``call`` is the attempt as Python, "" without an attempt; ``guessed`` names the parameters whose
    names say nothing.
    """

    def __init__(self, why: str, call: str = "", guessed: Sequence[str] = ()) -> None:
        super().__init__(f"{why}: pass an instance, or construct=lambda geometry: …")
        self.why = why
        self.call = call
        self.guessed = tuple(guessed)


def lacks_import(error: BaseException | None) -> bool:
    """Whether an import that failed is the cause, which no other argument mends."""
    return error is not None and (isinstance(error, ImportError) or lacks_import(error.__cause__))


def did_you_mean(word: object, words: Iterable[str]) -> str:
    """``; did you mean 'keep'?`` when a known word is close, else the list of known words."""
    words = sorted(words)
    close = difflib.get_close_matches(str(word), words, n=1, cutoff=0.5)
    if close:
        return f"; did you mean {close[0]!r}?"
    return f"; known: {', '.join(words)}"


def fault_of(error: Exception) -> str:
    """Type, message and place of an error of the harness."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    line = str(error).strip().splitlines()[:1]
    where = f"{Path(frame.filename).name}:{frame.lineno}"
    return f"{type(error).__name__}: {line[0] if line else ''} ({where})"


def own_fault(error: Exception) -> str:
    """What the record says where the harness itself fails."""
    return f"the harness failed: {fault_of(error)}"
