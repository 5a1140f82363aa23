"""The nodes of pytest: the clauses of ``--candidate``, and the cases of a suite."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ..base.configuration import Configuration, configuration
from ..base.expected import ExpectedFailure, read_expected
from ..base.printable_text import printable
from ..base.profile import DEFAULT_PROFILE, DTYPES, profile_named
from ..base.selection import selected
from ..clauses.registry import all_clauses
from ..errors import UsageError, did_you_mean
from ..identification.opening import open_object, resolve_one
from ..running.workers.messages import RunOptions
from ..running.workers.planning import CandidatePlan, check_devices, plan_candidates
from ..session.expectations import Selection, check_clause, read_file, stale
from ..session.order import check_selection
from ..session.report import what_was_unchecked
from ..targets.resolving import unique_names
from ..targets.source_location import declared_expectations
from .cases import ClauseCase, UncheckedCase
from .suites import SuiteOptions

PLANS = pytest.StashKey[dict[Any, list[CandidatePlan]]]()


class ConformanceDirectory(pytest.Directory):
    """The folder of this package, as ``--pyargs conformance`` names it."""

    def collect(self) -> Iterator[pytest.Collector]:
        """One file, whose tests are the clauses."""
        # The file does not exist: pytest names tests after a file, and the ids stay as they were.
        yield ClauseFile.from_parent(self, path=self.path / "suites.py")


class ClauseFile(pytest.File):
    """The clauses of every ``--candidate``."""

    def collect(self) -> Iterator[pytest.Item]:
        """One test a clause and candidate: ``mask.no-leak[my_kernel]``."""
        targets = tuple(self.config.getoption("conformance_candidates"))
        for case in collect_suite(self.config, SuiteOptions(targets=targets), whole=True):
            yield ClauseItem.from_parent(self, name=f"{case.id}[{case.candidate}]", case=case)


class ClauseItem(pytest.Item):
    """One clause of one candidate."""

    def __init__(self, *, case: ClauseCase, **keywords: Any) -> None:
        super().__init__(**keywords)
        self.case = case

    def runtest(self) -> None:
        """Check the clause and end accordingly."""
        try:
            self.case()
        finally:
            self.user_properties.extend(self.case.properties())

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        """A failed clause, by its cause alone: the short summary has one line for a failure."""
        error = excinfo.value
        if isinstance(error, pytest.fail.Exception) and not error.pytrace:
            return str(error)
        return super().repr_failure(excinfo, style)

    def reportinfo(self) -> tuple[Path, None, str]:
        """No line, and not the test's own name: pytest would show its dots as ``::``."""
        return self.path, None, f"{self.case.candidate}: {self.case.id}"


def collect_suite(
    config: pytest.Config, options: SuiteOptions, *, whole: bool = False
) -> list[ClauseCase]:
    """The cases of a suite; ``whole``: files of expectations concern no other suite.

    Clauses that do not apply are left out unless pytest is asked to be verbose. Raises CollectError
    with one sentence for unusable targets and options.
    """
    try:
        return _collect(config, options, whole=whole)
    except UsageError as error:
        raise pytest.Collector.CollectError(printable(str(error))) from None


def _collect(config: pytest.Config, options: SuiteOptions, *, whole: bool) -> list[ClauseCase]:
    sentences = {clause.id: clause.sentence for clause in all_clauses()}
    project = configuration(config.rootpath)
    options = replace(options, only=options.only or project.only, skip=options.skip or project.skip)
    check_selection(sentences, options.only, options.skip)
    settings = _settings(config, options, project)
    plans = _plans(config, settings, options.targets)
    shared = _from_file(config, sentences, project)
    own = _own(options, sentences)
    for plan in plans:
        for entry in declared_expectations(plan.candidate):
            check_clause(entry, sentences, plan.candidate.name)
    checked = (*own, *shared) if whole else own
    selection = Selection(
        slugs=selected(sentences, options.only, options.skip),
        dtypes=settings.dtypes,
        devices=settings.devices,
    )
    _refuse_stale(plans, checked, selection)
    cases = [case for plan in plans for case in _cases(plan, sentences, expected=(*own, *shared))]
    if config.get_verbosity() > 0:
        return cases
    # Where no clause of a suite applies, the skips say why.
    return [case for case in cases if case.is_applicable] or cases


def _cases(
    plan: CandidatePlan, sentences: dict[str, str], *, expected: tuple[ExpectedFailure, ...]
) -> Iterator[ClauseCase]:
    qualified = len({planned.dtype for planned in plan.planned}) > 1
    entries = (*declared_expectations(plan.candidate), *expected)
    of_gradients = {
        planned.place: planned
        for planned in reversed(plan.planned)
        if planned.id.startswith("gradients.") and planned.level == "MUST" and not planned.reason
    }
    for planned in plan.planned:
        yield ClauseCase(
            plan,
            planned,
            requirement=sentences[planned.id],
            expected=entries,
            qualified=qualified,
            speaks_for_gradients=planned in of_gradients.values(),
        )
    said = what_was_unchecked(plan.loaded(), [planned.id for planned in plan.planned])
    if said:
        yield UncheckedCase(plan, said)


def _settings(config: pytest.Config, options: SuiteOptions, project: Configuration) -> RunOptions:
    """The choices of a suite: command line, environment, its own arguments, ini, project."""
    chosen = _choice(config, "conformance_profile", options.profile) or project.profile
    profile = chosen or DEFAULT_PROFILE
    seed = _choice(config, "conformance_seed", options.seed) or 0
    dtype = _choice(config, "conformance_dtype", None)
    own = options.dtypes or project.dtype or None
    dtypes = own if dtype is None else tuple(dtype.split(","))
    for name in dtypes or ():
        if name not in DTYPES:
            msg = f"there is no dtype {name!r}{did_you_mean(name, DTYPES)}"
            raise UsageError(msg)
    check_devices(options.devices)
    return RunOptions(
        targets=(),
        profile=profile_named(profile).name,
        seed=_seed(seed),
        dtypes=dtypes,
        devices=options.devices,
        only=options.only,
        skip=options.skip,
        unchecked=(*options.unchecked, *_unchecked(config)),
    )


def _unchecked(config: pytest.Config) -> tuple[str, ...]:
    """The globs of the command line, the environment or the ini file, separated by commas."""
    globs = _choice(config, "conformance_unchecked", None) or ""
    return tuple(word.strip() for word in globs.split(",") if word.strip())


def _choice(config: pytest.Config, name: str, own: Any) -> Any:
    """The first value among command line, environment, the suite's own argument and ini."""
    for value in (config.getoption(name), os.environ.get(name.upper()), own, config.getini(name)):
        if value not in (None, ""):
            return value
    return None


def _seed(value: int | str) -> int:
    try:
        seed = int(value)
    except ValueError:
        seed = -1
    if seed < 0:
        msg = f"the seed is {value!r}: give a whole number of at least 0"
        raise UsageError(msg)
    return seed


def _plans(
    config: pytest.Config, settings: RunOptions, targets: tuple[Any, ...]
) -> list[CandidatePlan]:
    """The plans of a suite, made once a pytest run: suites of one target share their goldens."""
    plans = config.stash.setdefault(PLANS, {})
    key = (settings, tuple(target if isinstance(target, str) else id(target) for target in targets))
    if key not in plans:
        candidates = [candidate for target in targets for candidate in _resolve(target)]
        plans[key] = plan_candidates(unique_names(candidates), settings)
    return plans[key]


def _resolve(target: Any) -> Iterable[Any]:
    if isinstance(target, str):
        return resolve_one(target)
    shown = getattr(target, "name", None) or type(target).__name__
    return open_object(target, str(shown))


def _from_file(
    config: pytest.Config, slugs: Iterable[str], project: Configuration
) -> tuple[ExpectedFailure, ...]:
    path = config.getoption("conformance_expected_failures")
    path = path or os.environ.get("CONFORMANCE_EXPECTED_FAILURES")
    if path:
        return read_file(config.invocation_params.dir / path, list(slugs))
    path = config.getini("conformance_expected_failures")
    if not path and project.expected_failures:
        return read_file(Path(project.expected_failures), list(slugs))
    return read_file(config.rootpath / path, list(slugs)) if path else ()


def _own(options: SuiteOptions, slugs: Iterable[str]) -> tuple[ExpectedFailure, ...]:
    expectations, slugs = options.expected_failures, list(slugs)
    if isinstance(expectations, (str, Path)):
        return read_file(Path(expectations), slugs)
    entries = read_expected(expectations)
    for entry in entries:
        check_clause(entry, slugs, "expected_failures")
    return entries


def _refuse_stale(
    plans: list[CandidatePlan], entries: tuple[ExpectedFailure, ...], selection: Selection
) -> None:
    """Refuse expectations that no test can answer to: nothing matches, or nothing is applicable."""
    foreseen = {
        plan.candidate.name: [
            planned.not_applicable() if planned.reason else planned.result("untestable")
            for planned in plan.planned
        ]
        for plan in plans
    }
    stale_entries = stale(entries, foreseen, selection)
    for plan in plans:
        own = {plan.candidate.name: foreseen[plan.candidate.name]}
        stale_entries.extend(stale(declared_expectations(plan.candidate), own, selection))
    if stale_entries:
        first = stale_entries[0].expectation
        advice = f"{stale_entries[0].why}; {stale_entries[0].change}"
        msg = f"the expected failure {first.clause!r} ({first.reason}) is stale: {advice}"
        raise UsageError(msg)
