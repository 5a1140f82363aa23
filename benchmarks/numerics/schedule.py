"""Runs all parts in several processes, with progress, in an order that the seeds alone decide."""

from __future__ import annotations

import multiprocessing
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from itertools import chain, islice
from typing import TypeVar

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from .gradients import DTYPES as GRADIENT_DTYPES
from .gradients import Judgement, gradient_problems, judged
from .legitimate import Run, runs
from .power import Verdict, power_problems, verdicts
from .problems import Problem, problems

# So many problems are handed out at once: enough to keep every process busy, few enough that the
# run ends soon after the wanted number.
BATCH = 96

Result = TypeVar("Result")


def quieten() -> None:
    """One thread a process; torch's advice to compile is beside the point here."""
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore", message="flex_attention called without torch.compile")


@contextmanager
def workers(processes: int) -> Iterator[ProcessPoolExecutor]:
    """A pool of fresh processes."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(processes, mp_context=context, initializer=quieten) as pool:
        yield pool


def interleaved(seeds: Sequence[int], dtypes: Sequence[str]) -> Iterator[Problem]:
    """The problems of every seed in turn, without end."""
    streams = [problems(seed, dtypes) for seed in seeds]
    return chain.from_iterable(zip(*streams, strict=True))


def legitimate_runs(
    pool: ProcessPoolExecutor, wanted: int, stream: Iterator[Problem], console: Console
) -> list[Run]:
    """At least as many legitimate runs as wanted."""
    found: list[Run] = []
    with _progress(console) as progress:
        task = progress.add_task("legitimate runs", total=wanted)
        while len(found) < wanted:
            for results in pool.map(runs, islice(stream, BATCH), chunksize=2):
                found.extend(results)
                progress.update(task, completed=len(found))
    return found


def power_verdicts(
    pool: ProcessPoolExecutor, seeds: Sequence[int], dtypes: Sequence[str], console: Console
) -> list[Verdict]:
    """Every mistake on the problems of every seed."""
    planned = [problem for seed in seeds for d in dtypes for problem in power_problems(d, seed)]
    return list(chain.from_iterable(mapped(pool, verdicts, planned, "mistakes", console)))


def gradient_judgements(
    pool: ProcessPoolExecutor, seeds: Sequence[int], dtypes: Sequence[str], console: Console
) -> list[Judgement]:
    """Every backward pass on the gradient problems of every seed."""
    known = [dtype for dtype in dtypes if dtype in GRADIENT_DTYPES]
    planned = [problem for seed in seeds for d in known for problem in gradient_problems(d, seed)]
    return list(mapped(pool, judged, planned, "gradients", console))


def mapped(
    pool: ProcessPoolExecutor,
    function: Callable[[Problem], Result],
    planned: Sequence[Problem],
    what: str,
    console: Console,
) -> Iterable[Result]:
    """The results of a function for some problems, in their order."""
    with _progress(console) as progress:
        yield from progress.track(pool.map(function, planned), total=len(planned), description=what)


def _progress(console: Console) -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=console,
        transient=True,
    )
