"""Verdicts from Python: ``conformance.check``, and ``Judge`` for many candidates in a row."""

from __future__ import annotations

import ast
import contextlib
import re
import sys
import tempfile
import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from keyword import iskeyword
from multiprocessing.context import BaseContext
from pathlib import Path
from typing import Any, Final, Self

from .._golden import golden
from ..base.files import scratch, write_text
from ..base.limits import Deadline, read_bytes
from ..base.profile import DEFAULT_PROFILE, DTYPES, profile_named
from ..base.record import GREEN, CandidateEntry, Record, record_text
from ..base.results import ClauseResult, result_from_json
from ..errors import NonconformanceError, UsageError, did_you_mean
from ..running.isolation.zygote import check_isolated, unforeseen_seed
from ..running.workers.messages import RunOptions
from ..running.workers.pool import WorkerPool, warm_context
from ..running.workers.supervisor import DEFAULT_TIMEOUT, Supervisor
from ..session.checking import MakePool
from ..session.checking import check as check_targets
from ..session.order import SOONEST
from ..views.complete import complete
from ..views.html import render_fragment
from ..views.summary import summary
from ..views.verdict_marks import overall
from ..views.wording import said_line

_OBJECT: Final = "object"


@dataclass(frozen=True, kw_only=True)
class Cause:
    """Why some clauses of a candidate failed.

    ``name``, ``text`` and ``fix`` are the diagnosis, ``alternatives`` the names of other mistakes
    that explain as much. ``clauses`` are the slugs of the failed clauses, ``level`` the strictest
    of their levels. ``counterexample`` is their smallest input as plain data, with the key
    ``problem`` that rebuilds it; None if no input was kept. ``line`` is ``attention.py:32: …``, the
    line that makes the mistake, or "" if the line is not certain.
    """

    name: str
    text: str
    fix: str
    confidence: float
    level: str
    clauses: tuple[str, ...]
    alternatives: tuple[str, ...] = ()
    line: str = ""
    counterexample: dict[str, Any] | None = field(default=None, repr=False)


@dataclass(frozen=True, kw_only=True)
class CandidateReport:
    """The verdict on a candidate, its causes and the results of the clauses."""

    name: str
    target: str
    verdict: str
    reason: str
    causes: tuple[Cause, ...]
    clauses: tuple[ClauseResult, ...] = field(repr=False)

    @property
    def conforms(self) -> bool:
        """Whether every applicable MUST held, expected failures aside."""
        return self.verdict in GREEN


@dataclass(frozen=True, kw_only=True)
class Report:
    """What a check found. ``record`` is the JSON document that ``check --json`` writes, as data."""

    record: Record = field(repr=False)
    verdict: str
    candidates: tuple[CandidateReport, ...]

    @property
    def conforms(self) -> bool:
        """Whether every candidate conforms, also with deviations or up to gauge."""
        return overall(self.record).green

    @property
    def causes(self) -> tuple[Cause, ...]:
        """The causes of all candidates, in their order: that of a model and its attention once."""
        causes: dict[tuple[str, ...], Cause] = {}
        for one in self.candidates:
            model = one.target.partition("#")[0]
            for cause in one.causes:
                causes.setdefault((model, cause.name, cause.text, cause.fix), cause)
        return tuple(causes.values())

    @property
    def reason(self) -> str:
        """Why it does not conform, in words for whoever is to mend it; "" where all conforms.

        The first cause that fails a MUST, with its fix; where none does, such as where the time was
        up, the reason for the verdict. A recommendation is no reason.
        """
        if self.conforms:
            return ""
        failing = (cause for cause in self.causes if cause.level == "MUST")
        cause = next(failing, None)
        if cause is None or self.verdict != "fails":
            return overall(self.record).reason
        return "; ".join(filter(None, (f"{cause.name}: {cause.text}", cause.fix)))

    @property
    def clauses(self) -> tuple[ClauseResult, ...]:
        """The results of all candidates, in their order."""
        return tuple(clause for candidate in self.candidates for clause in candidate.clauses)

    def to_json(self) -> str:
        """The record as text, as ``conformance check --json`` writes it."""
        return record_text(self.record)

    def raise_for_verdict(self) -> None:
        """Raise NonconformanceError (an AssertionError) that says why, unless all conforms."""
        if not self.conforms:
            raise NonconformanceError(str(self))

    def __str__(self) -> str:
        entries = complete(self.record)["candidates"]
        lines = [line.plain for entry in entries for line in summary(entry)]
        return "\n".join(lines) or overall(self.record).reason

    def _repr_html_(self) -> str:
        page: str = render_fragment(self.record)
        return page


def report_of(record: Record) -> Report:
    """A record as a report."""
    return Report(
        record=record,
        verdict=overall(record).word,
        candidates=tuple(map(_candidate, record["candidates"])),
    )


def _candidate(entry: CandidateEntry) -> CandidateReport:
    causes = [
        Cause(
            name=cause["name"],
            text=cause["text"],
            fix=cause["fix"],
            confidence=float(cause["confidence"]),
            level=cause["level"],
            clauses=tuple(cause["clauses"]),
            alternatives=tuple(str(other["name"]) for other in cause.get("alternatives", ())),
            line=said_line(cause),
            counterexample=cause["counterexample"],
        )
        for cause in entry["causes"]
    ]
    clauses = [
        result_from_json({name: value for name, value in clause.items() if name != "requirement"})
        for clause in entry["clauses"]
    ]
    return CandidateReport(
        name=entry["name"],
        target=entry["target"],
        verdict=entry["verdict"],
        reason=entry["verdict_reason"],
        causes=tuple(causes),
        clauses=tuple(clauses),
    )


def check(
    target_or_candidate: Any,
    *,
    profile: str = DEFAULT_PROFILE,
    only: str | Iterable[str] = (),
    skip: str | Iterable[str] = (),
    dtypes: str | Iterable[str] = (),
    exitfirst: bool = False,
    explain: bool = True,
    time_limit: float | None = None,
    seed: int | None = None,
    isolated: bool = False,
) -> Report:
    """Check a candidate, or every candidate of a target, and return the report.

    target_or_candidate
        A target as on the command line (``"package.module:object"``, a file, a folder), which runs
        in a process of its own; or an object: a declared candidate, a ``torch.nn.Module``, a list
        of candidates, a callable that returns one. An object runs in this process, where nothing
        can stop what hangs, outside of inference mode, autocast and default devices that are
        entered; in one thread at a time, for which others wait no longer than their ``time_limit``.
    profile, only, skip, dtypes, seed
        As on the command line; ``only`` and ``skip`` are globs of clauses, one or several.
    exitfirst
        End with the first MUST that fails; what finds mistakes soonest runs first.
    explain
        Make failures small and name them. Without that a cause is called after the clause that
        failed, its input is as it was drawn, and a failure comes in less than half of the time.
    time_limit
        Seconds after which no further example is begun: the verdict is then inconclusive at best.
    isolated
        Run a target in a process that cannot reach the judge: see docs/judge.md. Without a ``seed``
        one is drawn that nobody knows before.

    Raises UsageError for what cannot be used, HarnessError where the harness itself fails.
    """
    options = _options(profile, only, skip, dtypes, seed, exitfirst=exitfirst, isolated=isolated)
    options = replace(options, explain=explain)
    return _checked(target_or_candidate, options, time_limit)


class Judge:
    """Checks many candidates: processes start warm, and each candidate has one of its own.

    A context manager. The options of :meth:`check` are those of :func:`check`. Every clause has one
    example before any has many. A process that has
    imported torch and the harness is forked for each candidate: what crashes or hangs costs its
    own time and nothing else, and nothing of it stays in memory.

    timeout
        Seconds after which a call that gives no answer is stopped: the candidate hangs.
    isolated
        Run targets and sources in processes that cannot reach the judge: see :func:`check`.
    max_memory
        Memory after which a candidate's process is stopped, in bytes or as ``"8G"``: it crashes.
        By default three quarters of the machine's.
    promises
        What sources promise where :meth:`check_source` is given nothing else. What follows from
        promises alone is computed once, before the first candidate, for the first ``Judge`` of a
        process: failures are then named sooner.
    """

    def __init__(
        self,
        *,
        timeout: float = DEFAULT_TIMEOUT,
        isolated: bool = False,
        max_memory: int | str | None = None,
        promises: dict[str, Any] | None = None,
    ) -> None:
        _check_seconds("timeout", timeout)
        self._timeout = timeout
        self._isolated = isolated
        self._max_memory = None if max_memory is None else read_bytes(str(max_memory), "max_memory")
        self._promises = None if promises is None else _literals(promises)
        self._context = warm_context(self._promises, isolated=isolated)
        self._is_warm = False
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._count = 0

    def __enter__(self) -> Self:
        self._folder = tempfile.TemporaryDirectory(prefix="conformance-judge-", dir=scratch())
        return self

    def __exit__(self, *_: object) -> None:
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None

    def check(
        self,
        target_or_candidate: Any,
        *,
        profile: str = DEFAULT_PROFILE,
        only: str | Iterable[str] = (),
        skip: str | Iterable[str] = (),
        dtypes: str | Iterable[str] = (),
        exitfirst: bool = False,
        explain: bool = True,
        time_limit: float | None = None,
        seed: int | None = None,
    ) -> Report:
        """The report on a target or an object, as of :func:`check`; an object runs in here."""
        options = _options(
            profile, only, skip, dtypes, seed, exitfirst=exitfirst, isolated=self._isolated
        )
        options = replace(options, explain=explain, max_memory=self._max_memory, in_turn=True)
        if time_limit is not None and isinstance(target_or_candidate, (str, Path)):
            self._warm_up()
        return _checked(target_or_candidate, options, time_limit, self._context, self._timeout)

    def check_source(
        self,
        text: str,
        entry: str,
        *,
        promises: dict[str, Any] | None = None,
        profile: str = DEFAULT_PROFILE,
        only: str | Iterable[str] = (),
        skip: str | Iterable[str] = (),
        dtypes: str | Iterable[str] = (),
        exitfirst: bool = False,
        explain: bool = True,
        time_limit: float | None = None,
        seed: int | None = None,
    ) -> Report:
        """The report on Python source, such as generated code; it runs in a process of its own.

        entry
            The name in the text: a declared candidate, a module, or a function, which ``promises``
            declare: keywords of ``conformance.core`` as literals, such as ``{"masks": ["keep"]}``,
            and ``"semantics"`` as a :class:`Semantics` or the fields that differ from the standard.
            Without them a function of three arguments or more is a core that promises nothing.

        Source that does not compile, or raises when it is imported, is a UsageError that says so.
        """
        if self._folder is None:
            msg = "a Judge is a context manager: with conformance.Judge() as judge: …"
            raise UsageError(msg)
        options = _options(
            profile, only, skip, dtypes, seed, exitfirst=exitfirst, isolated=self._isolated
        )
        given = self._promises if promises is None else _literals(promises)
        options = replace(options, explain=explain, max_memory=self._max_memory, promises=given)
        options = replace(options, in_turn=True)
        target = self._written(text, entry, declares=given is None)
        if time_limit is not None:
            self._warm_up()
        return _checked(target, options, time_limit, self._context, self._timeout)

    def _warm_up(self) -> None:
        """Wait, once, until processes can be forked: that is nobody's time."""
        if self._context is None or self._is_warm:
            return
        with Supervisor(RunOptions(targets=()), context=self._context) as supervisor:
            supervisor.start()
        self._is_warm = True

    def _written(self, text: str, entry: str, *, declares: bool) -> str:
        """Write the source to a file in a new folder, and return the target.

        With ``declares`` a function of three parameters or more without declaration becomes a core.
        """
        if not isinstance(text, str):
            msg = f"the source is a {type(text).__name__}, no text: decode it first"
            raise UsageError(msg)
        if not isinstance(entry, str) or not entry.isidentifier() or iskeyword(entry):
            msg = f"entry={entry!r} is no name in a text of Python: give that of the function"
            raise UsageError(msg)
        assert self._folder is not None  # noqa: S101 (as the caller has checked)
        self._count += 1
        folder = Path(self._folder.name, str(self._count))
        folder.mkdir()
        text = _COOKIE.sub(r"\1 \2", text)
        text += _PLAIN.format(entry=entry) if declares else ""
        write_text(text, folder / "generated.py")
        return f"{folder / 'generated.py'}:{entry}"


# What says in the first two lines of a file how it is encoded. A text is encoded already.
_COOKIE: Final = re.compile(r"\A((?:[^\n]*\n)?[ \t\f]*#.*?coding)([:=])")
_PLAIN: Final = """

import inspect as _inspect
import conformance as _conformance

if _inspect.isfunction(globals().get("{entry}")):
    if len(_inspect.signature({entry}).parameters) > 2:
        {entry} = _conformance.core({entry})
"""


def _literals(promises: dict[str, Any]) -> dict[str, Any]:
    """Promises as literals, the semantics by its fields; raises UsageError for others."""
    text = "..."
    try:
        text = f"{promises!r:.80}"
        semantics = promises.get("semantics")
        if isinstance(semantics, golden.Semantics):
            differing = golden.STANDARD.differences(semantics)
            fields = {name: chosen for name, (_, chosen) in differing.items()}
            promises = {**promises, "semantics": fields}
        named = all(isinstance(name, str) for name in promises)
        fits = isinstance(promises.get("semantics", {}), dict)
        if named and fits and ast.literal_eval(repr(promises)) == promises:
            return promises
    except (AttributeError, TypeError, ValueError, SyntaxError, RecursionError):
        pass
    instead = "declare the candidate in the source itself"
    msg = f"promises={text} is no dict of literals by name: {instead}"
    raise UsageError(msg)


def _options(
    profile: str,
    only: str | Iterable[str],
    skip: str | Iterable[str],
    dtypes: str | Iterable[str],
    seed: int | None,
    *,
    exitfirst: bool,
    isolated: bool,
) -> RunOptions:
    if seed is not None and (isinstance(seed, bool) or not isinstance(seed, int) or seed < 0):
        msg = f"seed={seed!r} is no seed: give a whole number from 0 on"
        raise UsageError(msg)
    chosen_profile = profile_named(profile)
    chosen = _texts("dtypes", dtypes)
    for dtype in chosen:
        if dtype not in DTYPES:
            msg = f"there is no dtype {dtype!r}{did_you_mean(dtype, DTYPES)}"
            raise UsageError(msg)
    if isolated:
        check_isolated()
    return RunOptions(
        targets=(),
        profile=chosen_profile.name,
        seed=seed or (unforeseen_seed() if seed is None and isolated else 0),
        isolated=isolated,
        only=_texts("only", only),
        skip=_texts("skip", skip),
        dtypes=chosen or None,
        exitfirst=exitfirst,
        first=SOONEST if exitfirst or chosen_profile.name == "smoke" else (),
    )


def _texts(name: str, value: str | Iterable[str]) -> tuple[str, ...]:
    if isinstance(value, str):
        return (value,)
    if isinstance(value, Iterable):
        every = tuple(value)
        if all(isinstance(text, str) for text in every):
            return every
    such = {"dtypes": "float32", "only": "mask.golden", "skip": "mask.*"}[name]
    msg = f"{name}={value!r:.80} is neither a text nor several: give {such!r}, or a list of such"
    raise UsageError(msg)


def _check_seconds(name: str, value: float) -> None:
    """Require a number of seconds; infinity is no limit."""
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not number or not value > 0 or (isinstance(value, int) and value > sys.float_info.max):
        msg = f"{name}={value!r:.80} is no time: give seconds above 0"
        raise UsageError(msg)


# What a call changes is looked for in the whole process: another check would be taken for that.
_ONE_AT_A_TIME: Final = threading.RLock()


@contextlib.contextmanager
def _alone(time_limit: float | None) -> Iterator[None]:
    """While no other thread checks an object; raises UsageError after the time for the check."""
    if not _ONE_AT_A_TIME.acquire(timeout=-1 if time_limit is None else time_limit):
        msg = f"another thread checked objects for all of time_limit={time_limit:g} s: use a Judge"
        raise UsageError(msg)
    try:
        yield
    finally:
        _ONE_AT_A_TIME.release()


def _checked(
    target: Any,
    options: RunOptions,
    time_limit: float | None,
    context: BaseContext | None = None,
    timeout: float = DEFAULT_TIMEOUT,
) -> Report:
    """The report on a target, in workers of a context, or on an object, in this process."""
    if time_limit is not None:
        _check_seconds("time_limit", time_limit)
    ask = partial(check_targets, timeout=timeout, max_time=time_limit)
    if isinstance(target, (str, Path)):
        options = replace(options, targets=(str(target),))
        record = ask(options, make_pool=partial(WorkerPool, context=context))
    elif options.isolated:
        msg = "an object lives in this process: name a target for isolated=True, or give its source"
        raise UsageError(msg)
    else:
        from ..calls import torch_state  # noqa: PLC0415 (loads torch)

        with _alone(time_limit), torch_state.outside():
            record = ask(options, make_pool=_in_process(target))
    if record["interrupted"]:
        raise KeyboardInterrupt
    # As the command records without --strict: every view then counts equally.
    return report_of({**record, "fail_on": "must"})


def _in_process(target: Any) -> MakePool:
    from ..identification.opening import open_object  # noqa: PLC0415
    from ..running.workers.in_process import InProcessPool  # noqa: PLC0415 (loads torch)
    from ..targets.resolving import unique_names  # noqa: PLC0415

    candidates = unique_names(open_object(target, _OBJECT))

    def make(
        options: RunOptions, *, jobs: int, timeout: float, deadline: Deadline | None
    ) -> WorkerPool:
        del jobs, timeout
        return InProcessPool(candidates, options, deadline=deadline)

    return make
