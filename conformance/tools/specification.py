"""The specification as a document, generated from the clauses, with a picture where one helps.

``python -m conformance.tools.specification`` prints it; ``--pictures FOLDER`` writes the pictures.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Final

from ..base.record import EXIT_USAGE
from ..clauses.registry import Clause, all_clauses, specification_hash
from ..diagnosis.mistakes import BACKWARD, named_mistakes
from ..errors import UsageError
from .catalogue import applies
from .pictures import PICTURED, picture

PICTURES: Final = "--pictures"
HEADER = """# The specification

Generated from the clauses by `python -m conformance.tools.specification`; a test fails when it is
stale.
Fingerprint: `{fingerprint}`, {count} clauses.

A candidate conforms when every applicable MUST clause passes. A clause counts only the examples
that *bind*: those on which its counterfactual would have been seen. What each entry says:

- its level, and the requirement in one sentence;
- **Source**: where the requirement comes from;
- **Speaks of** and **Applies**: the kinds of candidates, and what must be declared;
- **Binds when it tells apart**: the counterfactual;
- **Oracle**: whether answers are held against the golden ones, or against each other;
- **Catches**: the [named mistakes](mistakes.md) that this clause catches first; what else it
  caught stands in [the matrix](teeth-matrix.md).

A picture shows one item and head of a small example, made from the clause's own problems by
`python -m conformance.tools.specification --pictures docs/pictures`: which keys each query may
see, as required and in the counterfactual, and which elements of the answer the counterfactual
moves by
more than the derived bound. An example without an orange cell on the right does not bind.
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


def _entry(clause: Clause) -> str:
    caught = caught_first().get(clause.id, ())
    lines = [
        f"### `{clause.id}`: {clause.level_text}\n",
        f"{clause.sentence}\n",
        *([f"![What binds {clause.id}](pictures/{clause.id}.svg)\n"] * (clause.id in PICTURED)),
        f"- Source: {clause.source}",
        *([f"- Comes from: {clause.origin}"] if clause.origin else []),
        f"- Speaks of: {', '.join(clause.space.kinds)}",
        f"- Applies: {applies(clause)}",
        f"- Binds when it tells apart: {clause.counterfactual or 'every example binds by running'}",
        f"- Oracle: {'the golden reference' if clause.needs_golden else 'the candidate itself'}",
        *([f"- Catches: {', '.join(f'`{name}`' for name in caught)}"] if caught else []),
    ]
    return "\n".join(lines) + "\n"


@lru_cache
def caught_first() -> dict[str, tuple[str, ...]]:
    """The names of the mistakes by the clause that names each best, in the table's order."""
    names: dict[str, dict[str, None]] = {}
    for mistake in (*named_mistakes(), *BACKWARD):
        names.setdefault(mistake.primary, {})[mistake.name] = None
    return {clause: tuple(each) for clause, each in names.items()}


def write_pictures(folder: Path) -> None:
    """Write the picture of every clause that has one."""
    folder.mkdir(parents=True, exist_ok=True)
    for slug in sorted(PICTURED):
        (folder / f"{slug}.svg").write_text(picture(slug), encoding="utf-8", newline="\n")


def main(arguments: Sequence[str] = ()) -> int:
    """Print the document, or write its pictures; 2 when there is something that cannot be used."""
    try:
        if not arguments:
            sys.stdout.write(render())
        elif len(arguments) == len((PICTURES, "FOLDER")) and arguments[0] == PICTURES:
            write_pictures(Path(arguments[1]))
        else:
            msg = f"the only option is {PICTURES} FOLDER, not {' '.join(arguments)}"
            raise UsageError(msg)  # noqa: TRY301 (said like the others)
    except (UsageError, OSError) as error:
        sys.stderr.write(f"conformance: {error}\n")
        return EXIT_USAGE
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
