"""Entry of ``conformance`` and ``python -m conformance``: no error leaves as a traceback."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import traceback
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import NoReturn

import click

from .cli import cli
from .errors import UsageError

EXIT_USAGE = 2
EXIT_HARNESS = 3
EXIT_INTERRUPTED = 130


def main() -> NoReturn:
    """Run the command line and end the process with its exit code."""
    sys.exit(run(sys.argv[1:]))


def run(arguments: list[str]) -> int:
    """Run one command; the exit code of what happened, each error said in one sentence."""
    _tolerate_encodings()
    with _polite_end():
        return _answer(arguments)


def _answer(arguments: list[str]) -> int:
    try:
        code = cli.main(args=arguments, prog_name="conformance", standalone_mode=False)
        sys.stdout.flush()
    except click.ClickException as error:
        return _say(error.format_message(), EXIT_USAGE)
    except UsageError as error:
        return _say(str(error), EXIT_USAGE)
    except (KeyboardInterrupt, click.Abort):
        return _say("interrupted", EXIT_INTERRUPTED)
    except BrokenPipeError:  # the reader of our output left, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return EXIT_HARNESS
    except Exception as error:  # noqa: BLE001 (the last resort: one sentence instead of a traceback)
        return _say(_internal(error), EXIT_HARNESS)
    return code if isinstance(code, int) else 0


@contextlib.contextmanager
def _polite_end() -> Iterator[None]:
    """A SIGTERM from outside leaves the same partial report as Ctrl-C."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, _interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _tolerate_encodings() -> None:
    """Print what the terminal cannot show as escapes instead of failing on it."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")


def _say(sentence: str, code: int) -> int:
    click.echo(f"conformance: {' '.join(sentence.split())}", err=True)
    return code


def _internal(error: Exception) -> str:
    from .supervisor import HarnessError  # noqa: PLC0415 (--help must not pay for it)

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
