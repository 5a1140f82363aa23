"""The catalogue of a run: mistakes and correct candidates, from wherever they come."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from ...base.mistake import Mistake, mistakes_in
from ...clauses.registry import all_clauses
from ...declare.candidate import Candidate
from ...declare.decorators import renamed
from ...diagnosis.mistakes import MISTAKES, NamedMistake
from ...errors import UsageError
from ...session.selection import matching
from ...targets.loading import (
    MISTAKE_GROUP,
    closest,
    home,
    import_dotted,
    put_on_path,
    registered,
    taking_in,
)
from ...targets.resolving import candidates_of, object_of, resolve_one
from .mistaken_candidates import act_out, act_out_named, correct_candidates
from .options import REPOSITORY, TeethOptions

Tell = Callable[[str, str], None]
SHIPPED: Final = "attention-conformance"
LEGITIMATE: Final = "candidates.legitimate"


@dataclass(frozen=True, kw_only=True)
class CatalogueEntry:
    """A mistake, or a correct candidate, ready to run.

    ``primary`` is "" for candidates that are only known to be broken: any clause may catch them.
    """

    candidate: Candidate
    sentence: str = ""
    fix: str = ""
    primary: str = ""
    also: tuple[str, ...] = ()
    origin: str = ""
    correct: bool = False

    @property
    def name(self) -> str:
        """The name in the matrix."""
        return self.candidate.name


def entries(options: TeethOptions, tell: Tell) -> list[CatalogueEntry]:
    """Every entry that the options select; raises UsageError for what cannot be used."""
    mistakes = [*_mistakes(options, tell)]
    correct = [*_correct(options, tell)]
    chosen = _chosen(_unique(mistakes), options)
    return [*chosen, *_unique(correct)]


def _mistakes(options: TeethOptions, tell: Tell) -> Iterator[CatalogueEntry]:
    for target in options.targets:
        tell("loading", target)
        yield from _of_target(target)
    if options.targets:
        return
    tell("loading", "the shipped mistakes")
    yield from (_entry(mistake, SHIPPED) for mistake in MISTAKES)
    for point in registered(MISTAKE_GROUP):
        tell("loading", point.name)
        yield from taking_in(point, "mistakes", partial(_brought, origin=home(point)))
    repository = _repository(REPOSITORY, tell)
    if repository is not None:
        yield from (_entry(mistake, REPOSITORY) for mistake in mistakes_in(repository))


def _correct(options: TeethOptions, tell: Tell) -> Iterator[CatalogueEntry]:
    """The correct candidates: those of the options, and all of them with the whole catalogue."""
    if options.whole:
        yield from _catalogued_correct(options, tell)
    for target in options.correct:
        tell("loading", target)
        for candidate in resolve_one(target):
            yield CatalogueEntry(candidate=candidate, origin=target, correct=True)


def _catalogued_correct(options: TeethOptions, tell: Tell) -> Iterator[CatalogueEntry]:
    for candidate in correct_candidates():
        yield CatalogueEntry(candidate=candidate, origin=SHIPPED, correct=True)
    for name, attribute in ((REPOSITORY, "CORRECT"), (LEGITIMATE, "CANDIDATES")):
        if name == LEGITIMATE and not options.thorough:
            continue
        module = _repository(name, tell)
        for candidate in getattr(module, attribute, ()):
            yield CatalogueEntry(candidate=candidate, origin=name, correct=True)


def _repository(name: str, tell: Tell) -> ModuleType | None:
    """A package of the repository, where the working folder is a checkout of it."""
    if not Path(*name.split("."), "__init__.py").is_file():
        return None
    tell("loading", name)
    put_on_path(Path.cwd())
    return import_dotted(name)


def _of_target(target: str) -> Iterator[CatalogueEntry]:
    """The mistakes of a target; where it has none its candidates, which then are broken ones."""
    mistakes = list(mistakes_in(object_of(target)))
    if mistakes:
        yield from (_entry(mistake, target) for mistake in mistakes)
        return
    for candidate in resolve_one(target):
        yield CatalogueEntry(candidate=candidate, sentence=_sentence(candidate), origin=target)


def _sentence(candidate: Candidate) -> str:
    """The first paragraph of a candidate's docstring on one line."""
    text = inspect.getdoc(candidate.function) or ""
    return " ".join(text.partition("\n\n")[0].split())


def _brought(value: Any, origin: str) -> list[CatalogueEntry]:
    """The mistakes of an entry point; raises UsageError for anything else."""
    mistakes = list(mistakes_in(value))
    listed = value if isinstance(value, (list, tuple)) else [value]
    for entry in listed if not isinstance(value, ModuleType) else ():
        if not isinstance(entry, Mistake):
            msg = f"it holds {entry!r:.60}: give a conformance.Mistake, or a list of them"
            raise UsageError(msg)
    if not mistakes:
        msg = "it holds no conformance.Mistake"
        raise UsageError(msg)
    return [_entry(mistake, origin) for mistake in mistakes]


def _entry(mistake: Mistake, origin: str) -> CatalogueEntry:
    _check_clauses(mistake)
    sentence = mistake.sentence
    if isinstance(mistake, NamedMistake):
        sentence = f"{sentence[0].upper()}{sentence[1:]}."
    return CatalogueEntry(
        candidate=candidate_of(mistake, origin),
        sentence=sentence,
        fix=mistake.fix,
        primary=mistake.primary,
        also=tuple(mistake.also),
        origin=origin,
    )


def _check_clauses(mistake: Mistake) -> None:
    slugs = [clause.id for clause in all_clauses()]
    for slug in (mistake.primary, *mistake.also):
        if slug not in slugs:
            msg = (
                f"the mistake {mistake.name!r} names the clause {slug!r}, which does not exist"
                f"{closest(slug, slugs)}"
            )
            raise UsageError(msg)


def candidate_of(mistake: Mistake, origin: str) -> Candidate:
    """The broken implementation under the mistake's name; raises UsageError for none or many."""
    if isinstance(mistake, NamedMistake) and not mistake.only_a_point:
        return renamed(act_out_named(mistake), mistake.name)
    if mistake.candidate is None:
        return act_out(mistake.name, mistake.changes)
    candidates = [candidate for candidate, _ in candidates_of(mistake.candidate, origin)]
    if len(candidates) != 1:
        count = len(candidates)
        msg = f"the candidate of the mistake {mistake.name!r} is {count} candidates: give one"
        raise UsageError(msg)
    return renamed(candidates[0], mistake.name)


def _unique(named: Iterable[CatalogueEntry]) -> list[CatalogueEntry]:
    """Each name once: the second of a name is called ``name-2`` and so on."""
    taken: set[str] = set()
    result = []
    for entry in named:
        name, number = entry.name, 1
        while name in taken:
            number += 1
            name = f"{entry.name}-{number}"
        taken.add(name)
        result.append(dataclasses.replace(entry, candidate=renamed(entry.candidate, name)))
    return result


def _chosen(mistakes: list[CatalogueEntry], options: TeethOptions) -> list[CatalogueEntry]:
    """The mistakes that the globs leave; raises UsageError for a glob that matches none."""
    names = [entry.name for entry in mistakes]
    for option, globs in (("--only", options.mistakes), ("--skip", options.not_mistakes)):
        for glob in globs:
            if not matching([glob], names):
                msg = f"{option} {glob!r} matches no mistake{closest(glob, names)}"
                raise UsageError(msg)
    admitted = set(matching(options.mistakes or ["*"], names))
    admitted -= set(matching(options.not_mistakes, names))
    if not admitted:
        msg = "--only and --skip leave no mistake: nothing would be caught"
        raise UsageError(msg)
    return [entry for entry in mistakes if entry.name in admitted]
