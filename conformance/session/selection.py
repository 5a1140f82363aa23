"""Globs of clause slugs: which clauses they select, and what to say when they select none."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from fnmatch import fnmatchcase

from ..errors import UsageError
from ..targets.loading import closest


def matching(globs: Iterable[str], slugs: Iterable[str]) -> list[str]:
    """The slugs that at least one of the globs matches."""
    globs = list(globs)
    return [slug for slug in slugs if any(fnmatchcase(slug, glob) for glob in globs)]


def selected(slugs: Iterable[str], only: Collection[str], skip: Collection[str]) -> list[str]:
    """The slugs that ``--only`` admits (all of them when it is not given) and ``--skip`` leaves."""
    slugs = list(slugs)
    admitted = matching(only, slugs) if only else slugs
    refused = set(matching(skip, slugs))
    return [slug for slug in admitted if slug not in refused]


def check_globs(option: str, globs: Iterable[str], slugs: Collection[str]) -> None:
    """Require that each glob matches a clause; raises UsageError that suggests a near slug."""
    for glob in globs:
        if not matching([glob], slugs):
            msg = f"{option} {glob!r} matches no clause{suggestion(glob, slugs)}"
            raise UsageError(msg)


def check_selection(slugs: Collection[str], only: Collection[str], skip: Collection[str]) -> None:
    """Require that ``--only`` and ``--skip`` name clauses and leave at least one to run."""
    check_globs("--only", only, slugs)
    check_globs("--skip", skip, slugs)
    if not selected(slugs, only, skip):
        msg = "--only and --skip leave no clause to run: nothing would be checked"
        raise UsageError(msg)


def suggestion(word: str, slugs: Iterable[str]) -> str:
    """A near slug, or where to see them all."""
    return closest(word, sorted(slugs)) or "; 'conformance list' shows the clauses"
