"""Candidates side by side as markdown, for a pull request or a README."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from . import html_words
from .comparison import Compared, circumstances, compared, conventions, not_asked, sources
from .complete import notes
from .html_words import complete
from .markdown import code, escaped
from .marks import whole

Record = Mapping[str, Any]

# Clauses with the largest margins that are listed; the page has them all.
_MOST_MARGINS: Final = 15


def render_markdown(record: Record) -> str:
    """The comparison as markdown; no text of the record is read as markup."""
    return "\n".join(_lines(complete(record))) + "\n"


def _lines(record: Record) -> Iterator[str]:
    candidates = record["candidates"]
    names = [str(candidate["name"]) for candidate in candidates]
    clauses = compared(record)
    found = whole(record)
    _, sign = html_words.verdict(found.word)
    yield f"## {sign} {len(candidates)} candidates compared: {escaped(found.word)}"
    yield ""
    for note in filter(None, (not_asked(clauses), *notes(record))):
        yield escaped(note)
        yield ""
    yield from _table(
        ["candidate", "verdict", "reason"],
        [
            [
                code(one["name"], in_table=True),
                escaped(one["verdict"]),
                escaped(one["verdict_reason"]),
            ]
            for one in candidates
        ],
    )
    yield from _differences(names, [clause for clause in clauses if clause.differs])
    rows = [(row.name, row.values) for row in conventions(record) if row.differs]
    yield from _side_by_side("Conventions that differ", "convention", names, rows)
    yield from _margins(names, clauses)
    unequal = circumstances(record)
    yield from _side_by_side("The runs were not made alike", "run", sources(record), unequal)


def _differences(names: Sequence[str], different: Sequence[Compared]) -> Iterator[str]:
    if not different:
        return
    yield "### Clauses that end differently"
    yield ""
    rows = [
        [
            code(clause.slug, in_table=True),
            *(
                escaped(f"{html_words.sign(one.kind)} {one.word}".strip())
                for one in clause.outcomes
            ),
        ]
        for clause in different
    ]
    yield from _table(["clause", *_heads(names)], rows)


def _side_by_side(
    title: str, head: str, names: Sequence[str], rows: Sequence[tuple[str, Sequence[str]]]
) -> Iterator[str]:
    if not rows:
        return
    yield f"### {title}"
    yield ""
    cells = [[escaped(label), *(escaped(value) for value in values)] for label, values in rows]
    yield from _table([head, *_heads(names)], cells)


def _margins(names: Sequence[str], clauses: Sequence[Compared]) -> Iterator[str]:
    """The largest margins; NaN counts as the largest of all."""
    numbers = [(worst, clause) for clause in clauses if (worst := clause.worst) is not None]
    numbers.sort(key=lambda pair: (pair[0] == pair[0], -pair[0]))
    if not numbers:
        return
    yield "### Largest margins (error over its bound; 1 is at the bound)"
    yield ""
    rows = [
        [
            code(clause.slug, in_table=True),
            *(escaped(html_words.margin(one.margin)) for one in clause.outcomes),
        ]
        for _, clause in numbers[:_MOST_MARGINS]
    ]
    yield from _table(["clause", *_heads(names)], rows)
    if len(numbers) > _MOST_MARGINS:
        yield f"And {len(numbers) - _MOST_MARGINS} clauses with smaller margins."
        yield ""


def _heads(names: Sequence[str]) -> list[str]:
    return [code(name, in_table=True) for name in names]


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    yield f"| {' | '.join(head)} |"
    yield f"|{' --- |' * len(head)}"
    for row in rows:
        yield f"| {' | '.join(row)} |"
    yield ""
