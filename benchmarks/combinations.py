"""What combinations cost: rows and coverage by profile, quick beside that of another tree.

``python benchmarks/combinations.py [--beside TREE] [TARGET ...]`` prints for each candidate, clause
and strength how many problems cover how many combinations, how many cannot meet, and how long the
rows take to find. With another checkout of this project it also runs quick in both, one after the
other, and prints the seconds of the processor; it exits 1 above 1.3 times as many.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

from conformance.clauses.registry import all_clauses
from conformance.identification.opening import resolve
from conformance.problems.combinations import combinations
from conformance.problems.covering import cover

TARGETS: Final = (
    "candidates/eager.py:eager_core",
    "candidates/eager.py:eager_layer",
    "candidates/torch_scaled_dot_product.py:torch_scaled_dot_product",
)
STRENGTHS: Final = {2: "quick", 3: "default"}
LIMIT: Final = 1.3
HERE: Final = Path(__file__).resolve().parent.parent
RUN: Final = """
import sys, time
from conformance.base.profile import PROFILES
from conformance.running.runner import CandidateRun
from conformance.identification.opening import resolve
(candidate,) = resolve(sys.argv[1:])
run = CandidateRun(candidate, profile=PROFILES["quick"])
plan = run.planned()
start = time.process_time()
for planned in plan:
    run.run(planned)
print(time.process_time() - start)
"""


def main() -> int:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("targets", nargs="*", default=TARGETS)
    parser.add_argument("--beside", type=Path, help="another checkout to measure quick in")
    given = parser.parse_args()
    for target in given.targets:
        _cover(target)
    if given.beside is None:
        return 0
    return max(_beside(target, given.beside) for target in given.targets)


def _cover(target: str) -> None:
    spaces = {one.id: one.space for one in all_clauses() if one.space.edges == "combinations"}
    for candidate in resolve([target]):
        for slug, space in spaces.items():
            if space.purpose == "operator" or space.not_applicable(candidate):
                continue
            for strength, profile in STRENGTHS.items():
                cover.cache_clear()
                start = time.process_time()
                made = combinations(candidate, space, dtype="float32", strength=strength)
                seconds = time.process_time() - start
                found = made.covering
                print(
                    f"{candidate.name:26} {slug:18} {profile:8} {len(found.rows):5} problems, "
                    f"{sum(found.fresh):6} of {found.combinations:6} combinations, "
                    f"{sum(found.impossible.values()):5} impossible, {seconds:5.2f} s to find"
                )


def _beside(target: str, other: Path) -> int:
    before, now = (_seconds(target, tree) for tree in (other, HERE))
    ratio = now / before
    print(f"{target}: quick {before:.1f} s in {other}, {now:.1f} s here: {ratio:.2f} times")
    return int(ratio > LIMIT)


def _seconds(target: str, tree: Path) -> float:
    """The seconds of the processor that quick takes in a tree."""
    environment = {**os.environ, "PYTHONPATH": str(tree), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", RUN, str(tree / target)]
    made = subprocess.run(
        command, cwd=tree, env=environment, capture_output=True, text=True, check=True
    )
    return float(made.stdout.split()[-1])


if __name__ == "__main__":
    raise SystemExit(main())
