"""Texts from a candidate, made harmless to a terminal, and exceptions in words."""

from __future__ import annotations

import contextlib
import os
import signal
import sysconfig
import traceback
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import IO, Any, Final

_KEPT: Final = "\n\t"


def printable(text: str) -> str:
    r"""The text with unprintable signs, such as an escape sequence or a NUL, as ``\x1b``.

    Newlines and tabs stay. A second application changes nothing: backslashes stay as they are.
    """
    if text.isprintable():
        return text
    return "".join(
        sign
        if sign.isprintable() or sign in _KEPT
        else sign.encode("unicode_escape", errors="surrogatepass").decode("ascii")
        for sign in text
    )


_ACTIONS: Final = "GITHUB_ACTIONS"


def is_on_github() -> bool:
    """Whether a workflow of GitHub's reads what is printed."""
    return os.environ.get(_ACTIONS) == "true"


@contextlib.contextmanager
def no_commands(file: IO[str], *, active: bool | None = None) -> Iterator[None]:
    """Keep GitHub's log from reading a candidate's text as a command; by default on GitHub."""
    if not (is_on_github() if active is None else active):
        yield
        return
    token = os.urandom(16).hex()
    file.write(f"::stop-commands::{token}\n")
    try:
        yield
    finally:
        file.write(f"::{token}::\n")


def printable_record(data: Any) -> Any:
    """Plain data with every text in it made printable."""
    if isinstance(data, str):
        return printable(data)
    if isinstance(data, dict):
        return {printable_record(key): printable_record(value) for key, value in data.items()}
    if isinstance(data, list):
        return [printable_record(value) for value in data]
    return data


LONGEST: Final = 4096
_LONGEST_NAME: Final = 200
_PACKAGE: Final = Path(__file__).resolve().parent.parent
# How the files of frames begin that are nobody's of the user: those of this distribution, and what
# has no file, such as the ``__init__`` of a dataclass.
OWN_FRAMES: Final = (
    f"{_PACKAGE}{os.sep}",
    f"{_PACKAGE.parent / 'reference'}{os.sep}",
    "<frozen",
    "<string>",
)
_STANDARD: Final = tuple(sysconfig.get_path(name) for name in ("stdlib", "platstdlib"))
_INSTALLED: Final = tuple(sysconfig.get_path(name) for name in ("purelib", "platlib"))
# torch's Python says what is wrong where it raises by itself; else a line of it only passes a call
# on to C++, and the line before says more.
_TORCH: Final = tuple(str(Path(folder) / "torch") for folder in _INSTALLED)
_CALLING_A_MODULE: Final = ("_call_impl", "_wrapped_call_impl")
_RAISING: Final = ("raise", "assert")

Frames = Sequence[traceback.FrameSummary]


def raised_text(error: BaseException) -> str:
    """``raised ValueError: heads must be even (attention.py:12)``: the whole message in one line.

    Cut to 4 KB. The place is the line that raised, in a library or the user's own code; for a line
    of a library, the user's own line that led to it is named as well.
    """
    text = " ".join(message_of(error).split())
    cause = error.__cause__
    if cause is not None:
        text += f", caused by {name_of(cause)}: {' '.join(message_of(cause).split())}"
    text = f"raised {name_of(error)}: {text}".rstrip(": ")
    place = _place(_frames(error))
    return printable(f"{capped(text)} ({place})" if place else capped(text))


def capped(text: str) -> str:
    """A text of somebody else's, cut to 4 KB."""
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}…"


def ending_text(status: int | None) -> str:
    """The end of a process in words, by its exit status (below 0 a signal; None: unknown)."""
    if status is None:
        return "lost its process"
    if status >= 0:
        return f"ended its process (exit status {status})"
    try:
        name = signal.Signals(-status).name
    except ValueError:  # those in real time have no name
        name = f"signal {-status}"
    hint = "; the system may have run out of memory" if name == "SIGKILL" else ""
    return f"killed its process ({name}{hint})"


def few(words: Sequence[str], most: int = 3) -> str:
    """The first of some words, and the number of the rest."""
    more = f" and {len(words) - most} more" if len(words) > most else ""
    return f"{', '.join(words[:most])}{more}"


def name_of(value: object) -> str:
    """The name of an object's class, cut to a bounded length."""
    return type(value).__name__[:_LONGEST_NAME]


def repr_of(value: object) -> str:
    """The first 60 signs of an object's repr, or its class if the repr raises."""
    try:
        return f"{value!r:.60}"
    except Exception:  # noqa: BLE001 (an object of the candidate's own may not even print)
        return f"a {name_of(value)}"


def traceback_text(error: BaseException) -> str:
    """The calls that led to an error, outermost first, a line each; the last 4 KB of them.

    The repeated line of a recursion stands once, with the number of its repetitions.
    """
    repeated = [(line, len(list(same))) for line, same in groupby(map(_line, _frames(error)))]
    lines = [line if often == 1 else f"{line} ({often} times)" for line, often in repeated]
    while len(lines) > 1 and sum(len(line) + 1 for line in lines) > LONGEST:
        del lines[0]
    return printable("\n".join(lines)[:LONGEST])


def message_of(error: BaseException) -> str:
    """An exception's message, notes included; "" if the exception cannot print itself.

    Of torch's message on an error of CUDA the first sentence: general advice follows.
    """
    try:
        own = str(error)
        said = own.partition("\n")[0] if own.startswith("CUDA error: ") else own
        return "\n".join([said, *getattr(error, "__notes__", ())])
    except Exception:  # noqa: BLE001 (an exception of the candidate's own may not even print)
        return ""


def _frames(error: BaseException) -> Frames:
    """The frames that are not the harness' own, and not how torch calls a module's forward."""
    frames = traceback.extract_tb(error.__traceback__)
    kept = [frame for frame in frames if not frame.filename.startswith(OWN_FRAMES)]
    return [frame for frame in kept if frame.name not in _CALLING_A_MODULE]


def _place(frames: Frames) -> str:
    """The place where an exception was raised, and the line of the user's own code behind it."""
    if not frames:
        return ""
    telling = [frame for frame in frames if _tells(frame)] or frames
    raised = telling[-1]
    own = [frame for frame in frames if _is_own(frame)]
    if _is_own(raised) or not own:
        return _place_of(raised)
    return f"{_place_of(raised)}, called at {_place_of(own[-1])}"


def _tells(frame: traceback.FrameSummary) -> bool:
    """Whether a line says where the mistake is: the plumbing of torch and Python does not."""
    if frame.filename.startswith(_TORCH):
        return (frame.line or "").startswith(_RAISING)
    return _is_installed(frame) or not frame.filename.startswith(_STANDARD)


def _is_own(frame: traceback.FrameSummary) -> bool:
    return not _is_installed(frame) and not frame.filename.startswith(_STANDARD)


def _is_installed(frame: traceback.FrameSummary) -> bool:
    return frame.filename.startswith(_INSTALLED) or "site-packages" in frame.filename


def _place_of(frame: traceback.FrameSummary) -> str:
    """``attention.py:12``; of a library the path from its package."""
    for folder in _INSTALLED:
        if frame.filename.startswith(folder):
            return f"{Path(frame.filename).relative_to(folder)}:{frame.lineno}"
    name = Path(frame.filename).name
    return f"{name}{', line ' if '.ipynb, cell ' in name else ':'}{frame.lineno}"


def _line(frame: traceback.FrameSummary) -> str:
    code = f": {frame.line}" if frame.line else ""
    return f"{_place_of(frame)} in {frame.name}{code}"


def size_text(size: int) -> str:
    """Bytes for readers: ``8 GiB``, ``512 MiB``."""
    for unit, name in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if size >= unit:
            return f"{size / unit:.3g} {name}"
    return f"{size} bytes"
