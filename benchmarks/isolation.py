"""What ``--isolated`` costs: seconds of processor and by the clock, with and without, in turn.

``python benchmarks/isolation.py [--rounds N] TARGET [OPTIONS OF check]``
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time


def seconds_of(*arguments: str) -> tuple[float, float]:
    """The seconds of processor and by the clock of one ``conformance check``, all processes."""
    before, started = os.times(), time.perf_counter()
    command = [sys.executable, "-m", "conformance", "check", "--profile", "quick", "--seed", "0"]
    subprocess.run([*command, *arguments], stdout=subprocess.DEVNULL, check=False)
    after = os.times()
    used = after.children_user + after.children_system
    used -= before.children_user + before.children_system
    return used, time.perf_counter() - started


def main() -> None:
    """Print a line for each run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=2)
    known, check = parser.parse_known_args()
    for _ in range(known.rounds):
        for more in ((), ("--isolated",)):
            processor, clock = seconds_of(*check, *more)
            print(
                f"{' '.join(more) or 'shared':10}  {processor:6.1f} s  {clock:6.1f} s by the clock"
            )


if __name__ == "__main__":
    main()
