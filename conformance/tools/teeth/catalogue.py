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

    ``primary`` is "" for what is only known to be broken: then any clause may catch it.
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
        """What the matrix calls it."""
        return self.candidate.name


def entries(options: TeethOptions, tell: Tell) -> list[CatalogueEntry]:
    """Every entry that the options ask for; raises UsageError for what cannot be used."""
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
    """The correct candidates: all beside the whole catalogue, those given beside a part of it."""
    if options.whole:
        yield from _known_correct(options, tell)
    for target in options.correct:
        tell("loading", target)
        for candidate in resolve_one(target):
            yield CatalogueEntry(candidate=candidate, origin=target, correct=True)


def _known_correct(options: TeethOptions, tell: Tell) -> Iterator[CatalogueEntry]:
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
    """The mistakes that a target names; where there are none its candidates, said to be broken."""
    found = list(mistakes_in(object_of(target)))
    if found:
        yield from (_entry(mistake, target) for mistake in found)
        return
    for candidate in resolve_one(target):
        yield CatalogueEntry(candidate=candidate, sentence=_sentence(candidate), origin=target)


def _sentence(candidate: Candidate) -> str:
    """The first line of what a candidate says of itself."""
    text = inspect.getdoc(candidate.function) or ""
    return " ".join(text.partition("\n\n")[0].split())


def _brought(given: Any, origin: str) -> list[CatalogueEntry]:
    """The mistakes of an entry point: nothing else may stand there."""
    found = list(mistakes_in(given))
    listed = given if isinstance(given, (list, tuple)) else [given]
    for entry in listed if not isinstance(given, ModuleType) else ():
        if not isinstance(entry, Mistake):
            msg = f"it holds {entry!r:.60}: give a conformance.Mistake, or a list of them"
            raise UsageError(msg)
    if not found:
        msg = "it holds no conformance.Mistake"
        raise UsageError(msg)
    return [_entry(mistake, origin) for mistake in found]


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
    found = list(candidates_of(mistake.candidate, origin))
    if len(found) != 1:
        msg = f"the candidate of the mistake {mistake.name!r} is {len(found)} candidates: give one"
        raise UsageError(msg)
    return renamed(found[0][0], mistake.name)


def _unique(found: Iterable[CatalogueEntry]) -> list[CatalogueEntry]:
    """Each name once: the second of a name is called ``name-2`` and so on."""
    taken: set[str] = set()
    result = []
    for entry in found:
        name, number = entry.name, 1
        while name in taken:
            number += 1
            name = f"{entry.name}-{number}"
        taken.add(name)
        result.append(dataclasses.replace(entry, candidate=renamed(entry.candidate, name)))
    return result


def _chosen(found: list[CatalogueEntry], options: TeethOptions) -> list[CatalogueEntry]:
    """The mistakes that the globs leave; raises UsageError for one that names none."""
    names = [entry.name for entry in found]
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
    return [entry for entry in found if entry.name in admitted]
