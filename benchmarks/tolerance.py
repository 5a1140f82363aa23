"""Whether the derived tolerance ever accuses a correct implementation, and which mistakes it sees.

``python benchmarks/tolerance.py [--quick | --runs N] [--seeds 0 1 2] [--dtypes float32 ...]
[--processes 2] [--markdown FILE]`` runs legitimate implementations on generated problems and counts
false alarms (part 1), then mistakes of the numerics kind under four rules (part 2), then backward
passes (part 3), and exits 1 when a legitimate run was accused. ``--problem TEXT`` repeats one
problem, as an accusation names it (``--problem-gradients TEXT`` one of part 3).
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
from pathlib import Path

import torch
from numerics.gradients import DTYPES as GRADIENT_DTYPES
from numerics.gradients import judged
from numerics.legitimate import Run, runs
from numerics.power import Verdict
from numerics.problems import DTYPES, Problem
from numerics.schedule import (
    gradient_judgements,
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
WIDTH = 200  # of tables in a file


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What was found: tables for readers, accusations of legitimate runs a line each."""

    tables: Sequence[Table]
    accusations: Sequence[str]


def measured(options: argparse.Namespace, console: Console) -> Outcome:
    """Run all three parts."""
    with workers(options.processes) as pool:
        stream = interleaved(options.seeds, options.dtypes)
        legitimate = legitimate_runs(pool, options.runs, stream, console)
        verdicts = power_verdicts(pool, options.seeds, options.dtypes, console)
        judgements = gradient_judgements(pool, options.seeds, options.dtypes, console)
    backward = [run for judgement in judgements for run in judgement.runs]
    wrong_backward = [verdict for judgement in judgements for verdict in judgement.verdicts]
    accused = [str(run) for run in (*legitimate, *backward) if run.margins.failed]
    others = false_alarms(verdicts)
    if others:
        accused.append(f"{others} of the legitimate runs of the table of mistakes")
    tables = [
        *margins_tables(legitimate),
        power_table("Mistakes", verdicts, options.dtypes),
        *gradient_tables(backward, wrong_backward, options.dtypes),
    ]
    return Outcome(tables=tables, accusations=accused)


NOTE = "Margins are the largest figures over what is allowed; above 1 is a false alarm."


def gradient_tables(
    found: Sequence[Run], verdicts: Sequence[Verdict], dtypes: Sequence[str]
) -> list[Table]:
    """Legitimate gradients by implementation and dtype, and mistakes of the backward pass."""
    if not found:
        return []
    note = f"{NOTE} Each is the largest over the gradients of query, key and value."

    def key(run: Run) -> str:
        return f"{run.implementation}, {run.problem.dtype}"

    known = [dtype for dtype in dtypes if dtype in GRADIENT_DTYPES]
    return [
        margins_table(
            "Gradients: false alarms", "backward pass", sorted(found, key=key), key, note
        ),
        power_table("Gradients: mistakes", verdicts, known),
    ]


def margins_tables(found: Sequence[Run]) -> list[Table]:
    """The legitimate runs by dtype, by length, by family and by implementation."""
    by_length = sorted(found, key=lambda run: (run.problem.size.keys, run.problem.dtype))
    kinds = [
        ("False alarms by dtype", "dtype", lambda run: run.problem.dtype),
        ("False alarms by number of keys", "keys", _length),
        (
            "False alarms by family",
            "family",
            lambda run: f"{run.problem.kind}: {run.problem.family}",
        ),
        ("False alarms by implementation", "implementation", lambda run: run.implementation),
    ]
    return [margins_table(title, what, by_length, key, NOTE) for title, what, key in kinds]


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


def repeat(found: Sequence[Run], console: Console) -> int:
    """Say every implementation's margins on one problem."""
    for run in found:
        console.print(
            f"{'FALSE ALARM ' if run.margins.failed else ''}{run}", highlight=False, soft_wrap=True
        )
    return int(any(run.margins.failed for run in found))


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """The options, with those that were given kept for the report."""
    parser = argparse.ArgumentParser(description="False alarms and power of the tolerance.")
    amount = parser.add_mutually_exclusive_group()
    amount.add_argument("--quick", action="store_true", help=f"{QUICK} legitimate runs, one seed")
    amount.add_argument("--runs", type=int, default=FULL, help="how many legitimate runs")
    amount.add_argument("--problem", help="repeat one problem, as an accusation names it")
    amount.add_argument("--problem-gradients", help="the same for a problem of part 3")
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
    options, console = parse(sys.argv[1:]), Console(width=None if sys.stdout.isatty() else WIDTH)
    quieten()
    if options.problem:
        return repeat(runs(Problem.parse(options.problem)), console)
    if options.problem_gradients:
        return repeat(judged(Problem.parse(options.problem_gradients)).runs, console)
    start = time.perf_counter()
    outcome = measured(options, console)
    head = header(options, time.perf_counter() - start)
    for table in outcome.tables:
        console.print(table.on_terminal())
    console.print(head, highlight=False)
    for line in outcome.accusations[:SHOWN]:
        console.print(f"false alarm: {line}", highlight=False, soft_wrap=True)
    console.print(f"{len(outcome.accusations)} false alarms")
    if options.markdown:
        options.markdown.write_text(page(head, outcome), encoding="utf-8")
    return 1 if outcome.accusations else 0


def page(head: str, outcome: Outcome) -> str:
    """The tables as a Markdown page, the accusations before them."""
    count = f"**{len(outcome.accusations)} false alarms.**"
    shown = [f"- `{line}`" for line in outcome.accusations[:SHOWN]]
    first = [f"The first {len(shown)}:", "", *shown, ""] if shown else []
    top = ["# The tolerance, measured", "", head, "", count, "", *first]
    return "\n".join([*top, *(table.as_markdown() for table in outcome.tables)])


if __name__ == "__main__":
    sys.exit(main())
