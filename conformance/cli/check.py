"""``conformance check``: every clause on every candidate of the targets.

With ``--watch`` it runs again whenever a file next to the targets changes, also during a run.
"""

from __future__ import annotations

import contextlib
import importlib.util
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final, Self

import click

from ..base.limits import read_bytes
from ..base.record import EXIT_INTERRUPTED, EXIT_USAGE, exit_code
from ..errors import UsageError
from ..targets.target_strings import path_of
from ._options import (
    DEVICE,
    DTYPE,
    FAIL_ON,
    ONLY,
    PROFILE,
    SKIP,
    STRICT,
    UNCHECKED,
    ConfiguredCommand,
    cluster_at,
    cluster_options,
    expected_failures_option,
    file_option,
    is_strict,
    json_option,
    long_options,
    read_long,
    timeout_option,
)
from ._output import (
    GITHUB,
    STANDARD_OUTPUT,
    VERBOSE,
    Files,
    announce,
    check_files,
    keep_so_far,
    progress_bar,
    show_run,
    stream_for,
    view_options,
    write_views,
)
from .completion import complete_targets

# Seconds that a call may take where it has to be compiled first, on a busy machine.
COMPILING = 300.0


@click.command(
    name="check",
    cls=ConfiguredCommand,
    examples=(
        (
            "conformance check attention.py:MyAttention",
            "A class, an object or a function of a file",
        ),
        ("conformance check attention.py --only mask", "All that a file declares, of one family"),
        ("conformance check model.onnx --html page.html", "An export, with a page to look at"),
        (
            "conformance check attention.py -x --lf",
            "What failed last time, up to the first failure",
        ),
        ("conformance check attention.py --json report.json", "A record, for render, diff, replay"),
    ),
)
@click.argument(
    "targets", nargs=-1, required=True, metavar="TARGET...", shell_complete=complete_targets
)
@PROFILE
@DTYPE
@DEVICE
@click.option(
    "--source",
    metavar="TARGET",
    shell_complete=complete_targets,
    help="The module (package.module:object) that the ONNX graph was exported from.",
)
@file_option(
    "--state-dict",
    help="The weights of the ONNX graph: .pt (weights only) or .safetensors.",
)
@file_option(
    "--declaration",
    help="TOML: roles and promises of the ONNX graph [default: NAME.conformance.toml beside it].",
)
@file_option(
    "--definition",
    help=(
        "JSON: a flashinfer-bench definition (gqa_ragged, gqa_paged, mla_paged, dsa_paged) that "
        "says how the function is called; its reference is not run."
    ),
)
@click.option(
    "--compile",
    "compiled",
    is_flag=True,
    help=(
        "Run every candidate through torch.compile, too, with static and with dynamic sizes; a "
        "call may then take five minutes."
    ),
)
@click.option(
    "--isolated",
    is_flag=True,
    help=(
        "Run the candidates in processes that cannot reach the judge: no network, files read-only, "
        "limits (Linux). Values are then drawn from a seed that nobody knows before, and causes "
        "have no line."
    ),
)
@long_options
@cluster_options
@ONLY
@SKIP
@UNCHECKED
@expected_failures_option(
    "TOML: [[expected]] tables with clause and reason, and kind, diagnosis, candidate, dtype, "
    "device, expires as needed."
)
@file_option(
    "--write-expected",
    help=(
        "Write the expected failures that make this run green there; entries of the file, and of "
        "--expected-failures, that still hold stay as they are."
    ),
)
@FAIL_ON
@STRICT
@click.option(
    "-x",
    "--exitfirst",
    is_flag=True,
    help="End with the first MUST that fails; what finds mistakes soonest runs first.",
)
@click.option(
    "--explain/--no-explain",
    default=True,
    help="Make failures small and look for the name of the mistake.  [default: --explain]",
)
@click.option(
    "--failed-first",
    "--lf",
    "failed_first",
    is_flag=True,
    help="Ask first what failed when these targets were last checked.",
)
@click.option(
    "--watch", is_flag=True, help="Run again whenever a file beside the targets changes (Ctrl-C)."
)
@timeout_option(
    "Stop a candidate that gives no answer for so long; loading may take twice as long."
)
@click.option(
    "--max-memory",
    metavar="SIZE",
    callback=lambda _context, _parameter, text: None if text is None else read_bytes(text),
    help=(
        "Stop a candidate whose process takes more memory (8G, 500M).  "
        "[default: three quarters of the machine's]"
    ),
)
@json_option("Write the record of the run there.")
@view_options()
@GITHUB
@VERBOSE
def check_command(
    *,
    targets: tuple[str, ...],
    profile: str,
    dtypes: tuple[str, ...],
    devices: tuple[str, ...],
    source: str | None,
    state_dict: Path | None,
    declaration: Path | None,
    definition: Path | None,
    compiled: bool,
    isolated: bool,
    jobs: str | None,
    max_time: str | None,
    shard: str | None,
    cluster: str | None,
    per_worker: tuple[str, ...],
    databases: tuple[str, ...],
    seed: int | None,
    only: tuple[str, ...],
    skip: tuple[str, ...],
    unchecked: tuple[str, ...],
    expected_failures: Path | None,
    write_expected: Path | None,
    fail_on: str | None,
    strict: bool,
    exitfirst: bool,
    explain: bool,
    failed_first: bool,
    watch: bool,
    timeout: float,
    max_memory: int | None,
    json_path: Path | None,
    views: Files,
    github: bool | None,
    verbosity: int,
) -> int:
    """Check every candidate of the targets.

    A TARGET is package.module:object, path/to/file.py:object, notebook.ipynb:object (its imports
    and definitions alone are run), a package, module, file or folder alone (every candidate
    declared in it), path/to/model.onnx, or the name of a registered
    candidate. Candidates run in a process of their own; what they print is not shown.
    Targets and options that are not given are those of [tool.conformance] in pyproject.toml:
    targets, profile, only, skip, expected-failures, max-time, dtype.
    """
    began = time.monotonic()  # what is imported now is part of the time that a run may take
    from ..base.profile import GraphOptions  # noqa: PLC0415
    from ..running.isolation.zygote import check_isolated, unforeseen_seed  # noqa: PLC0415
    from ..running.workers.messages import RunOptions  # noqa: PLC0415
    from ..running.workers.pool import WorkerPool, end_warm, warm_context  # noqa: PLC0415
    from ..session.checking import check  # noqa: PLC0415 (--help must not pay for it)
    from ..session.order import SOONEST, last_failed, remember_failed  # noqa: PLC0415
    from ..session.renewing import Gate  # noqa: PLC0415

    if watch:
        check_watching()
        if cluster is not None:
            msg = "--watch runs on this machine: leave out --cluster"
            raise UsageError(msg)
    strict = is_strict(fail_on, strict=strict)
    if isolated:
        seedless = shard is not None and seed is None
        check_isolated(compiled=compiled, devices=devices, seedless_shard=seedless)
        seed = unforeseen_seed() if seed is None else seed
    check_files(views, {"--json": json_path, "--write-expected": write_expected})
    work = read_long(
        profile, jobs=jobs, max_time=max_time, shard=shard, databases=databases, seed=seed
    )
    if write_expected == STANDARD_OUTPUT:
        msg = "--write-expected - names no file: it is read again, and needs one"
        raise UsageError(msg)
    if shard is not None and write_expected is not None:
        msg = "--write-expected needs the whole run, not a shard: give it to a run without --shard"
        raise UsageError(msg)
    options = RunOptions(
        targets=targets,
        profile=profile,
        seed=work.seed,
        compile=compiled,
        dtypes=dtypes or None,
        devices=devices or None,
        only=only,
        skip=skip,
        unchecked=unchecked,
        graph_options=GraphOptions(
            source=source,
            state_dict=None if state_dict is None else str(state_dict),
            declaration=None if declaration is None else str(declaration),
            definition=None if definition is None else str(definition),
        ),
        shard=work.shard,
        databases=work.databases,
        exitfirst=exitfirst,
        explain=explain,
        in_turn=watch or profile == "smoke",
        isolated=isolated,
        max_memory=max_memory,
    )
    context = warm_context() if watch else None
    changes = Changes(targets) if watch else None

    def run(began: float) -> int:
        failed = last_failed(targets) if failed_first else ()
        soonest = exitfirst or profile == "smoke"
        first = (*failed, *(SOONEST if soonest else ()))
        with (
            progress_bar() as progress,
            cluster_at(options, cluster, per_worker, work.jobs) as machines,
            contextlib.nullcontext() if changes is None else changes.ending(),
        ):
            report = check(
                replace(options, first=first),
                gate=Gate(expected=expected_failures, write=write_expected, strict=strict),
                timeout=max(timeout, COMPILING) if compiled else timeout,
                jobs=(work.jobs or 1) if machines is None else machines.jobs,
                max_time=work.max_time,
                began=began,
                progress=progress,
                announce=progress.announce,
                journal=None if json_path is None else partial(keep_so_far, json_path),
                make_pool=(
                    partial(WorkerPool, context=context) if machines is None else machines.make_pool
                ),
            )
        if changes is not None and changes.ended_run:
            return EXIT_INTERRUPTED
        report["fail_on"] = "should" if strict else "must"
        remember_failed(targets, report)
        try:
            write_views(report, views, json_path)
        finally:  # the verdict is shown although a disk is full
            show_run(report, stream_for(views, json_path), github=github, verbosity=verbosity)
        return exit_code(report, strict=strict)

    if changes is None:
        return run(began)
    try:
        return run_again(run, changes)
    finally:
        end_warm()


# Files besides Python whose change may change a verdict; nothing that a run writes.
_SUFFIXES: Final = (".ipynb", ".onnx", ".conformance.toml", ".data", ".pt", ".safetensors")

_TIMEOUT: Final = 200  # milliseconds
# Runs in a row that changes may end.
_MOST_ENDED: Final = 3


def check_watching() -> None:
    """Require the package that reports changes of files; raises UsageError."""
    if importlib.util.find_spec("watchfiles") is None:
        msg = "--watch needs watchfiles: pip install 'attention-conformance[watch]'"
        raise UsageError(msg)


class _FileChangedError(KeyboardInterrupt):
    """A file changed during a run on its earlier content."""


class Changes:
    """A thread that waits for changes of files beside the targets; a change ends the current run.

    A verdict on old code helps nobody, and a hanging candidate may be mended.
    """

    def __init__(self, targets: Sequence[str]) -> None:
        self.ended_run = False
        self._folders = list(_folders(targets))
        self._judging = False
        self._trouble = ""
        self._ended = 0
        self._before: Any = signal.SIG_DFL
        self._began, self._came, self._over = (threading.Event() for _ in range(3))
        self._thread = threading.Thread(target=self._wait_for_all, daemon=True)

    def __enter__(self) -> Self:
        """Wait for changes from now on."""
        self._before = signal.signal(signal.SIGUSR1, self._end_run)
        self._thread.start()
        self._began.wait()
        try:
            self._require_watching()
        except UsageError:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        """Wait no longer."""
        self._over.set()
        self._thread.join()
        signal.signal(signal.SIGUSR1, self._before)

    @contextlib.contextmanager
    def ending(self) -> Iterator[None]:
        """Where a change raises KeyboardInterrupt, once.

        Of some runs in a row that are ended, as where a candidate writes files itself, the next is
        not.
        """
        self.ended_run, self._judging = False, self._ended < _MOST_ENDED
        try:
            if self._came.is_set():
                self._end_run()
            yield
        finally:
            self._judging = False
            self._ended = self._ended + 1 if self.ended_run else 0

    def wait(self) -> None:
        """Return after the next change, or at once after a change since ``forget``."""
        while not self._came.wait(_TIMEOUT / 1000):
            pass
        self._require_watching()

    def forget(self) -> None:
        """Drop the changes so far: the next run judges them."""
        self._came.clear()

    def _require_watching(self) -> None:
        if self._trouble:
            msg = f"--watch cannot wait for changes: {self._trouble}"
            raise UsageError(msg)

    def _wait_for_all(self) -> None:
        from watchfiles import PythonFilter, watch  # noqa: PLC0415 (an extra)

        try:
            for changed in watch(
                *self._folders,
                watch_filter=PythonFilter(extra_extensions=_SUFFIXES),
                stop_event=self._over,
                yield_on_timeout=True,  # nothing, at first once it watches
                rust_timeout=_TIMEOUT,
            ):
                self._began.set()
                if changed:
                    self._came.set()
                    signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)
        except Exception as error:  # noqa: BLE001 (of the system, in words of its own)
            self._trouble = str(error) or type(error).__name__
            self._began.set()
            self._came.set()

    def _end_run(self, *_: object) -> None:
        """End the run; called in the main thread, and outside of a run without effect.

        A run that Ctrl-C already ends is left alone: further signals are then ignored.
        """
        if self._judging and signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
            self._judging, self.ended_run = False, True
            raise _FileChangedError


def run_again(run: Callable[[float], int], changes: Changes) -> int:
    """Run at once and after every change, until Ctrl-C; the exit code of the last run's verdict.

    Bad input ends no watch: the next change may mend it. An interrupted run has no verdict.
    """
    with changes:
        while True:
            changes.forget()
            code = _run_once(run)
            if changes.ended_run:
                click.echo("\na file changed: it is judged anew", err=True)
                continue
            if code == EXIT_INTERRUPTED:
                return code
            sys.stdout.flush()
            click.echo("\nwaiting for a change (Ctrl-C ends)", err=True)
            try:
                changes.wait()
            except KeyboardInterrupt:
                return EXIT_INTERRUPTED if code == EXIT_USAGE else code


def _run_once(run: Callable[[float], int]) -> int:
    try:
        return run(time.monotonic())
    except _FileChangedError:
        return EXIT_INTERRUPTED
    except UsageError as error:
        announce(f"conformance: {error}")
        return EXIT_USAGE


def _folders(targets: Sequence[str]) -> Iterator[Path]:
    """The folders of targets that are paths, and the working folder for other targets."""
    folders: dict[Path, None] = {}
    for target in targets:
        path = path_of(target) or Path.cwd()
        folder = path if path.is_dir() else path.parent
        folders[folder.resolve()] = None
    yield from folders
