"""What a judge of thousands of candidates costs: seconds each, memory, and crashes among them.

``python benchmarks/judge.py [--candidates 5000]`` gives one ``conformance.Judge`` source texts in
turn: some wrong attentions, one that ends its process and one that does not compile. It prints the
seconds to a verdict of each kind, by the clock and of a processor, and the memory of this process
and of the process that workers are forked from, at the beginning and at the end. ``--unexplained``
leaves failures as large as they were drawn, and without a name; ``--unpromised`` tells the judge
nothing about what its sources promise.
"""

from __future__ import annotations

import argparse
import math
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


def processor() -> float:
    """The seconds of a processor of this process, of what it has started, and what has ended."""
    own = psutil.Process()
    every = [one.cpu_times() for one in (own, *own.children(recursive=True))]
    return sum(t.user + t.system + t.children_user + t.children_system for t in every)


def main() -> None:
    """Judge, and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--candidates", type=int, default=5000)
    parser.add_argument("--minutes", type=float, default=math.inf, help="end after so many")
    parser.add_argument("--unexplained", action="store_true", help="verdicts without names")
    parser.add_argument("--unpromised", action="store_true", help="a judge without promises")
    options = parser.parse_args()
    took: dict[str, list[tuple[float, float]]] = defaultdict(list)
    before = after = megabytes()
    with conformance.Judge(
        timeout=30.0, promises=None if options.unpromised else PROMISES
    ) as judge:
        end = time.monotonic() + 60.0 * options.minutes
        for number in range(options.candidates):
            if time.monotonic() > end:
                break
            kind = list(SOURCES)[number % len(SOURCES)]
            started, spent = time.perf_counter(), processor()
            try:
                report = judge.check_source(
                    SOURCES[kind],
                    "attend",
                    promises=PROMISES,
                    exitfirst=True,
                    explain=not options.unexplained,
                )
                verdict = report.verdict
            except conformance.UsageError:
                verdict = "refused"
            seconds = time.perf_counter() - started, processor() - spent
            if number >= len(SOURCES):  # the first ones start what others are forked from
                took[f"{kind}: {verdict}"].append(seconds)
            if number == len(SOURCES):
                before = megabytes()
        after = megabytes()
    for kind, every in took.items():
        clock = median(seconds for seconds, _ in every)
        spent = median(seconds for _, seconds in every)
        print(f"{clock:6.2f} s, {spent:.2f} s of a processor (median of {len(every)})  {kind}")
    for what, first, last in zip(("this process", "those it started"), before, after, strict=True):
        print(f"memory of {what}: {first:.0f} MiB, at the end {last:.0f} MiB")


if __name__ == "__main__":
    main()
