"""What a report tells of a clause beside its results."""

from __future__ import annotations

from .registry import Clause


def facts(clause: Clause) -> dict[str, str]:
    """Plain data; ``origin`` is "" for a clause of the specification itself."""
    return {
        "family": clause.family,
        "level": clause.level_text,
        "sentence": clause.sentence,
        "source": clause.source,
        "origin": clause.origin,
        "counterfactual": clause.counterfactual,
    }
