"""What a judge of thousands of candidates costs: seconds each, memory, and crashes among them.

``python benchmarks/judge.py [--candidates 5000]`` gives one ``conformance.Judge`` source texts in
turn: a correct attention, some wrong ones, one that ends its process and one that does not
compile. It prints the seconds to a verdict of each kind, and the memory of this process and of the
process that workers are forked from, at the beginning and at the end.
"""

from __future__ import annotations

import argparse
import time
from collections import defaultdict
from statistics import median
from typing import Final

import psutil

import conformance

CORRECT: Final = """
import torch

def attend(query, key, value, *, keep=None):
    scores = query @ key.mT / query.shape[-1] ** 0.5
    if keep is not None:
        scores = scores.masked_fill(~keep, -torch.inf)
    return scores.softmax(-1) @ value
"""
SOURCES: Final = {
    "no scale": CORRECT.replace(" / query.shape[-1] ** 0.5", ""),
    "mask inverted": CORRECT.replace("~keep", "keep"),
    "softmax over queries": CORRECT.replace("softmax(-1)", "softmax(-2)"),
    "key first": CORRECT.replace("@ value", "@ value.flip(-2)"),
    "ends its process": CORRECT.replace(
        "    scores =", "    import os; os._exit(1)\n    scores =", 1
    ),
    "does not compile": CORRECT.replace("def attend(", "def attend(:"),
}
PROMISES: Final = {"masks": ["keep"], "empty_rows": "any"}


def megabytes() -> tuple[float, float]:
    """The memory of this process, and of all that it has started, in MiB."""
    own = psutil.Process()
    started = sum(child.memory_info().rss for child in own.children(recursive=True))
    return own.memory_info().rss / 2**20, started / 2**20


def main() -> None:
    """Judge, and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--candidates", type=int, default=5000)
    options = parser.parse_args()
    took: dict[str, list[float]] = defaultdict(list)
    before = after = megabytes()
    with conformance.Judge(timeout=30.0) as judge:
        for number in range(options.candidates):
            kind = list(SOURCES)[number % len(SOURCES)]
            started = time.perf_counter()
            try:
                report = judge.check_source(
                    SOURCES[kind], "attend", promises=PROMISES, exitfirst=True
                )
                verdict = report.verdict
            except conformance.UsageError:
                verdict = "refused"
            took[f"{kind}: {verdict}"].append(time.perf_counter() - started)
            if number == len(SOURCES):
                before = megabytes()
        after = megabytes()
    for kind, seconds in took.items():
        print(f"{median(seconds):6.2f} s (median of {len(seconds)})  {kind}")
    for what, first, last in zip(("this process", "those it started"), before, after, strict=True):
        print(f"memory of {what}: {first:.0f} MiB, at the end {last:.0f} MiB")


if __name__ == "__main__":
    main()
