"""Candidates with their plans: what the worker and the pytest plugin both start from."""

from __future__ import annotations

import math
import signal
import socket
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, Final

from ..._golden import golden
from ...adapters.compiled import compiled_variants
from ...base.limits import is_slow
from ...base.parameter_names import OptionParameter
from ...base.patience import fair_clock
from ...base.profile import NO_GRAPH_OPTIONS, profile_named
from ...base.record import SiteEntry
from ...base.results import ClauseResult, Violation, result_from_json
from ...calls import torch_state
from ...calls.calling import CandidateFailure, RowWithoutKeysRefused
from ...calls.devices import why_absent
from ...calls.integrity import seal
from ...calls.ranks import spanning
from ...clauses.registry import all_clauses, specification_hash
from ...clauses.subject import Subject
from ...declare.candidate import Candidate
from ...declare.declaration import WHOLE_MODEL
from ...errors import RAISED_AT, DeclarationError, UsageError
from ...identification.opening import resolve_one
from ...problems.edges import edge_problems
from ...problems.inputs import Inputs
from ...problems.problem import Problem
from ...targets.declaring import how_to_answer
from ...targets.preflight import check_layer, unchecked_options
from ...targets.resolving import object_of, promised_core, unique_names
from ...targets.source_location import declared_expectations, whereabouts
from ...targets.target_strings import is_graph
from ...tolerance import contract_for
from ...tolerance.contract import describe
from ..clause_problems import FailureMemory
from ..clause_run import ClauseRun, PlannedClause, Progress
from ..databases import is_on_this_machine, open_databases
from ..isolation.proxies import Isolated, isolated_candidates
from ..isolation.remote import Remote
from ..runner import CandidateRun
from ..tally import Tally
from .messages import Loaded, Order, RunOptions

# The clause preferred for showing that every call raises.
_WITNESS: Final = "shape.output"
# Edges of each space tried before a candidate counts as never answering; the seconds after which no
# statement is made: a call of waiting ranks may take its whole limit.
_OF_EACH_SPACE: Final = 3
_LONGEST_TRIAL: Final = 60.0
_LACKS_IMPORT: Final = ("raised ImportError", "raised ModuleNotFoundError")


@dataclass(frozen=True, kw_only=True)
class Silence:
    """The exception of the first trial call, where every trial call raised."""

    dtype: str
    device: str
    calls: int
    violation: Violation

    @property
    def place(self) -> tuple[str, str]:
        """Dtype and device."""
        return self.dtype, self.device

    def sentence(self, candidate: Candidate) -> str:
        """What is wrong with a candidate, with the way to the exception in lines of their own."""
        shown = f"{candidate.name}{f' ({candidate.target})' if candidate.target else ''}"
        missing = "; ".join(candidate.warnings)
        lines = reversed(self.violation.traceback.splitlines())
        way = f"{RAISED_AT}{next(lines, '')}" + "".join(f"\n  called at {line}" for line in lines)
        said = (
            f"no call of {shown} succeeds: each of {self.calls} trial calls raised, the first "
            f"{self.violation.message.removeprefix('raised ')}"
        )
        mended, target = "", candidate.target
        # An object given directly has no name a file could load it by.
        lacks_import = self.violation.message.startswith(_LACKS_IMPORT)  # no other call mends it
        if candidate.reading and candidate.kind == "layer" and ":" in target and not lacks_import:
            mended = how_to_answer(object_of(target), target, candidate.declaration.inputs)
        if not mended:
            said += f"; {missing or 'mend the call, or pin with geometry= what it can take'}"
        return f"{said}{way}{mended}"


def silences(run: CandidateRun, planned: Sequence[PlannedClause]) -> list[Silence]:
    """The dtypes and devices in which every trial call of a candidate raised."""
    places = dict.fromkeys(clause.place for clause in planned if not clause.reason)
    return [silence for place in places if (silence := _silence(run, *place)) is not None]


def is_silent(silent: Sequence[Silence], planned: Sequence[PlannedClause]) -> bool:
    """Tell whether every trial call raised, on all planned dtypes and devices."""
    places = {clause.place for clause in planned if not clause.reason}
    return bool(places) and places == {silence.place for silence in silent}


def leave_repetitions_out(
    planned: Sequence[PlannedClause], silent: Sequence[Silence]
) -> list[PlannedClause]:
    """Return the plan with one clause showing the exception; the remaining clauses refer to it.

    Clauses on a graph's file need no call and stay unchanged.
    """
    witnesses = {silence.place: _witness(planned, silence) for silence in silent}

    def kept(clause: PlannedClause) -> PlannedClause:
        witness = witnesses.get(clause.place, "")
        if clause.reason or not witness or clause.id == witness or clause.family == "export":
            return clause
        where = clause.dtype if clause.device == "cpu" else f"{clause.dtype} on {clause.device}"
        reason = f"not asked: every call in {where} raises, as {witness} tells"
        return replace(clause, reason=reason)

    return [kept(clause) for clause in planned]


def _witness(planned: Sequence[PlannedClause], silence: Silence) -> str:
    own = (clause for clause in planned if not clause.reason and clause.place == silence.place)
    calls = [clause for clause in own if clause.family != "export"]
    ranked = sorted(calls, key=lambda clause: (clause.level != "MUST", clause.id != _WITNESS))
    return ranked[0].id if ranked else ""


def _silence(run: CandidateRun, dtype: str, device: str) -> Silence | None:
    """Try calls until one succeeds and is timed (None); else return the first call's exception."""
    first: Violation | None = None
    calls, until = 0, time.monotonic() + _LONGEST_TRIAL
    # A separate subject: trial calls are no examples, and torch may stay as candidates loaded it.
    subject = Subject(run.candidate, dtype, device, sealed=seal(everywhere=False))
    with torch_state.one_thread(), torch_state.neutral():
        for problem in _problems(run, dtype, device):
            calls += 1
            if time.monotonic() > until:
                return None
            try:
                inputs = subject.inputs(problem)
                seconds = _call_seconds(subject, inputs)
            except KeyboardInterrupt:
                if not _ignores_interrupts():
                    raise
                return None  # the run says so
            except RowWithoutKeysRefused:
                continue
            except CandidateFailure as failure:
                if failure.violation.kind != "raised":
                    return None
                first = first or failure.violation
            else:
                run.call_seconds = max(run.call_seconds, seconds)
                return None
    if first is None:
        return None
    return Silence(dtype=dtype, device=device, calls=calls, violation=first)


def _call_seconds(subject: Subject, inputs: Inputs) -> float:
    """Return the seconds of a call, if slow the minimum of two: the first may load or compile.

    Raises CandidateFailure.
    """
    seconds = math.inf
    for _ in range(2):
        began = fair_clock()
        subject.call(subject.forward(inputs), inputs)
        seconds = min(seconds, fair_clock() - began)
        if not is_slow(seconds):
            break
    return seconds


def _problems(run: CandidateRun, dtype: str, device: str) -> Iterator[Problem]:
    """Yield edges of the spaces of all applicable clauses, then problems of the plainest space.

    Selected clauses make no difference: a single clause may use an input the candidate refuses.
    """
    candidate = run.candidate.on(device)
    spaces = []
    for clause in sorted(all_clauses(), key=lambda clause: clause.id != _WITNESS):
        if clause.space in spaces or clause.not_applicable(candidate):
            continue  # most candidates answer the first problem: the rest is not looked at
        spaces.append(clause.space)
        edges = edge_problems(run.candidate, clause.space, dtype=dtype, most=_OF_EACH_SPACE)
        yield from (problem.replace(device=device) for problem in edges)
    for space in spaces[:1]:
        yield from run.pool.problems(space, dtype, device)


def trouble_job(
    plan: CandidatePlan, _argument: Any, _report_step: Callable[[str, str], None]
) -> list[str]:
    """Return a sentence if a database could not be read or written during the run, else nothing."""
    memory = plan.run.memory
    if memory is None or not memory.trouble:
        return []
    return [f"failures were not all remembered: the database {memory.trouble}"]


def tampered_job(
    plan: CandidatePlan, _argument: Any, _report_step: Callable[[str, str], None]
) -> list[str]:
    """Return a sentence on tampering with the judge that no executed clause reports, or nothing."""
    names = dict.fromkeys(name for subject in plan.run.subjects for name in subject.tampered())
    if not names:
        return []
    said = f"a call changed what judges it ({', '.join(names)}), and was put right"
    return [f"{said}: state.untampered, which was not among the clauses, fails for that"]


def explained_job(
    plan: CandidatePlan, failures: Sequence[dict[str, Any]], report_step: Callable[[str, str], None]
) -> list[str]:
    """Return :meth:`CandidateRun.explained_by` of each failure, given as entries of a record."""
    names = []
    for failure in failures:
        report_step("explaining", failure["id"])
        names.append(plan.run.explained_by(result_from_json(failure)))
    return names


# No power of four: multiplying by the scale rounds.
ANY_SCALE: Final = 0.3
_ANYONES_CHOICE: Final = ("causal_alignment",)
# Unavoidable choices of code nobody declared: no biases, and an answer without keys.
_CHOICES_UNDECLARED: Final = (
    *_ANYONES_CHOICE,
    *("empty_rows", "query_bias", "key_bias", "value_bias", "output_bias"),
)


def _is_scaled_before(site: SiteEntry) -> bool:
    """Whether the standard's scale stands before an attention, which goes without."""
    size, scale, above = (site.get(name) for name in ("head_size", "scale", "scaled_above"))
    if not (isinstance(size, int) and isinstance(scale, float) and isinstance(above, float)):
        return False
    return f"{scale * above * math.sqrt(size):.2f}" == f"{1:.2f}"


@dataclass(frozen=True, kw_only=True)
class CandidatePlan:
    """A candidate with its run and the planned clauses."""

    candidate: Candidate
    run: CandidateRun
    planned: list[PlannedClause]
    notes: tuple[str, ...] = ()
    unchecked: tuple[OptionParameter, ...] = ()
    isolated: Isolated | None = None

    def loaded(self) -> Loaded:
        """The plan as plain data."""
        candidate = self.candidate
        changed = golden.STANDARD.differences(candidate.declaration.semantics)
        choices = set(_ANYONES_CHOICE if candidate.reading is None else _CHOICES_UNDECLARED)
        site = candidate.site
        if site is not None and _is_scaled_before(site):
            choices.add("scale")
        return Loaded(
            name=candidate.name,
            target=candidate.target,
            kind="core" if site is not None else candidate.shown_kind,
            declaration={
                **candidate.declaration.as_json(),
                "precision": _precision(self.run),
            },
            gauge=_gauge(candidate),
            deviations=tuple(name for name in changed if name not in choices),
            expected=declared_expectations(candidate),
            planned=tuple(self.planned),
            location=whereabouts(candidate) if self.isolated is None else self.isolated.location,
            notes=(*self.notes, *candidate.warnings),
            unchecked=self.unchecked,
            unjudged=candidate.unjudged,
            mistaken=_mistaken(candidate.declaration.semantics),
            isolation="" if self.isolated is None else self.isolated.held,
            site=site,
            reading=candidate.reading,
            sites=tuple(getattr(candidate.function, "described", ())),
            call_seconds=self.run.call_seconds,
        )


def _mistaken(point: golden.Semantics) -> tuple[str, ...]:
    """Name conventions nobody chooses on purpose; the standard point needs no diagnosis import."""
    if point == golden.STANDARD:
        return ()
    from ...diagnosis.mistakes import mistaken_conventions  # noqa: PLC0415

    return tuple(f"{one.sentence} ({one.name})" for one in mistaken_conventions(point))


def run_clause(
    run: CandidateRun,
    clause: PlannedClause,
    order: Order,
    tell: Callable[[str, Any], None] = lambda _tag, _what: None,
) -> ClauseResult:
    """Run or explain one clause; ``tell`` gets each ``example`` beforehand, and a ``failure``.

    Exceptions passed on by the runner end in the result, except a real Ctrl-C.
    """
    started, progress = time.perf_counter(), Progress()

    def on_event(tag: str, what: Any) -> None:
        progress.receive(tag, what)
        tell(tag, what)

    def on_example(problem: dict[str, Any], tally: Tally) -> None:
        on_event("example", (problem, tally.counted()))

    clause_run = ClauseRun(
        until=None if order.seconds is None else fair_clock() + order.seconds,
        on_example=on_example,
        on_failure=lambda failure: on_event("failure", failure.as_json()),
        deferred=order.deferred,
        round=order.round,
        most=order.most,
        search=order.search,
    )
    try:
        if order.failure is None:
            return run.run(clause, clause_run=clause_run)
        return run.explain_failure(clause, result_from_json(order.failure), clause_run)
    except BaseException as error:  # (a verdict: the candidate's or the harness' fault)
        if isinstance(error, KeyboardInterrupt) and not _ignores_interrupts():
            raise
        return progress.ended(clause, error, time.perf_counter() - started)


def _ignores_interrupts() -> bool:
    """Tell whether Ctrl-C is ignored here: a KeyboardInterrupt is then the candidate's."""
    return signal.getsignal(signal.SIGINT) is signal.SIG_IGN


def _precision(run: CandidateRun) -> dict[str, list[str]]:
    """Describe the declared tolerances by dtype, valid at any scale.

    With several devices the device is named: tensor cores sum differently from a CPU.
    """
    several = len(run.devices) > 1
    return {
        f"{dtype} on {device}" if several else dtype: describe(
            contract_for(run.candidate.on(device).declaration, dtype, ANY_SCALE)
        )
        for device in run.devices
        for dtype in run.dtypes
    }


def _gauge(candidate: Candidate) -> str:
    """Describe the facts about a candidate that no clause can verify, "" if none."""
    if candidate.graph is not None and candidate.graph.projections.gauge:
        return candidate.graph.projections.gauge
    if candidate.golden_known:
        return ""
    if candidate.kind == WHOLE_MODEL:
        return (
            "no golden answer of a whole model exists: it was held against its own answers, and "
            "what stands outside its attentions, such as rotary positions, was not judged"
        )
    why = "its weights are unknown" if not candidate.weights_known else "it mixes in positions"
    return f"{why}, so no golden answer was compared"


OnStep = Callable[[str, str], None]


def plan_targets(
    options: RunOptions, on_step: OnStep = lambda _what, _name: None
) -> list[CandidatePlan]:
    """Load the targets and plan their clauses; raises UsageError with one sentence.

    ``on_step`` gets each step (``loading``, ``building``, ``planning``) beforehand.
    """
    # Options for graphs go to the graphs; without a graph the first target refuses them.
    graphs = [target for target in options.targets if is_graph(target)] or options.targets
    if options.isolated:
        options = replace(options, devices=options.devices or ("cpu",))
        isolated = _isolated(options, on_step)
        named = unique_names(each.candidate for each in isolated)
        return plan_candidates(named, options, on_step, isolated)
    candidates: list[Candidate] = []
    for target in options.targets:
        on_step("loading", target)
        own = options.graph_options if target in graphs else NO_GRAPH_OPTIONS
        if options.promises is not None:
            candidates.append(promised_core(target, options.promises))
        else:
            candidates.extend(resolve_one(target, own))
    check_devices(options.devices)  # now: a target may bring its device along
    return plan_candidates(unique_names(candidates), options, on_step)


@dataclass(frozen=True, kw_only=True)
class Isolating:
    """The socket for requesting candidates' processes, and their module search path."""

    zygote: socket.socket
    path: list[str]


# This worker's, if it isolates candidates.
ISOLATING: Final[list[Isolating]] = []


def _isolated(options: RunOptions, on_step: OnStep) -> list[Isolated]:
    """Load every target in an isolated process of its own and return the candidates."""
    candidates = []
    for target in options.targets:
        on_step("loading", target)
        if options.graph_options.definition is not None:
            msg = "--definition is read where the candidate runs: check it without --isolated"
            raise UsageError(msg)
        if is_graph(target) or options.graph_options.names():
            msg = f"{target}: an ONNX graph has a process of its own; --isolated is for Python code"
            raise UsageError(msg)
        load = {
            "target": target,
            "preflight": options.preflight,
            "unchecked": list(options.unchecked),
            "promises": options.promises,
            "path": ISOLATING[0].path,
        }
        remote = Remote(ISOLATING[0].zygote, load, options.max_memory)
        candidates.extend(isolated_candidates(remote))
    return candidates


def plan_candidates(
    candidates: Iterable[Candidate],
    options: RunOptions,
    on_step: OnStep = lambda _what, _name: None,
    isolated: Sequence[Isolated] = (),
) -> list[CandidatePlan]:
    """Plan the clauses of candidates that exist already.

    ``isolated`` describes candidates running in other processes, in the order of ``candidates``.
    """
    profile_named(options.profile)
    plans: list[CandidatePlan] = []
    silent: list[str] = []
    memory, notes = _memory(options, on_step)
    if options.compile:
        on_step("compiling", "a sum, to see whether that can be done")
        candidates = compiled_variants(candidates)
    known = dict(enumerate(isolated))
    for number, given in enumerate(map(spanning, candidates)):
        candidate = _choose_table_width(given, options, on_step) if options.preflight else given
        unchecked = known[number].unchecked if isolated else ()
        if options.preflight and not isolated:
            on_step("building", candidate.name)
            forward = check_layer(candidate)
            unchecked = unchecked_options(candidate, forward, options.unchecked)
        on_step("planning", candidate.name)
        run, planned = _planned(candidate, options, memory)
        # A model has answered when its sizes were measured.
        if options.preflight and options.trials and candidate.kind != WHOLE_MODEL:
            on_step("trying", candidate.name)
            silent_places = silences(run, planned)
            # A refused graph is judged nevertheless: there are clauses on its file.
            if is_silent(silent_places, planned) and candidate.graph is None:
                silent.append(silent_places[0].sentence(candidate))
            planned = leave_repetitions_out(planned, silent_places)
        plan = CandidatePlan(
            candidate=candidate,
            run=run,
            planned=planned,
            notes=notes,
            unchecked=unchecked,
            isolated=known.get(number),
        )
        plans.append(plan)
    if plans and len(silent) == len(plans):
        raise UsageError(silent[0])
    # Selecting clauses also selects among a model and its attentions.
    selected = [plan for plan in plans if plan.planned or not plan.candidate.of_model]
    return selected or plans


# Behind a trial call with fewer channels a table of any width may be expanded.
_WIDE_HEAD: Final = 4
_TABLE_TRIALS: Final = 4


def _takes_tables(run: CandidateRun) -> bool:
    """Tell whether a candidate answers the first calls with heads of several pairs of channels."""
    dtype = run.dtypes[0]
    subject = Subject(run.candidate, dtype, sealed=seal(everywhere=False))
    problems = (one for one in _problems(run, dtype, "cpu") if one.geometry.head_size >= _WIDE_HEAD)
    with torch_state.one_thread(), torch_state.neutral():
        for problem in islice(problems, _TABLE_TRIALS):
            try:
                _call_seconds(subject, subject.inputs(problem))
            except RowWithoutKeysRefused:
                continue
            except CandidateFailure:
                return False
    return True


def _choose_table_width(candidate: Candidate, options: RunOptions, on_step: OnStep) -> Candidate:
    """Return a candidate with an entry for each pair of channels if whole tables fail its calls.

    ``rotary_table_shape="LR"`` promises tables "of whole or half width" (VOCABULARY.md, section 2).
    """
    shape = candidate.declaration.rotary_table_shape
    if shape is None or shape.endswith("/2") or not options.trials:
        return candidate
    on_step("trying", candidate.name)  # a call that hangs or crashes here is a verdict
    declaration = replace(candidate.declaration, rotary_table_shape=f"{shape}/2")
    halved = replace(candidate, declaration=declaration)
    whole_run, halved_run = (_planned(one, options, None)[0] for one in (candidate, halved))
    return halved if not _takes_tables(whole_run) and _takes_tables(halved_run) else candidate


def _planned(
    candidate: Candidate, options: RunOptions, memory: FailureMemory | None
) -> tuple[CandidateRun, list[PlannedClause]]:
    try:
        run = CandidateRun(
            candidate,
            profile=profile_named(options.profile),
            seed=options.seed,
            dtypes=options.dtypes,
            devices=options.devices,
            only=options.only,
            skip=options.skip,
            shard=options.shard,
            explain=options.explain,
            memory=memory,
        )
        return run, run.planned()
    except DeclarationError as error:
        msg = f"{candidate.name} ({candidate.target}): {error}"
        raise UsageError(msg) from None


def _memory(options: RunOptions, on_step: OnStep) -> tuple[FailureMemory | None, tuple[str, ...]]:
    """Open the databases as one memory of failures, shared by all candidates, with notes."""
    if not options.databases:
        return None, ()
    on_step("opening", "the database of failures")
    opened = open_databases(options.databases)
    if opened is None:
        return None, ()
    waits = options.isolated and any(map(is_on_this_machine, options.databases))
    return FailureMemory(opened.database, specification_hash(), waits=waits), opened.notes


def check_devices(devices: tuple[str, ...] | None) -> None:
    """Require that the devices exist here; raises UsageError."""
    for device in devices or ():
        reason = why_absent(device)
        if reason:
            msg = f"the device {device!r} cannot be used here: {reason}"
            raise UsageError(msg)
