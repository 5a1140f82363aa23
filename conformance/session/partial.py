"""What a record holds when it is not the whole run: a shard, or what a time limit left over."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from ..base.expected import ExpectedFailure
from ..base.limits import NOT_FINISHED, NOT_RUN, Deadline
from ..base.results import ClauseResult
from ..running.workers.messages import Loaded, RunOptions


def is_shard(options: RunOptions) -> bool:
    """Whether only a part of each clause's examples was asked."""
    return options.shard.count > 1


def options_entry(options: RunOptions) -> dict[str, Any]:
    """The record's ``options``: what was asked for, beside profile and seed."""
    return {
        "targets": list(options.targets),
        "dtypes": None if options.dtypes is None else list(options.dtypes),
        "devices": None if options.devices is None else list(options.devices),
        "only": list(options.only),
        "skip": list(options.skip),
        "compile": options.compile,
        "unchecked": list(options.unchecked),
    }


def shard_entry(options: RunOptions, expected: Sequence[ExpectedFailure]) -> dict[str, Any]:
    """The record's ``shard``; its ``expected`` are the expectations of a file."""
    return {
        "index": options.shard.index,
        "count": options.shard.count,
        "expected": [entry.as_json() for entry in expected],
    }


def judging_entry(loaded: Loaded) -> dict[str, Any]:
    """A candidate's ``shard``: what its verdict needs beside the results."""
    return {
        "gauge": loaded.gauge,
        "deviations": list(loaded.deviations),
        "mistaken": list(loaded.mistaken),
        "expected": [entry.as_json() for entry in loaded.expected],
    }


def limit_entry(
    deadline: Deadline, results: Iterable[Sequence[ClauseResult]], *, loaded: bool
) -> dict[str, Any]:
    """The record's ``limit``: how long the run was given, and how much was left over."""
    every = [result for own in results for result in own]
    not_run = sum(_is_not_run(result, deadline) for result in every)
    not_finished = sum(result.reason.startswith(NOT_FINISHED) for result in every)
    return {
        "seconds": deadline.limit,
        "reached": bool(not_run or not_finished or not loaded),
        "not_run": not_run,
        "not_finished": not_finished,
        "loaded": loaded,
    }


def what_is_missing(
    options: RunOptions, deadline: Deadline | None, results: Sequence[ClauseResult]
) -> str:
    """Why no verdict on a candidate can be had from its results alone, in one sentence, or ""."""
    told = [] if deadline is None else _left_over(deadline, results)
    if is_shard(options):
        shard = options.shard
        told.append(
            f"shard {shard.index} of {shard.count} found no failure: 'conformance merge' of all "
            f"{shard.count} gives the verdict"
        )
    return "; ".join(told)


def _left_over(deadline: Deadline, results: Sequence[ClauseResult]) -> list[str]:
    not_run = sum(_is_not_run(result, deadline) for result in results)
    not_finished = sum(result.reason.startswith(NOT_FINISHED) for result in results)
    if not not_run + not_finished:
        return []
    told = [f"{not_run} clauses were not run"] if not_run != 1 else ["1 clause was not run"]
    if not_finished:
        told.append(f"{not_finished} not to the end")
    return [f"{deadline.sentence}: {', '.join(told)}"]


def _is_not_run(result: ClauseResult, deadline: Deadline) -> bool:
    return result.reason == f"{NOT_RUN}{deadline.sentence}"
