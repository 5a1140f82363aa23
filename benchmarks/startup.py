"""How long the command line and the pytest plugin take to start, and what they import.

``python benchmarks/startup.py`` prints a table and exits 1 when a limit is exceeded: 0.3 s for
``conformance --help``, 20 ms that the plugin adds to a pytest run which has nothing to do with it,
and none of the heavy packages imported by either.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HELP_LIMIT = 0.3
PLUGIN_LIMIT = 0.020
ROUNDS = 15
HEAVY = ("torch", "hypothesis", "onnx", "onnxruntime", "numpy")

HELP = [sys.executable, "-I", "-m", "conformance", "--help"]
# -p no:cacheprovider: writing the cache is noise. Both runs load the same other plugins.
PYTEST = [sys.executable, "-I", "-m", "pytest", "-q", "-p", "no:cacheprovider"]
WITHOUT = [*PYTEST, "-p", "no:conformance"]

TRIVIAL_TEST = "def test_nothing():\n    pass\n"
IMPORTS_AFTER_HELP = f"""
import runpy, sys
sys.argv = ["conformance", "--help"]
try:
    runpy.run_module("conformance", run_name="__main__", alter_sys=True)
except SystemExit:
    pass
print("imported:", *sorted(set({HEAVY!r}) & set(sys.modules)))
"""
TEST_OF_IMPORTS = f"""
import sys

def test_imports():
    print("imported:", *sorted(set({HEAVY!r}) & set(sys.modules)))
"""


def seconds(command: list[str], folder: Path) -> float:
    """The wall time of a command that must succeed."""
    start = time.perf_counter()
    subprocess.run(command, cwd=folder, check=True, capture_output=True)
    return time.perf_counter() - start


def timed_in_turn(commands: list[list[str]], folder: Path) -> list[list[float]]:
    """The times of several commands, run in turn so that the machine's moods hit all alike."""
    for command in commands:
        seconds(command, folder)  # fills the caches of compiled files
    rounds = [[seconds(command, folder) for command in commands] for _ in range(ROUNDS)]
    return [list(times) for times in zip(*rounds, strict=True)]


def imported(command: list[str], folder: Path) -> list[str]:
    """Which of the heavy packages a command says it has imported."""
    answer = subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True)
    (line,) = [line for line in answer.stdout.splitlines() if line.startswith("imported:")]
    return line.split()[1:]


def main() -> int:
    """Measure, print, and return 1 when a limit is exceeded."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "test_nothing.py").write_text(TRIVIAL_TEST, encoding="utf-8")
        help_times, with_times, without_times = timed_in_turn(
            [HELP, [*PYTEST, "test_nothing.py"], [*WITHOUT, "test_nothing.py"]], folder
        )
        (folder / "test_imports.py").write_text(TEST_OF_IMPORTS, encoding="utf-8")
        by_help = imported([sys.executable, "-I", "-c", IMPORTS_AFTER_HELP], folder)
        by_plugin = imported([*PYTEST, "-s", "test_imports.py"], folder)
    added = statistics.median(
        one - other for one, other in zip(with_times, without_times, strict=True)
    )
    help_time = statistics.median(help_times)
    print(f"processors                        {os.cpu_count()}")
    print(f"conformance --help                {help_time:.3f} s (limit {HELP_LIMIT} s)")
    print(f"  imports                         {', '.join(by_help) or 'nothing heavy'}")
    print(f"an unrelated pytest run           {statistics.median(without_times):.3f} s")
    print(
        f"  added by the plugin             {added * 1e3:.1f} ms (limit {PLUGIN_LIMIT * 1e3:.0f})"
    )
    print(f"  imports                         {', '.join(by_plugin) or 'nothing heavy'}")
    good = help_time < HELP_LIMIT and added < PLUGIN_LIMIT and not by_help and not by_plugin
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
