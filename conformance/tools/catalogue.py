"""The clauses as plain data, for ``conformance list`` and ``conformance explain``."""

from __future__ import annotations

from typing import Any

from ..clauses.registry import Clause, all_clauses
from ..errors import UsageError
from ..running.applicability import applies
from ..session.selection import suggestion


def clause_entries() -> list[dict[str, Any]]:
    """Every clause, in the order in which a run takes them."""
    return [_entry(clause) for clause in all_clauses()]


def clause_entry(slug: str) -> dict[str, Any]:
    """One clause; raises UsageError that suggests a near slug when there is none of that name."""
    known = {clause.id: clause for clause in all_clauses()}
    if slug not in known:
        msg = f"there is no clause {slug!r}{suggestion(slug, known)}"
        raise UsageError(msg)
    return _entry(known[slug])


def _entry(clause: Clause) -> dict[str, Any]:
    return {
        "id": clause.id,
        "family": clause.family,
        "level": clause.level_text,
        "sentence": clause.sentence,
        "source": clause.source,
        "applies": applies(clause),
        "origin": clause.origin,
        "counterfactual": clause.counterfactual,
    }
