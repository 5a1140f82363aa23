"""The clauses that a run takes: names, families and globs of ``--only`` and ``--skip``."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from fnmatch import fnmatchcase


def selects(word: str, slug: str) -> bool:
    """Whether a word of a selection matches a clause: its name, its family or a glob."""
    return fnmatchcase(slug, word) or slug.startswith(f"{word}.")


def is_selected(slug: str, only: Collection[str], skip: Collection[str]) -> bool:
    """Whether ``only`` (if not empty) matches a clause and ``skip`` does not."""
    admitted = not only or any(selects(word, slug) for word in only)
    return admitted and not any(selects(word, slug) for word in skip)


def selected(slugs: Iterable[str], only: Collection[str], skip: Collection[str]) -> list[str]:
    """The slugs that ``--only`` admits and ``--skip`` leaves, in their order."""
    return [slug for slug in slugs if is_selected(slug, only, skip)]
