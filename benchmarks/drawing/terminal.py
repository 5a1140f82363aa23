"""What a terminal shows of README's failing function, as SVG."""

from __future__ import annotations

import io
import os
import re
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.text import Text

README: Final = Path(__file__).resolve().parents[2] / "README.md"
COMMAND: Final = "conformance check my_kernel.py --profile quick --only 'mask.*'"
FILE: Final = "my_kernel.py"
# Seconds and margins are those of a machine.
_MEASURED: Final = re.compile(r"(?<=the largest error is ).*|[\d.]+(?= s\))")
_COLUMNS: Final = 100
# rich's own frame without its fonts, which it would fetch.
FRAME: Final = """\
<svg viewBox="0 0 {width} {height}" xml:space="preserve" xmlns="http://www.w3.org/2000/svg">
<style>
.{unique_id}-matrix {{
  font: {char_height}px/{line_height}px ui-monospace, Menlo, Consolas, monospace;
}}
.{unique_id}-title {{ font: bold 18px system-ui, sans-serif; }}
{styles}
</style>
<defs>
<clipPath id="{unique_id}-clip-terminal">
<rect x="0" y="0" width="{terminal_width}" height="{terminal_height}" />
</clipPath>
{lines}
</defs>
{chrome}
<g transform="translate({terminal_x}, {terminal_y})" clip-path="url(#{unique_id}-clip-terminal)">
{backgrounds}
<g class="{unique_id}-matrix">
{matrix}
</g>
</g>
</svg>
"""


def failing_kernel() -> str:
    """The command of README on its function, and what it prints."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / FILE).write_text(function_of_readme(), encoding="utf-8")
        words = [sys.executable, "-m", *shlex.split(COMMAND)]
        done = subprocess.run(
            words, cwd=folder, env=_terminal(), capture_output=True, encoding="utf-8", check=False
        )
    if done.returncode != 1:
        msg = f"{COMMAND} ended with {done.returncode}, not with a failure: {done.stderr}"
        raise RuntimeError(msg)
    console = Console(record=True, width=_COLUMNS, file=io.StringIO(), color_system="truecolor")
    console.print(Text(f"$ {COMMAND}", style="bold"))
    console.print(Text.from_ansi(_MEASURED.sub("…", done.stdout)))
    return console.export_svg(title="attention-conformance", code_format=FRAME)


def function_of_readme() -> str:
    """The block of README that is the file of the command."""
    block = rf"^```python\n(# {FILE}\n.*?)^```$"
    (text,) = re.findall(block, README.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    return str(text)


def _terminal() -> dict[str, str]:
    """The environment of a user whose terminal has colours and a hundred columns."""
    kept = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    return {
        **kept,
        "FORCE_COLOR": "1",
        "TERM": "xterm-256color",
        "COLUMNS": str(_COLUMNS),
        "OMP_NUM_THREADS": "1",
    }
