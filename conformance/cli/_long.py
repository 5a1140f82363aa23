"""Options of long runs: how long they may take, who shares the work, what is remembered."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import click

from ..base.limits import read_seconds
from ..base.profile import PROFILES
from ..base.shard import WHOLE, Shard, read_shard
from ..errors import UsageError
from ..running.databases import FORMS, OPTION, check_database

AUTO: Final = "auto"
# How long a profile that explores goes on when nothing else is said.
NIGHT: Final = "1h"
_MOST_JOBS: Final = 256
_OPTIONS: Final = (
    click.option(
        "-n",
        "--jobs",
        default="1",
        show_default=True,
        metavar="N|auto",
        help="Spread the work over so many worker processes; auto: one a processor, at most 8.",
    ),
    click.option(
        "--max-time",
        metavar="TIME",
        help=(
            "End after so long (90, 90s, 10m, 1h30m); the record says what was not run, and the "
            f"exit code is 1 if anything was not. [default: none; {NIGHT} with --profile nightly]"
        ),
    ),
    click.option(
        "--shard",
        metavar="I/N",
        help=(
            "Ask only every N-th example of each clause; 'conformance merge' makes one record of "
            "the records of all N shards."
        ),
    ),
    click.option(
        OPTION,
        "databases",
        multiple=True,
        metavar="PLACE",
        help=(
            "Keep failing problems there and ask them first the next time: "
            f"{FORMS} (its artifact, only read); may be repeated."
        ),
    ),
    click.option(
        "--seed",
        type=click.IntRange(min=0),
        metavar="N",
        help="Where drawn examples start. [default: 0; the day's date with --profile nightly]",
    ),
)


@dataclass(frozen=True, kw_only=True)
class LongWork:
    """What the options say, checked."""

    jobs: int
    max_time: float | None
    shard: Shard
    databases: tuple[str, ...]
    seed: int


def long_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the options; ``read_long`` reads their values."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def read_long(
    profile: str,
    *,
    jobs: str,
    max_time: str | None,
    shard: str | None,
    databases: tuple[str, ...],
    seed: int | None,
) -> LongWork:
    """What the options say; raises UsageError."""
    explores = PROFILES[profile].explores
    for text in databases:
        check_database(text)
    limit = max_time if max_time is not None or not explores else NIGHT
    return LongWork(
        jobs=_read_jobs(jobs),
        max_time=None if limit is None else read_seconds(limit),
        shard=WHOLE if shard is None else read_shard(shard),
        databases=databases,
        seed=seed if seed is not None else _today() if explores else 0,
    )


def _read_jobs(text: str) -> int:
    if text.strip().lower() == AUTO:
        from ..running.workers.crew import default_jobs  # noqa: PLC0415 (--help must not pay for it)

        return default_jobs()
    jobs = int(text) if text.strip().isascii() and text.strip().isdecimal() else 0
    if not 1 <= jobs <= _MOST_JOBS:
        msg = f"--jobs {text!r} is no number of workers: give 1 to {_MOST_JOBS}, or {AUTO}"
        raise UsageError(msg)
    return jobs


def _today() -> int:
    """The day in UTC as a number such as 20270131: the same seed on every machine of a night."""
    from ..base.clock import today  # noqa: PLC0415 (only where a profile explores)

    return int(today().strftime("%Y%m%d"))
