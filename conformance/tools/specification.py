"""The clauses as plain data, and as a document with a picture where one helps.

``conformance list`` and ``conformance explain`` show the data. ``python -m
conformance.tools.specification`` prints the document; ``--pictures FOLDER`` writes the pictures.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from ..base.record import EXIT_USAGE
from ..clauses.registry import Clause, all_clauses, specification_hash
from ..diagnosis.mistakes import BACKWARD, named_mistakes
from ..errors import UsageError
from ..session.order import suggestion
from .pictures import PICTURED, picture

# The docstrings of functions that return why a clause does not apply.
_WHY: Final = "Why "
_OR_NOTHING: Final = ', or ""'
_SIZES: Final = {
    "batch": "items",
    "num_heads": "heads",
    "num_kv_heads": "key/value heads",
    "query_length": "queries",
    "key_length": "keys",
    "head_size": "channels a head",
    "value_head_size": "value channels a head",
}
_KINDS: Final = {
    "core": "core",
    "layer": "layer",
    "positions": "position encoding",
    "model": "whole model",
}
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


def applies(clause: Clause) -> str:
    """The condition under which a clause applies, in words from its space and requirements."""
    space = clause.space
    parts = [" or ".join(f"to a {_KINDS[kind]}" for kind in _KINDS if kind in space.kinds)]
    if space.mask == "always":
        forms = "bias with finite values" if space.finite_bias == "always" else _or(space.forms)
        parts.append(f"that takes a mask as {forms}")
    if space.axes:
        parts.append(f"in a shape with the axes {', '.join(space.axes)}")
    if space.causal == "always":
        parts.append("that declares causal")
    if space.square == "never":
        parts.append("whose query and key lengths may differ")
    parts.extend(f"with at least {least} {_SIZES.get(name, name)}" for name, least in space.least)
    if clause.needs_golden:
        parts.append("whose golden answer is known")
    parts.extend(_documented(requirement) for requirement in clause.requirements)
    return ", ".join(part for part in parts if part)


def _or(words: tuple[str, ...]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} or {words[-1]}"


def _documented(requirement: object) -> str:
    text = (requirement.__doc__ or "").strip()
    first = text.splitlines()[0].rstrip(".") if text else ""
    if first.startswith(_WHY):  # what the function returns: the reason, or nothing
        return f"unless {first.removeprefix(_WHY).removesuffix(_OR_NOTHING)}"
    return first[:1].lower() + first[1:]


def clause_entries() -> list[dict[str, Any]]:
    """Every clause, in the order in which a run takes them."""
    return [_data(clause) for clause in all_clauses()]


def clause_entry(slug: str) -> dict[str, Any]:
    """The entry of a clause; raises UsageError with the nearest slug for an unknown slug."""
    clauses = {clause.id: clause for clause in all_clauses()}
    if slug not in clauses:
        msg = f"there is no clause {slug!r}{suggestion(slug, clauses)}"
        raise UsageError(msg)
    return _data(clauses[slug])


def _data(clause: Clause) -> dict[str, Any]:
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
    """The names of the mistakes by their primary clause, in the order of the table of mistakes."""
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
    """Print the document, or write its pictures; returns 2 for bad input."""
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
