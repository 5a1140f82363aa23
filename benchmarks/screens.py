"""Pictures of terminals and pages: ``python benchmarks/screens.py [FOLDER]``, docs/screenshots.

The terminals are emulated ones of 60, 100 and 200 columns with one and with five candidates; the
pages are those of the same runs, as a Chromium on the path (``chromium``) shows them. Seconds and
margins are those of the machine.
"""

from __future__ import annotations

import fcntl
import io
import os
import pty
import shlex
import shutil
import struct
import subprocess
import sys
import tempfile
import termios
from itertools import groupby
from pathlib import Path
from typing import Any, Final

import pyte
from drawing.terminal import FILE, FRAME, function_of_readme
from rich.console import Console
from rich.text import Text

CHECKOUT: Final = Path(__file__).resolve().parent.parent
COLUMNS: Final = (60, 100, 200)
_LINES: Final = 300  # more than any of them prints
# Widths and heights of windows.
_WINDOWS: Final = {"one": (390, 760), "five": (1280, 720)}
_FIVE: Final = """
import torch

import conformance


def attend(query, key, value, causal, scale=1.0, past=0, drop=False):
    scores = scale * query @ key.mT
    if causal:
        seen = torch.ones(scores.shape[-2:], dtype=torch.bool).tril(past)
        scores = scores.masked_fill(seen if drop else ~seen, -torch.inf)
    return scores.softmax(-1) @ value


@conformance.core(causal="bottom-right")
def right(query, key, value, *, causal=False):
    past = key.shape[2] - query.shape[2]
    return attend(query, key, value, causal, query.shape[-1] ** -0.5, past)


@conformance.core(causal="bottom-right")
def top_left(query, key, value, *, causal=False):
    return attend(query, key, value, causal, query.shape[-1] ** -0.5)


@conformance.core(causal="bottom-right")
def unscaled(query, key, value, *, causal=False):
    past = key.shape[2] - query.shape[2]
    return attend(query, key, value, causal, 1.0, past)


@conformance.core(causal="bottom-right")
def unscaled_top_left(query, key, value, *, causal=False):
    return attend(query, key, value, causal)


@conformance.core(causal="bottom-right")
def detached(query, key, value, *, causal=False):
    return right.function(query, key, value, causal=causal).detach()
"""
_RUNS: Final = {
    "one": (FILE, function_of_readme(), "--only 'mask.*'"),
    "five": ("attentions.py", _FIVE, "--only mask.causal-alignment --only '*.golden'"),
}


def main() -> int:
    """Write every picture."""
    folder = Path(sys.argv[1]) if sys.argv[1:] else CHECKOUT / "docs" / "screenshots"
    for number, (file, text, options) in _RUNS.items():
        with tempfile.TemporaryDirectory() as work:
            (Path(work) / file).write_text(text, encoding="utf-8")
            command = f"conformance check {file} {options}"
            for columns in COLUMNS:
                path = folder / f"terminal-{number}-{columns}.svg"
                path.write_text(_drawn(command, _screen(command, work, columns)), encoding="utf-8")
                print(path)
            _screen(f"{command} --html page.html", work, 100)
            _photographed(Path(work) / "page.html", folder / f"page-{number}.png", number)
    return 0


def _screen(command: str, work: str, columns: int) -> pyte.Screen:
    """An emulated terminal after a command."""
    mine, its = pty.openpty()
    fcntl.ioctl(its, termios.TIOCSWINSZ, struct.pack("HHHH", _LINES, columns, 0, 0))
    kept = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    words = [sys.executable, "-m", *shlex.split(command)]
    process = subprocess.Popen(
        words, stdin=its, stdout=its, stderr=its, cwd=work, env={**kept, "TERM": "xterm-256color"}
    )
    os.close(its)
    screen = pyte.Screen(columns, _LINES)
    stream = pyte.ByteStream(screen)
    try:
        while seen := os.read(mine, 4096):
            stream.feed(seen)
    except OSError:  # nobody holds the other end any more
        pass
    process.wait()
    os.close(mine)
    return screen


def _drawn(command: str, screen: pyte.Screen) -> str:
    """A screen as SVG, below the command; what a machine measures is left out."""
    console = Console(
        record=True, width=screen.columns, file=io.StringIO(), color_system="truecolor"
    )
    console.print(Text(f"$ {command}", style="bold"))
    filled = [number for number in range(_LINES) if screen.display[number].strip()]
    for number in range(filled[0], filled[-1] + 1):
        row = [screen.buffer[number][column] for column in range(screen.columns)]
        line = Text()
        for style, cells in groupby(row, _style):
            line.append("".join(cell.data for cell in cells), style=style)
        line.rstrip()
        console.print(line, soft_wrap=True)
    return console.export_svg(title="attention-conformance", code_format=FRAME)


def _style(cell: Any) -> str:
    """How rich writes the style of a cell."""
    colour = {"default": "", "brown": "yellow"}.get(cell.fg, cell.fg)
    return f"{'bold ' * cell.bold}{colour}".strip()


def _photographed(page: Path, picture: Path, number: str) -> None:
    """What a browser shows of a page before anybody scrolls: of one candidate on a dark phone."""
    browser = shutil.which("chromium")
    if browser is None:
        print(f"no chromium on the path: {picture} is left as it was", file=sys.stderr)
        return
    width, height = _WINDOWS[number]
    dark = ["--blink-settings=preferredColorScheme=0"] * (number == "one")
    options = ["--headless", "--no-sandbox", "--hide-scrollbars", f"--window-size={width},{height}"]
    subprocess.run(
        [browser, *options, *dark, f"--screenshot={picture}", page.as_uri()],
        check=True,
        capture_output=True,
    )
    print(picture)


if __name__ == "__main__":
    sys.exit(main())
