"""Entry of ``conformance`` and ``python -m conformance``: no error leaves as a traceback."""

from __future__ import annotations

import os
import sys

from . import folder_of_the_script

# What lies in the working folder, where Python looks first for ``-m``, is no library of ours.
if __name__ == "__main__" and folder_of_the_script() is not None:
    del sys.path[0]
if __name__ == "__main__" and "--isolated" in sys.argv:  # candidates may lie where this looks
    named = [os.path.abspath(each) for each in os.environ.get("PYTHONPATH", "").split(os.pathsep)]  # noqa: PTH100 (as above)
    sys.path.sort(key=named.__contains__)

try:
    import contextlib
    import errno
    import gc
    import signal
    import threading
    from collections.abc import Iterator
    from types import FrameType
    from typing import Final, NoReturn

    from .base.line_breaking import fitted_to
    from .base.printable_text import no_commands, printable
    from .base.record import EXIT_HARNESS, EXIT_INTERRUPTED, EXIT_USAGE
    from .errors import BELOW, UsageError
except KeyboardInterrupt:  # nothing is begun that an end would have to put away
    os.write(2, b"conformance: interrupted\n")
    os._exit(130)

_ENDINGS: Final = ("SIGINT", "SIGTERM", "SIGHUP")
# What a machine has too little of, which is no mistake of the harness.
_SHORTAGES = {
    errno.ENOSPC: "free some, or write elsewhere",
    errno.EDQUOT: "free some, or write elsewhere",
    errno.EFBIG: "raise the limit of this shell (ulimit -f), or write less",
    errno.EMFILE: "raise the limit of this shell (ulimit -n)",
    errno.ENFILE: "close files of other processes",
    errno.EAGAIN: "raise the limit of this shell (ulimit -u), or end other processes",
    errno.ENOMEM: "end other processes, or ask for fewer workers (--jobs)",
}


def main() -> NoReturn:
    """Run the command line and end the process with its exit code."""
    # Threads that have nothing to do would use a processor up while they wait for work.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    code = run(sys.argv[1:])
    gc.freeze()  # the last collection would walk through all of torch, and free nothing of use
    sys.exit(code)


def run(arguments: list[str]) -> int:
    """Run one command and return its exit code; every error is said in one sentence."""
    try:
        _open_streams()
        _tolerate_encodings()
        if not _has_working_folder():
            gone = (
                "the working folder is not there any more: change into one that is, and run again"
            )
            return _say(gone, EXIT_USAGE)
        with _polite_end():
            return _answer(arguments)
    except KeyboardInterrupt:
        return _say("interrupted", EXIT_INTERRUPTED)


def _answer(arguments: list[str]) -> int:
    import click  # noqa: PLC0415 (a Ctrl-C while it loads ends politely, too)

    from .cli import cli  # noqa: PLC0415

    try:
        code = cli.main(args=arguments, prog_name="conformance", standalone_mode=False)
        sys.stdout.flush()
    except click.ClickException as error:
        return _say(error.format_message(), EXIT_USAGE)
    except UsageError as error:
        return _say(str(error), EXIT_USAGE)
    except click.Abort:
        return _say("interrupted", EXIT_INTERRUPTED)
    except Exception as error:  # noqa: BLE001 (the last resort: one sentence instead of a traceback)
        if isinstance(error, OSError) and error.errno in _SHORTAGES:
            what = f"{error.strerror}: {_SHORTAGES[error.errno]}, and run again"
            return _say(f"this machine has too little left: {what}", EXIT_USAGE)
        from .base.requirements import outdated  # noqa: PLC0415 (asked where something failed)

        old = outdated()
        return _say(old or _internal(error), EXIT_USAGE if old else EXIT_HARNESS)
    return code if isinstance(code, int) else 0


@contextlib.contextmanager
def _polite_end() -> Iterator[None]:
    """Let SIGTERM and a closed terminal leave the same partial report as Ctrl-C."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    endings = [number for name in _ENDINGS if (number := getattr(signal, name, None)) is not None]
    before = {number: signal.getsignal(number) for number in endings}
    for number, handler in before.items():
        if handler is not signal.SIG_IGN:  # as nohup and a shell's & want it
            signal.signal(number, _interrupt)
    try:
        yield
    finally:
        for number, handler in before.items():
            if signal.getsignal(number) is _interrupt:
                signal.signal(number, handler)


class _Interrupted(KeyboardInterrupt):
    """A KeyboardInterrupt by another name.

    The interpreter dies of the signal at its end, whatever the exit code, if a plain
    KeyboardInterrupt leaves a text that it executes (the body of a dataclass is made by such a
    text), even if caught.
    """


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    """Interrupt once: a second Ctrl-C must not cut off the writing of the report."""
    for name in _ENDINGS:
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), signal.SIG_IGN)
    raise _Interrupted


def _has_working_folder() -> bool:
    try:
        os.getcwd()  # noqa: PTH109 (pathlib does no more)
    except OSError:
        return False
    return True


def _open_streams() -> None:
    """Put the null device where the caller has closed a standard stream."""
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:  # the lowest free number is the one that is given
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # noqa: FBT003
    if sys.stdin is None:
        sys.stdin = os.fdopen(0, closefd=False)
    if sys.stdout is None:
        sys.stdout = os.fdopen(1, "w", closefd=False)
    if sys.stderr is None:
        sys.stderr = os.fdopen(2, "w", closefd=False)


def _tolerate_encodings() -> None:
    """Escape the characters that the terminal cannot show, instead of failing."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")


def _say(text: str, code: int) -> int:
    """Write a sentence in one line, and below it the way to an error, or lines to paste."""
    sentence, below, way = text.partition(BELOW)
    said = printable(" ".join(sentence.split()) + below + way.rstrip())
    with contextlib.suppress(OSError), no_commands(sys.stderr):  # nobody may be left to read it
        sys.stderr.write(f"{fitted_to(sys.stderr, f'conformance: {said}')}\n")
        sys.stderr.flush()
    return code


def _internal(error: Exception) -> str:
    import traceback  # noqa: PLC0415 (--help must not pay for it)
    from pathlib import Path  # noqa: PLC0415

    from .running.workers.supervisor import HarnessError  # noqa: PLC0415

    if isinstance(error, HarnessError):
        return f"the harness failed: {error}"
    frame = traceback.extract_tb(error.__traceback__)[-1]
    place = f"{Path(frame.filename).name}:{frame.lineno}"
    return (
        f"the harness failed with {type(error).__name__}: {error} ({place}); this is a mistake in "
        "attention-conformance, please report it"
    )


if __name__ == "__main__":
    main()
