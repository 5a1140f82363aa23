"""What somebody who sits at a terminal sees: read off the screen of an emulated one."""

from __future__ import annotations

import fcntl
import os
import pty
import struct
import subprocess
import termios
from pathlib import Path

import pyte
import pytest
from command_line import COMMAND, FEW
from workspaces import KERNEL, UNSCALED, write

LINES = 60


def screen_after(folder: Path, arguments: list[str], columns: int) -> list[str]:
    """The lines that stand on a terminal after a command, without those that are empty."""
    mine, its = pty.openpty()
    fcntl.ioctl(its, termios.TIOCSWINSZ, struct.pack("HHHH", LINES, columns, 0, 0))
    unset = ("COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE")
    environment = {name: os.environ[name] for name in os.environ if name not in unset}
    process = subprocess.Popen(
        [*COMMAND, *arguments],
        stdin=its,
        stdout=its,
        stderr=its,
        cwd=folder,
        env={**environment, "TERM": "xterm-256color"},
    )
    os.close(its)
    screen = pyte.Screen(columns, LINES)
    stream = pyte.ByteStream(screen)
    try:
        while seen := os.read(mine, 4096):
            stream.feed(seen)
    except OSError:  # nobody has the other end any more
        pass
    finally:
        os.close(mine)
        process.wait()
    return [line.rstrip() for line in screen.display if line.strip()]


@pytest.mark.parametrize("columns", [60, 100])
def test_verdicts_of_several_candidates_are_whole_lines(folder: Path, columns: int) -> None:
    """The bar is gone at the end, and above the table each verdict stands by itself."""
    write(folder, {"attn.py": KERNEL + UNSCALED})
    lines = screen_after(folder, ["check", "attn.py", *FEW], columns)
    text = " ".join(lines)
    assert lines[0].startswith("my_kernel: conforms, 2 clauses in ")
    assert sum(line.startswith("unscaled: fails, 2 clauses in ") for line in lines) == 1
    assert "(MUST clauses failed: numerics.golden)" in text
    assert text.endswith("s)")
    assert not any(sign in text for sign in ("━", "╺", "loading", "starting", " left "))


def test_an_error_is_broken_between_words(folder: Path) -> None:
    """On a narrow terminal no word of an error is cut, and in a log it is one line."""
    arguments = ["check", "x", "--profile", "unheard-of"]
    lines = screen_after(folder, arguments, 40)
    done = subprocess.run(
        [*COMMAND, *arguments], capture_output=True, text=True, check=False, cwd=folder
    )
    assert done.stderr.count("\n") == 1
    assert len(lines) > 2
    assert " ".join(lines) == done.stderr.strip()
    assert set(" ".join(lines).split()) == set(done.stderr.split())
