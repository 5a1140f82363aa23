"""The specification as a document, generated from the clauses."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Final

from .errors import UsageError
from .registry import Clause, all_clauses, specification_hash

EXIT_USAGE: Final = 2
HEADER = """# The specification

Generated from the clauses by `python -m conformance.specification`; a test fails when it is stale.
Fingerprint: `{fingerprint}`, {count} clauses.

A candidate conforms when every applicable MUST clause passes. A clause counts only the examples
that *bind*: those on which its counterfactual would have been seen.
"""


def render() -> str:
    """The whole document as markdown."""
    clauses = all_clauses()
    parts = [HEADER.format(fingerprint=specification_hash(), count=len(clauses))]
    families = dict.fromkeys(clause.family for clause in clauses)
    for family in families:
        parts.append(f"## {family}\n")
        parts.extend(_entry(clause) for clause in clauses if clause.family == family)
    return "\n".join(parts)


def level_text(clause: Clause) -> str:
    """The level, or one for each kind: ``MUST (core), SHOULD (layer)``."""
    if isinstance(clause.level, Mapping):
        return ", ".join(f"{level} ({kind})" for kind, level in clause.level.items())
    return clause.level


def facts(clause: Clause) -> dict[str, str]:
    """What a report tells of a clause beside its results; origin is "" for the specification's."""
    return {
        "family": clause.family,
        "level": level_text(clause),
        "sentence": clause.sentence,
        "source": clause.source,
        "origin": clause.origin,
        "counterfactual": clause.counterfactual,
    }


def _entry(clause: Clause) -> str:
    lines = [
        f"### `{clause.id}`: {level_text(clause)}\n",
        f"{clause.sentence}\n",
        f"- Source: {clause.source}",
        *([f"- Comes from: {clause.origin}"] if clause.origin else []),
        f"- Speaks of: {', '.join(clause.space.kinds)}",
        f"- Binds when it tells apart: {clause.counterfactual or 'every example binds by running'}",
        f"- Oracle: {'the golden reference' if clause.needs_golden else 'the candidate itself'}\n",
    ]
    return "\n".join(lines)


def main() -> int:
    """Print the document; 2 when an installed distribution brings clauses that cannot be used."""
    try:
        sys.stdout.write(render())
    except UsageError as error:
        sys.stderr.write(f"conformance: {error}\n")
        return EXIT_USAGE
    return 0


if __name__ == "__main__":
    sys.exit(main())
