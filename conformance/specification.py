"""The specification as a document, generated from the clauses."""

from __future__ import annotations

from collections.abc import Mapping

from .registry import Clause, all_clauses, specification_hash

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


def _entry(clause: Clause) -> str:
    lines = [
        f"### `{clause.id}`: {level_text(clause)}\n",
        f"{clause.sentence}\n",
        f"- Source: {clause.source}",
        f"- Speaks of: {', '.join(clause.space.kinds)}",
        f"- Binds when it tells apart: {clause.counterfactual or 'every example binds by running'}",
        f"- Oracle: {'the golden reference' if clause.needs_golden else 'the candidate itself'}\n",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    print(render(), end="")  # noqa: T201 (this module's output is the document)
