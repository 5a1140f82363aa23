"""What a clause may look like: the reason why one cannot be used, for those who write their own."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, get_args

from ..base.geometry import FIELDS
from ..declare.declaration import KINDS, MASK_FORMS, SEQUENCES
from ..problems.mask_patterns import OF_SEQUENCES, PATTERNS
from ..problems.recipes import RECIPES
from ..problems.space import Often, Space

if TYPE_CHECKING:
    from .registry import Clause

LEVELS: Final = ("MUST", "SHOULD", "MAY")
_SLUG: Final = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*\.[a-z0-9]+(-[a-z0-9]+)*")


def why_not(clause: Clause) -> str:
    """Why a clause cannot be one, in words that follow its slug, or ""."""
    return next(_reasons(clause), "")


def _reasons(clause: Clause) -> Iterator[str]:
    if not isinstance(clause.id, str) or not _SLUG.fullmatch(clause.id):
        yield "has no valid slug: write family.what-holds in small letters, digits and hyphens"
    levels = clause.level.values() if isinstance(clause.level, Mapping) else [clause.level]
    if not set(levels) <= set(LEVELS):
        yield f"has the level {clause.level!r}: give MUST, SHOULD or MAY, or one for each kind"
    for name in ("sentence", "source"):
        text = getattr(clause, name)
        if not isinstance(text, str) or not text.strip():
            yield f"has the {name} {text!r}: give a text"
    if not isinstance(clause.counterfactual, str):
        yield f"has the counterfactual {clause.counterfactual!r}: give a text"
    if not callable(clause.check):
        yield f"has the check {clause.check!r}, which cannot be called"
    if not all(callable(requirement) for requirement in clause.requirements):
        yield f"applies where {clause.requirements!r}: give functions of a candidate"
    yield from _reasons_of_space(clause.space)


def _reasons_of_space(space: Any) -> Iterator[str]:
    if not isinstance(space, Space):
        yield f"has the space {space!r:.60}: give a conformance.Space"
        return
    for name in ("mask", "causal", "finite_bias"):
        yield from _strangers(name, [getattr(space, name)], get_args(Often))
    yield from _strangers("forms", space.forms, (*MASK_FORMS, SEQUENCES))
    yield from _strangers("values", space.values, RECIPES)
    yield from _strangers("patterns", space.patterns, (*PATTERNS, *OF_SEQUENCES))
    yield from _strangers("kinds", space.kinds, KINDS)
    for name in ("least", "preferred"):
        yield from _strangers(name, [pair[0] for pair in getattr(space, name)], FIELDS)


def _strangers(name: str, given: Any, known: Iterable[str]) -> Iterator[str]:
    words = [given] if isinstance(given, str) else list(given)
    for word in words:
        if word not in known:
            yield f"has a space whose {name} is {word!r}: known are {', '.join(known)}"
    if not words and name in ("kinds", "values"):
        yield f"has a space without {name}: it would never be tried"
