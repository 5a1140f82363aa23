"""Candidates with their plans: what the worker and the pytest plugin both start from."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, replace
from typing import Final

from ..._golden import golden
from ...adapters.compiled import compiled_variants
from ...base.graph_options import NOTHING, Beside
from ...base.parameter_names import OptionParameter
from ...base.profile import PROFILES
from ...calls.devices import why_absent
from ...clauses.registry import specification_hash
from ...declare.candidate import Candidate
from ...diagnosis.mistakes import mistaken_conventions
from ...errors import DeclarationError, UsageError, did_you_mean
from ...targets.declared_at import declared_expectations
from ...targets.preflight import check_layer, unchecked_options
from ...targets.resolving import is_graph, resolve_one, unique_names
from ...targets.source_location import whereabouts
from ...tolerance import contract_for
from ...tolerance.wording import describe
from ..answering import is_silent, silences, without_repetition
from ..asking import Planned
from ..databases import open_databases
from ..memory import Memory
from ..runner import CandidateRun
from .messages import Loaded, RunOptions, Task

# One that is no power of four: multiplying by it rounds.
ANY_SCALE: Final = 0.3
_ANYONES_CHOICE: Final = ("causal_alignment",)


@dataclass(frozen=True, kw_only=True)
class Plan:
    """One candidate, its run and the clauses that the run has planned."""

    candidate: Candidate
    run: CandidateRun
    planned: list[Planned]
    notes: tuple[str, ...] = ()
    unchecked: tuple[OptionParameter, ...] = ()

    def loaded(self) -> Loaded:
        """The same as plain data."""
        candidate = self.candidate
        changed = golden.STANDARD.differences(candidate.declaration.semantics)
        return Loaded(
            name=candidate.name,
            target=candidate.target,
            kind=candidate.shown_kind,
            declaration={
                **candidate.declaration.as_json(),
                "precision": _precision(candidate, self.run.dtypes, self.run.devices),
            },
            gauge=_gauge(candidate),
            deviations=tuple(name for name in changed if name not in _ANYONES_CHOICE),
            expected=declared_expectations(candidate),
            tasks=tuple(Task(**asdict(planned)) for planned in self.planned),
            location=whereabouts(candidate),
            notes=self.notes,
            unchecked=self.unchecked,
            mistaken=tuple(
                f"{one.text} ({one.name})"
                for one in mistaken_conventions(candidate.declaration.semantics)
            ),
        )


def _precision(
    candidate: Candidate, dtypes: tuple[str, ...], devices: tuple[str, ...]
) -> dict[str, list[str]]:
    """What the declaration allows in each dtype, in words; any scale may be asked.

    Tensor cores add otherwise than a CPU does: of several devices each is named.
    """
    several = len(devices) > 1
    return {
        f"{dtype} on {device}" if several else dtype: describe(
            contract_for(candidate.on(device).declaration, dtype, ANY_SCALE)
        )
        for device in devices
        for dtype in dtypes
    }


def _gauge(candidate: Candidate) -> str:
    """What was not verified of a candidate, or ""."""
    if candidate.graph is not None and candidate.graph.found.gauge:
        return candidate.graph.found.gauge
    if candidate.golden_known:
        return ""
    why = "its weights are unknown" if not candidate.weights_known else "it mixes in positions"
    return f"{why}, so no golden answer was compared"


def plan_targets(
    options: RunOptions, tell: Callable[[str, str], None] = lambda _what, _name: None
) -> list[Plan]:
    """Load the targets and plan their clauses; raises UsageError with one sentence.

    ``tell`` hears of each step (``loading``, ``building``, ``planning``) before it is taken.
    """
    found: list[Candidate] = []
    for target in options.targets:
        tell("loading", target)
        found.extend(
            resolve_one(
                target, options.beside if is_graph(target) or len(options.targets) == 1 else NOTHING
            )
        )
    check_devices(options.devices)  # now: a target may bring its device along
    return plan_candidates(unique_names(found), options, tell)


def _beside(target: str, options: RunOptions) -> Beside:
    """What is given beside graphs; without any graph it is given to be refused."""
    some = any(is_graph(other) for other in options.targets)
    return options.beside if is_graph(target) or not some else NOTHING


def plan_candidates(
    candidates: Iterable[Candidate],
    options: RunOptions,
    tell: Callable[[str, str], None] = lambda _what, _name: None,
) -> list[Plan]:
    """Plan the clauses of candidates that are already there."""
    plans: list[Plan] = []
    silent: list[str] = []
    memory, notes = _memory(options, tell)
    if options.compile:
        tell("compiling", "a sum, to see whether that can be done")
        candidates = compiled_variants(candidates)
    for candidate in candidates:
        unchecked: tuple[OptionParameter, ...] = ()
        if options.preflight:
            tell("building", candidate.name)
            forward = check_layer(candidate)
            unchecked = unchecked_options(candidate, forward, options.unchecked)
        tell("planning", candidate.name)
        plan = replace(_plan(candidate, options, memory, notes), unchecked=unchecked)
        if options.preflight and options.trials:
            tell("trying", candidate.name)
            plan, silent = _tried(plan, silent)
        plans.append(plan)
    if plans and len(silent) == len(plans):
        raise UsageError(silent[0])
    return plans


def _tried(plan: Plan, silent: list[str]) -> tuple[Plan, list[str]]:
    """The plan without what would fail for one reason, and the sentences on who never answers.

    A graph that is refused is judged all the same: its file has clauses of its own.
    """
    found = silences(plan.run, plan.planned)
    if is_silent(found, plan.planned) and plan.candidate.graph is None:
        where = f" ({plan.candidate.target})" if plan.candidate.target else ""
        silent = [*silent, found[0].sentence(f"{plan.candidate.name}{where}")]
    return replace(plan, planned=without_repetition(plan.planned, found)), silent


def _plan(
    candidate: Candidate, options: RunOptions, memory: Memory | None, notes: tuple[str, ...]
) -> Plan:
    if options.profile not in PROFILES:
        msg = f"there is no profile {options.profile!r}{did_you_mean(options.profile, PROFILES)}"
        raise UsageError(msg)
    try:
        run = CandidateRun(
            candidate,
            profile=PROFILES[options.profile],
            seed=options.seed,
            dtypes=options.dtypes,
            devices=options.devices,
            only=options.only,
            skip=options.skip,
            shard=options.shard,
            memory=memory,
        )
        return Plan(candidate=candidate, run=run, planned=run.planned(), notes=notes)
    except DeclarationError as error:
        msg = f"{candidate.name} ({candidate.target}): {error}"
        raise UsageError(msg) from None


def _memory(
    options: RunOptions, tell: Callable[[str, str], None]
) -> tuple[Memory | None, tuple[str, ...]]:
    """What remembers failures, and what is to be said of it; all candidates share it."""
    if not options.databases:
        return None, ()
    tell("opening", "the database of failures")
    opened = open_databases(options.databases)
    if opened is None:
        return None, ()
    return Memory(opened.database, specification_hash()), opened.notes


def check_devices(devices: tuple[str, ...] | None) -> None:
    """Require that the devices exist here; raises UsageError."""
    for device in devices or ():
        reason = why_absent(device)
        if reason:
            msg = f"the device {device!r} cannot be used here: {reason}"
            raise UsageError(msg)
