"""The text of ``conformance explain`` on a clause, a family of clauses or a mistake."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ..base.mistake import UNKNOWN
from ..clauses.registry import all_clauses
from ..diagnosis.mistakes import BACKWARD, named_mistakes
from ..diagnosis.precision_losses import EIGHT_BITS, LOSSES
from ..errors import UsageError
from ..targets.loading import closest
from .specification import caught_first, clause_entry

Entry = dict[str, Any]


def explained(name: str) -> list[Entry]:
    """The entry of a clause, a family or a mistake; raises UsageError that suggests a near name.

    A clause has the entry of ``conformance list --json``, with the mistakes that it catches first;
    a family has the entries of all its clauses. A mistake has ``mistake``, ``sentence``, ``fix``
    and ``primary``, the clause that catches the mistake first.
    """
    slugs = [clause.id for clause in all_clauses()]
    own = [slug for slug in slugs if slug == name or slug.startswith(f"{name}.")]
    if own:
        return [{**clause_entry(slug), "catches": caught_first().get(slug, ())} for slug in own]
    mistakes = known_mistakes()
    parts = [name] if name in mistakes else name.split("+")
    if all(part in mistakes for part in parts):
        return [mistakes[part] for part in parts]
    wrong = next(part for part in parts if part not in mistakes)
    families = {slug.partition(".")[0] for slug in slugs}
    near = closest(wrong, sorted({*slugs, *families, *mistakes}))
    msg = f"there is no clause, family or mistake {wrong!r}{near or _SEE}"
    raise UsageError(msg)


_SEE = "; 'conformance list' shows the clauses"


def known_mistakes() -> dict[str, Entry]:
    """Every mistake that can give a cause its name, by name."""
    return {entry["mistake"]: entry for entry in reversed(list(_mistakes()))}


def _mistakes() -> Iterator[Entry]:
    """The mistakes that can give causes their names, the most frequent ones first."""
    for mistake in (*named_mistakes(), *BACKWARD):
        yield _entry(mistake.name, mistake.sentence, mistake.fix, mistake.primary)
    for loss in (*LOSSES, *EIGHT_BITS):
        yield _entry(loss.name, loss.text, loss.fix)
    yield _entry(UNKNOWN, "the answers are wrong, and no known mistake explains them")


def _entry(name: str, sentence: str, fix: str = "", primary: str = "") -> Entry:
    return {"mistake": name, "sentence": sentence, "fix": fix, "primary": primary}
