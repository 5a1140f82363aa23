"""Options of several commands, options of long runs, and lists separated by commas."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from ..base.configuration import configuration
from ..base.limits import MOST_WORKERS, PER_WORKER, read_seconds, read_share
from ..base.profile import DEFAULT_PROFILE, DTYPES, PROFILES, WHOLE, Shard, read_shard
from ..errors import UsageError
from ..running.databases import FORMS, OPTION, check_database
from ._help import Command
from .completion import complete_clauses

if TYPE_CHECKING:
    from ..running.workers.cluster import Cluster
    from ..running.workers.messages import RunOptions

Callback = Callable[[click.Context, click.Parameter, tuple[str, ...]], tuple[str, ...]]


Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]
ONLY: Final[Decorator] = click.option(
    "--only",
    multiple=True,
    metavar="CLAUSE",
    shell_complete=complete_clauses,
    help="Run only these clauses: names (mask.causal), families (mask) or globs; may be repeated.",
)
SKIP: Final[Decorator] = click.option(
    "--skip",
    multiple=True,
    metavar="CLAUSE",
    shell_complete=complete_clauses,
    help="Leave these clauses out.",
)
STRICT: Final[Decorator] = click.option(
    "--strict", is_flag=True, help="Exit with 1 when a SHOULD clause failed, too."
)

FAIL_ON: Final[Decorator] = click.option(
    "--fail-on",
    type=click.Choice(["must", "should"]),
    help="Which failed clauses make the exit code 1; should is the same as --strict. "
    "[default: must]",
)


def is_strict(fail_on: str | None, *, strict: bool) -> bool:
    """Whether a failed SHOULD makes the exit code 1; raises UsageError for a contradiction."""
    if strict and fail_on == "must":
        msg = "--strict and --fail-on must contradict each other: leave one of them out"
        raise UsageError(msg)
    return strict or fail_on == "should"


class ConfiguredCommand(Command):
    """A command whose omitted options take their values from ``[tool.conformance]``."""

    def make_context(
        self,
        info_name: str | None,
        args: list[str],
        parent: click.Context | None = None,
        **extra: Any,
    ) -> click.Context:
        """The context, with the project's choices for what the command line leaves open."""
        if not {"-h", "--help"} & set(args):
            chosen = configuration(Path.cwd())
            values = {
                "targets": chosen.targets,
                "profile": chosen.profile,
                "only": chosen.only,
                "skip": chosen.skip,
                "dtypes": chosen.dtype,
                "expected_failures": chosen.expected_failures,
                "max_time": chosen.max_time,
            }
            extra["default_map"] = {name: value for name, value in values.items() if value}
        return super().make_context(info_name, args, parent, **extra)


# click 8.1 has no argument for it.
class _ProfileName(click.Choice):  # type: ignore[type-arg]
    """The name of a profile; a former name is understood, and not shown."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """The profile's own name."""
        known = PROFILES.get(value) if isinstance(value, str) else None
        return str(super().convert(value if known is None else known.name, param, ctx))


PROFILE: Final[Decorator] = click.option(
    "--profile",
    type=_ProfileName(list(dict.fromkeys(profile.name for profile in PROFILES.values()))),
    default=DEFAULT_PROFILE,
    show_default=True,
    help="How hard to try: smoke asks one to three examples a clause, full 150.",
)


def file_option(*names: str, metavar: str = "FILE", **more: Any) -> Decorator:
    """An option that names a file, or with another ``metavar`` a folder."""
    return click.option(*names, type=click.Path(path_type=Path), metavar=metavar, **more)


def output_help(text: str) -> str:
    """The help of an option whose file may be ``-``."""
    return f"{text.removesuffix('.')} (- for standard output)."


def expected_failures_option(text: str) -> Decorator:
    """The option ``--expected-failures FILE``."""
    return file_option("--expected-failures", help=text)


def json_option(text: str) -> Decorator:
    """``--json FILE``, the argument ``json_path`` of the command."""
    return file_option("--json", "json_path", help=output_help(text))


class NumberRange(click.FloatRange):
    """A number in a range, without NaN: click admits NaN, and no limit holds a NaN."""

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """The number that a text names."""
        number = float(super().convert(value, param, ctx))
        if math.isnan(number):
            self.fail(f"{value!r} is no number.", param, ctx)
        return number


def timeout_option(text: str) -> Decorator:
    """``--timeout SECONDS``: how long a candidate may give no answer."""
    return click.option(
        "--timeout",
        type=NumberRange(min=0, min_open=True),
        default=30.0,
        show_default=True,
        metavar="SECONDS",
        help=text,
    )


def separated(choices: Iterable[str] = ()) -> Callback:
    """The callback of a repeatable option whose values are words separated by commas.

    The result has every word once, in the given order. A word that is not among the choices (if
    any), or a value without a word, is bad input.
    """
    choice = click.Choice(tuple(choices)) if choices else click.STRING

    def read(
        context: click.Context, parameter: click.Parameter, values: tuple[str, ...]
    ) -> tuple[str, ...]:
        chosen: dict[str, None] = {}
        for value in values:
            words = [word.strip() for word in value.split(",") if word.strip()]
            if not words:
                msg = f"{value!r} names nothing"
                raise click.BadParameter(msg, context, parameter)
            chosen |= dict.fromkeys(choice.convert(word, parameter, context) for word in words)
        return tuple(chosen)

    return read


DTYPE: Final[Decorator] = click.option(
    "--dtype",
    "dtypes",
    multiple=True,
    callback=separated(DTYPES),
    metavar=f"[{'|'.join(DTYPES)}],...",
    help="Judge in these dtypes (float32,bfloat16) instead of the declared ones; may be repeated.",
)
DEVICE: Final[Decorator] = click.option(
    "--device",
    "devices",
    multiple=True,
    callback=separated(),
    metavar="DEVICE,...",
    help="Run on these devices (cpu,cuda:1) instead of the declared ones; may be repeated.",
)
UNCHECKED: Final[Decorator] = click.option(
    "--unchecked",
    multiple=True,
    callback=separated(),
    metavar="NAME,...",
    help=(
        "Parameters (or globs) that look like a mask and may stay unchecked; any other that is not "
        "declared leaves its candidate inconclusive."
    ),
)
SEED: Final[Decorator] = click.option(
    "--seed",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    metavar="N",
    help="Where drawn examples start.",
)


AUTO: Final = "auto"
# The default of --max-time for a profile that explores.
NIGHT: Final = "1h"
_OPTIONS: Final = (
    click.option(
        "-n",
        "--jobs",
        metavar="N|auto",
        help=(
            "Spread the work over so many worker processes; auto: one a processor, at most 8. "
            "[default: 1; with --cluster as many as there is room for]"
        ),
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
            "Keep failing problems there and try them first the next time: "
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
    """The checked values of the options of a long run; ``jobs`` is None where nobody says."""

    jobs: int | None
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
    jobs: str | None,
    max_time: str | None,
    shard: str | None,
    databases: tuple[str, ...],
    seed: int | None,
) -> LongWork:
    """The checked values of the options; raises UsageError."""
    explores = PROFILES[profile].explores
    for text in databases:
        check_database(text)
    limit = max_time if max_time is not None or not explores else NIGHT
    return LongWork(
        jobs=None if jobs is None else _read_jobs(jobs),
        max_time=None if limit is None else read_seconds(limit),
        shard=WHOLE if shard is None else read_shard(shard),
        databases=databases,
        seed=seed if seed is not None else _today() if explores else 0,
    )


def _read_jobs(text: str) -> int:
    if text.strip().lower() == AUTO:
        from ..running.workers.pool import default_jobs  # noqa: PLC0415 (--help must not pay for it)

        return default_jobs()
    jobs = int(text) if text.strip().isascii() and text.strip().isdecimal() else 0
    if not 1 <= jobs <= MOST_WORKERS:
        msg = f"--jobs {text!r} is no number of workers: give 1 to {MOST_WORKERS}, or {AUTO}"
        raise UsageError(msg)
    return jobs


_CLUSTER: Final = (
    click.option(
        "--cluster",
        metavar="auto|HOST:PORT|local",
        help=(
            "Spread the work over a Ray cluster: the one that this machine is part of, the one "
            "with that head, or a new one on this machine."
        ),
    ),
    click.option(
        PER_WORKER,
        multiple=True,
        callback=separated(),
        metavar="NAME=NUMBER,...",
        help=(
            "What a worker takes of a machine of the cluster: num_cpus, num_gpus, memory, "
            "accelerator_type=NAME or a resource of your own. [default: num_cpus=1, and a GPU for "
            "a candidate that asks for one]"
        ),
    ),
)


def cluster_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the options of a run on a cluster; ``cluster_at`` obeys them."""
    for option in reversed(_CLUSTER):
        command = option(command)
    return command


@contextlib.contextmanager
def cluster_at(
    options: RunOptions, address: str | None, per_worker: tuple[str, ...], jobs: int | None
) -> Iterator[Cluster | None]:
    """The cluster at an address, None without one; raises UsageError."""
    if address is None:
        if per_worker:
            msg = f"{PER_WORKER} says what a worker takes of a cluster: give --cluster, too"
            raise UsageError(msg)
        yield None
        return
    from ..running.workers.cluster import Cluster, check_cluster  # noqa: PLC0415 (for --help)

    share = read_share(per_worker)
    check_cluster(options, address)
    with Cluster(address, share, jobs) as cluster:
        yield cluster


def _today() -> int:
    """The day in UTC as a number such as 20270131: the same seed on every machine of a night."""
    from ..base.limits import today  # noqa: PLC0415 (only where a profile explores)

    return int(today().strftime("%Y%m%d"))
