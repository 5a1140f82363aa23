"""Whether a correct candidate is ever accused: every clause, many examples, fresh seeds.

``python -m benchmarks.soak [--examples 100000] [--profile quick] [--problems N] [--seed N]
[--each] [--dtype NAME ...] [--markdown FILE] [TARGET ...]`` runs the correct candidates of this
repository (or the targets given) under one seed after the other until that many problems have been
judged, each by one clause; with ``--each`` so many in every dtype that is declared, or named by
``--dtype``, of float64 a tenth.

With ``--seeds N`` it runs all clauses under so many seeds instead: what people run, in full. Hours
are cut up: ``--parts N`` makes each candidate under each seed so many tasks, of a part of the
clauses each; ``--journal FILE`` notes every task that is done, and leaves out those that are noted,
so that the soak can be stopped at any time and begun again, after ``--minutes N`` by itself.
``--shard I/N`` does one part of the tasks (``cat`` puts journals together), and ``--rounds N`` only
the first so many of each candidate. Each round has every candidate once, with a part and a seed
taken at random: what was done when it was stopped is a fair sample.

It exits 1 when a clause, MUST or SHOULD, is anything but passed, not applicable, or failing exactly
as announced, and when a dtype that was named has no example.
"""

from __future__ import annotations

import argparse
import dataclasses
import multiprocessing
import os
import random
import secrets
import signal
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from itertools import chain, islice
from pathlib import Path
from typing import Final

from conformance.base.profile import DTYPES, PROFILES, WHOLE, Profile, Shard, read_shard
from conformance.errors import UsageError

from .journal import Journal, this_commit
from .tally import TARGETS, Tally, report
from .tasks import Task, candidates_of, perform

REPORTED: Final = 7  # candidates between two lines of progress


def tasks_of(
    targets: tuple[str, ...],
    profile: Profile,
    first_seed: int,
    dtypes: tuple[str, ...] | None = None,
) -> Iterator[list[Task]]:
    """Every candidate under one seed, again and again under the next."""
    seed = first_seed
    while True:
        yield [
            Task(targets=targets, name=name, profile=profile, seed=seed, dtypes=dtypes)
            for name in candidates_of(targets)
        ]
        seed += 1


def soak(
    targets: tuple[str, ...],
    profile: Profile,
    first_seed: int,
    examples: int,
    jobs: int,
    *,
    each: bool = False,
    dtypes: tuple[str, ...] | None = None,
) -> Tally:
    """Run whole rounds on that many processors until there are enough examples."""
    tally = Tally()
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, mp_context=context) as pool:
        for tasks in tasks_of(targets, profile, first_seed, dtypes):
            for outcome in pool.map(perform, tasks):
                tally.add(outcome)
                for line in outcome.accusations:
                    print(line, flush=True)
                if tally.runs % REPORTED == 0:
                    told = f"{tally.runs} runs, {tally.examples:,} examples: {tally.spoken}"
                    print(told, file=sys.stderr, flush=True)
            if tally.suffices(examples, each=each) or not tally.examples or tally.lacking(dtypes):
                return tally
    return tally


def rounds_of(
    targets: tuple[str, ...],
    profile: Profile,
    seeds: range,
    parts: int,
    dtypes: tuple[str, ...] | None = None,
) -> Iterator[list[Task]]:
    """Every candidate once, under a seed and with a part of its clauses, until all were had."""
    left = {
        name: random.Random(name).sample(  # noqa: S311 (an order, the same in every process)
            [(seed, part) for seed in seeds for part in range(parts)], len(seeds) * parts
        )
        for name in candidates_of(targets)
    }
    for number in range(len(seeds) * parts):
        yield [
            Task(
                targets=targets,
                name=name,
                profile=profile,
                seed=places[number][0],
                dtypes=dtypes,
                part=places[number][1],
                parts=parts,
            )
            for name, places in left.items()
        ]


def soak_in_full(
    rounds: Iterable[list[Task]],
    jobs: int,
    journal: Journal,
    *,
    shard: Shard = WHOLE,
    minutes: float | None = None,
) -> Tally:
    """Run the tasks of a shard that the journal does not know, until all are or the time is up.

    A SIGTERM ends it when the tasks in hand are done, and leaves no process behind.
    """
    stopped = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopped.set())
    every = chain.from_iterable(rounds)
    tasks = [task for number, task in enumerate(every) if shard.owns(number)]
    tally, commit = Tally(planned=len(tasks)), this_commit()
    noted = [journal.outcome(task) for task in tasks]
    for known in noted:
        if known is not None:
            tally.add(known[0])
            tally.commits.add(known[1])
    waiting = iter([task for task, known in zip(tasks, noted, strict=True) if known is None])
    end = None if minutes is None else time.monotonic() + 60 * minutes
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, mp_context=context) as pool:
        running = {pool.submit(perform, task) for task in islice(waiting, jobs)}
        while running:
            done, running = wait(running, return_when=FIRST_COMPLETED)
            for outcome in (future.result() for future in done):
                journal.note(outcome, commit)
                tally.add(outcome)
                tally.commits.add(commit)
                for line in outcome.accusations:
                    print(line, flush=True)
            if not stopped.is_set() and (end is None or time.monotonic() < end):
                running |= {pool.submit(perform, task) for task in islice(waiting, len(done))}
            print(f"{tally.runs} of {tally.planned} tasks", file=sys.stderr, flush=True)
    return tally


def read_options() -> argparse.Namespace:
    """What the command line says."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.soak", description="Correct candidates under many seeds."
    )
    parser.add_argument("targets", nargs="*", default=list(TARGETS), metavar="TARGET")
    parser.add_argument("--profile", choices=sorted(PROFILES), default="quick")
    parser.add_argument("--examples", type=int, default=100_000)
    parser.add_argument("--each", action="store_true", help="as many in every dtype")
    parser.add_argument("--dtype", dest="dtypes", action="append", choices=DTYPES)
    parser.add_argument("--problems", type=int, help="drawn for a clause, instead of the profile's")
    parser.add_argument("--seed", type=int, help="the first (drawn; 0 with --seeds)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--markdown", type=Path)
    parser.add_argument("--seeds", type=int, help="so many in full, instead of --examples")
    parser.add_argument("--parts", type=int, default=1, help="tasks of a candidate under a seed")
    parser.add_argument("--rounds", type=int, help="only so many tasks of each candidate")
    parser.add_argument("--shard", default=str(WHOLE), metavar="I/N")
    parser.add_argument("--journal", type=Path, help="what is done, and need not be done again")
    parser.add_argument("--minutes", type=float, help="begin no task after so long")
    options = parser.parse_args()
    if options.seed is None:
        options.seed = secrets.randbelow(10**6) if options.seeds is None else 0
    return options


def main() -> int:
    """Soak, print, and return 1 when somebody was accused."""
    options = read_options()
    targets, dtypes = tuple(options.targets), tuple(options.dtypes or ()) or None
    number = len(candidates_of(targets))
    print(f"{number} candidates, first seed {options.seed}", flush=True)
    start = time.perf_counter()
    profile = dataclasses.replace(PROFILES[options.profile], reductions=0)
    if options.problems is not None:
        profile = dataclasses.replace(profile, examples=options.problems)
    if options.seeds is None:
        tally = soak(
            targets,
            profile,
            options.seed,
            options.examples,
            options.jobs,
            each=options.each,
            dtypes=dtypes,
        )
        enough = tally.suffices(options.examples, each=options.each)
    else:
        seeds = range(options.seed, options.seed + options.seeds)
        rounds = rounds_of(targets, profile, seeds, options.parts, dtypes)
        tally = soak_in_full(
            islice(rounds, options.rounds),
            options.jobs,
            Journal(options.journal),
            shard=read_shard(options.shard),
            minutes=options.minutes,
        )
        enough = tally.examples > 0
    for dtype in tally.lacking(dtypes):
        print(f"Error: no candidate was judged in {dtype}", file=sys.stderr)
    page = report(tally, options, number, time.perf_counter() - start)
    print(page)
    if options.markdown is not None:
        options.markdown.write_text(page, encoding="utf-8")
    return 0 if enough and not tally.lacking(dtypes) and not tally.accusations else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except UsageError as error:
        print(f"Error: {error}", file=sys.stderr)
        sys.exit(2)
