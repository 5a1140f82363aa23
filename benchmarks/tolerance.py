"""Whether the derived tolerance ever accuses a correct implementation, and which mistakes it sees.

``python benchmarks/tolerance.py [--quick | --runs N] [--seeds 0 1 2] [--dtypes float32 ...]
[--processes 2] [--markdown FILE]`` runs legitimate implementations on generated problems and counts
false alarms (part 1), then mistakes of the numerics kind under four rules (part 2), and exits 1
when a legitimate run was accused. ``--problem TEXT`` repeats one problem of part 1.
"""

from __future__ import annotations

import argparse
import datetime as dt
import os
import platform
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import torch
from numerics.legitimate import Run, runs
from numerics.problems import DTYPES, Problem
from numerics.schedule import (
    interleaved,
    legitimate_runs,
    power_verdicts,
    quieten,
    workers,
)
from numerics.tables import Table
from numerics.tally import false_alarms, margins_table, power_table
from rich.console import Console

FULL, QUICK = 50_000, 10_000
FULL_SEEDS, QUICK_SEEDS = (0, 1, 2), (0,)
SHOWN = 20


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What was found: tables for readers, accusations of legitimate runs a line each."""

    tables: Sequence[Table]
    accusations: Sequence[str]


def measured(options: argparse.Namespace, console: Console) -> Outcome:
    """Run both parts."""
    with workers(options.processes) as pool:
        stream = interleaved(options.seeds, options.dtypes)
        legitimate = legitimate_runs(pool, options.runs, stream, console)
        verdicts = power_verdicts(pool, options.seeds, options.dtypes, console)
    accused = [str(run) for run in legitimate if run.margins.failed]
    others = false_alarms(verdicts)
    if others:
        accused.append(f"{others} of the legitimate runs of the table of mistakes")
    power = power_table("Mistakes", verdicts, options.dtypes)
    return Outcome(tables=[*margins_tables(legitimate), power], accusations=accused)


def margins_tables(found: Sequence[Run]) -> list[Table]:
    """The legitimate runs by dtype, by length, by family and by implementation."""
    note = "Margins are the largest figures over what is allowed; above 1 is a false alarm."
    kinds = [
        ("False alarms by dtype", "dtype", lambda run: run.problem.dtype),
        ("by number of keys", "keys", _length),
        ("by family", "family", lambda run: f"{run.problem.kind}: {run.problem.family}"),
        ("by implementation", "implementation", lambda run: run.implementation),
    ]
    return [margins_table(title, what, found, key, note) for title, what, key in kinds]


def _length(run: Run) -> str:
    keys = run.problem.size.keys
    for limit in (1, 16, 64, 256, 1024):
        if keys <= limit:
            return f"to {limit}"
    return "to 4096"


def header(options: argparse.Namespace, seconds: float) -> str:
    """When, with what and how it was measured."""
    command = " ".join(["python", "benchmarks/tolerance.py", *options.given])
    processor = f"{processor_name()} ({torch.backends.cpu.get_cpu_capability()})"
    return (
        f"Measured on {dt.datetime.now(tz=dt.UTC):%Y-%m-%d} with torch {torch.__version__}, Python "
        f"{platform.python_version()}, {processor}, by `{command}` (seeds "
        f"{', '.join(map(str, options.seeds))}; {options.processes} processes, {seconds:.0f} s)."
    )


def processor_name() -> str:
    """What the operating system calls the processor."""
    table = Path("/proc/cpuinfo")
    if table.is_file():
        for line in table.read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def repeat(text: str, console: Console) -> int:
    """Run one problem again and say every implementation's margins."""
    quieten()
    found = runs(Problem.parse(text))
    for run in found:
        console.print(f"{'FALSE ALARM ' if run.margins.failed else ''}{run}", highlight=False)
    return int(any(run.margins.failed for run in found))


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """The options, with those that were given kept for the report."""
    parser = argparse.ArgumentParser(description="False alarms and power of the tolerance.")
    amount = parser.add_mutually_exclusive_group()
    amount.add_argument("--quick", action="store_true", help=f"{QUICK} legitimate runs, one seed")
    amount.add_argument("--runs", type=int, default=FULL, help="how many legitimate runs")
    amount.add_argument("--problem", help="repeat one problem, as an accusation names it")
    parser.add_argument("--seeds", type=int, nargs="+")
    parser.add_argument("--dtypes", nargs="+", choices=list(DTYPES), default=list(DTYPES))
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--markdown", type=Path, help="write the tables to this file, too")
    options = parser.parse_args(arguments)
    options.given = list(arguments)
    options.runs = QUICK if options.quick else options.runs
    options.seeds = options.seeds or list(QUICK_SEEDS if options.quick else FULL_SEEDS)
    return options


def main() -> int:
    """Measure, print, write, and return 1 when a legitimate run was accused."""
    options, console = parse(sys.argv[1:]), Console()
    if options.problem:
        return repeat(options.problem, console)
    start = time.perf_counter()
    outcome = measured(options, console)
    head = header(options, time.perf_counter() - start)
    for table in outcome.tables:
        console.print(table.on_terminal())
    console.print(head, highlight=False)
    for line in outcome.accusations[:SHOWN]:
        console.print(f"false alarm: {line}", highlight=False)
    console.print(f"{len(outcome.accusations)} false alarms")
    if options.markdown:
        sections = chain([f"# The tolerance, measured\n\n{head}\n"], map(_section, outcome.tables))
        options.markdown.write_text("\n".join(sections), encoding="utf-8")
    return 1 if outcome.accusations else 0


def _section(table: Table) -> str:
    return table.as_markdown()


if __name__ == "__main__":
    sys.exit(main())
