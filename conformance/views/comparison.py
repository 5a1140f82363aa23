"""Candidates side by side: where their results, their conventions and their margins differ.

As data for a page, and as tables for a terminal and for markdown (a pull request or a README).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import IO, Any, Final

from rich.text import Text

from ..base.record import CHOSEN
from . import html_words, wording
from .complete import Record, notes
from .html_words import anchored, complete, worst
from .markdown import code, escaped, row, table
from .printing import Fitting, Row, fitting, indented, write
from .verdict_marks import whole
from .wording import counted, cut

# Descriptions in a declaration; its other keys are conventions.
_NOT_CONVENTIONS: Final = ("kind", "semantics", "precision", "assumptions", "target", "name")
_LONGEST_VALUE: Final = 160
_LONGEST_CELL: Final = 40
_ABSENT: Final = "absent"
# Clauses with the largest margins that markdown lists; the page has them all.
_MOST_MARGINS: Final = 15
_STYLES: Final = {
    "pass": "green",
    "fail": "bold red",
    "error": "bold magenta",
    "unexpected": "bold red",
    "should": "yellow",
    "untestable": "yellow",
    "expected": "yellow",
    "na": "dim",
    "absent": "dim",
}


@dataclass(frozen=True, kw_only=True)
class DeclaredConvention:
    """One convention: its name and the declared value of each candidate."""

    name: str
    values: list[str]

    @property
    def differs(self) -> bool:
        """Whether the candidates declare different values."""
        return len(set(self.values)) > 1


@dataclass(frozen=True, kw_only=True)
class ClauseOutcome:
    """The result of a clause for one candidate: class, word, explanation and worst margin."""

    kind: str
    word: str
    why: str
    margin: float | None

    @property
    def text(self) -> str:
        """Sign and word; the margin too unless the clause passed."""
        margin = "" if self.kind == "pass" else f" {html_words.margin(self.margin)}"
        return f"{html_words.sign(self.kind)} {self.word}{margin}".strip()


@dataclass(frozen=True, kw_only=True)
class ComparedClause:
    """One clause with its outcome for every candidate."""

    slug: str
    level: str
    requirement: str
    outcomes: list[ClauseOutcome]

    @property
    def differs(self) -> bool:
        """Whether the candidates that ran the clause have different outcomes."""
        return len({outcome.kind for outcome in self.outcomes} - {"na", _ABSENT}) > 1

    @property
    def worst(self) -> float | None:
        """The largest margin of all candidates."""
        return worst(outcome.margin for outcome in self.outcomes)


def conventions(record: Record) -> list[DeclaredConvention]:
    """Return every convention declared by a candidate, differing ones first."""
    candidates = record["candidates"]
    declarations = [_mapping(candidate["declaration"]) for candidate in candidates]
    # A record lists only those choices of semantics that are not the standard's.
    points = [_mapping(declaration.get("semantics")) for declaration in declarations]
    every = [
        DeclaredConvention(name="kind", values=[str(entry["kind"]) for entry in candidates]),
        *_side_by_side(declarations, "", "not declared", _NOT_CONVENTIONS),
        *_side_by_side(points, "semantics: ", "standard"),
    ]
    return sorted(every, key=lambda convention: not convention.differs)


def _side_by_side(
    tables: Sequence[Record], prefix: str, absent: str, left_out: Sequence[str] = ()
) -> Iterator[DeclaredConvention]:
    for name in dict.fromkeys(
        name for declared in tables for name in declared if name not in left_out
    ):
        values = [
            value_words(declared[name]) if name in declared else absent for declared in tables
        ]
        yield DeclaredConvention(name=f"{prefix}{name.replace('_', ' ')}", values=values)


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def value_words(value: Any) -> str:
    """A declared value in words."""
    if value is None or value in ("", [], {}):
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Mapping):
        value = ", ".join(f"{name}: {value_words(entry)}" for name, entry in value.items())
    elif isinstance(value, list):
        value = ", ".join(map(str, value))
    return html_words.short(str(value), _LONGEST_VALUE)


def compared(record: Record) -> list[ComparedClause]:
    """Return every clause of all candidates, in the order of first appearance."""
    by_slug = [
        {slug: [clause for _, clause in pairs] for slug, pairs in groups.items()}
        for groups in (
            html_words.group_by_clause(anchored(entry, 0, {})) for entry in record["candidates"]
        )
    ]
    firsts = {slug: results[0] for own in reversed(by_slug) for slug, results in own.items()}
    return [
        ComparedClause(
            slug=slug,
            level=str(firsts[slug]["level"]),
            requirement=str(firsts[slug]["requirement"]),
            outcomes=[_outcome(own.get(slug, [])) for own in by_slug],
        )
        for slug in dict.fromkeys(slug for own in by_slug for slug in own)
    ]


def _outcome(results: Sequence[Record]) -> ClauseOutcome:
    if not results:
        return ClauseOutcome(kind=_ABSENT, word="not run", why="", margin=None)
    kind = html_words.worst_kind(results)
    clause = next(result for result in results if html_words.kind(result) == kind)
    return ClauseOutcome(
        kind=kind,
        word=str(clause["status"]),
        why=_why(clause),
        margin=worst(result["margin"] for result in results),
    )


def _why(clause: Record) -> str:
    for entry in clause["diagnosis"]:
        if float(entry.get("confidence") or 0) > 0 and entry.get("name"):
            return str(entry["name"])
    if clause["violation"] is not None and clause["violation"]["message"]:
        return str(clause["violation"]["message"])
    return str(clause["reason"])


def not_run_everywhere(clauses: Sequence[ComparedClause]) -> str:
    """Return the number of clauses without a result of every candidate, in words; "" if none.

    Runs with different ``--only``, and interrupted ones, have such clauses.
    """
    number = sum(any(outcome.kind == _ABSENT for outcome in clause.outcomes) for clause in clauses)
    were = "was" if number == 1 else "were"
    words = f"{counted(number, 'clause')} {were} run for some candidates alone"
    return f"{words}, and cannot be compared" if number else ""


def sort_by_margin(clauses: Sequence[ComparedClause]) -> list[ComparedClause]:
    """The clauses that compare numbers, the largest margin first; NaN is the largest of all."""
    pairs = [(margin, clause) for clause in clauses if (margin := clause.worst) is not None]
    pairs.sort(key=lambda pair: (pair[0] == pair[0], -pair[0]))
    return [clause for _, clause in pairs]


def circumstances(record: Record) -> list[tuple[str, list[str]]]:
    """Return the differing settings of the compared runs, with their values.

    Empty for the candidates of one run.
    """
    runs = []
    for run in record.get("compared") or ():
        tool, environment = _mapping(run.get("tool")), _mapping(run.get("environment"))
        runs.append(
            {
                **{name: str(run[name]) for name in ("profile", "seed") if name in run},
                **_chosen(_mapping(run.get("options"))),
                **{f"tool {name}": str(value) for name, value in tool.items() if name != "name"},
                **{str(name): str(value) for name, value in environment.items()},
            }
        )
    rows = [
        (name, [run.get(name, "unknown") for run in runs])
        for name in dict.fromkeys(name for run in runs for name in run)
    ]
    return [(name, values) for name, values in rows if len(set(values)) > 1]


def _chosen(options: Record) -> dict[str, str]:
    """Return a run's selection of clauses, if its record has it."""
    return {
        option: ", ".join(map(str, options[name] or ())) or "not given"
        for name, option in CHOSEN.items()
        if name in options
    }


def sources(record: Record) -> list[str]:
    """The names of the compared runs."""
    return [str(run.get("source", "")) for run in record.get("compared") or ()]


@dataclass(frozen=True, kw_only=True)
class Section:
    """A table of differences: its columns, and rows of a label and of cells (text, style)."""

    title: str
    head: str
    names: list[str]
    rows: list[tuple[str, list[tuple[str, str]]]]
    style: str = "bold"


def _sections(record: Record, clauses: Sequence[ComparedClause]) -> Iterator[Section]:
    """Yield the tables common to terminal and markdown, without empty ones."""
    names = [str(candidate["name"]) for candidate in record["candidates"]]
    outcomes = [
        (clause.slug, [(outcome.text, _STYLES[outcome.kind]) for outcome in clause.outcomes])
        for clause in clauses
        if clause.differs
    ]
    declared = [(each.name, each.values) for each in conventions(record) if each.differs]
    yield Section(title="clauses that end differently", head="clause", names=names, rows=outcomes)
    yield Section(
        title="conventions that differ", head="convention", names=names, rows=_unstyled(declared)
    )
    yield Section(
        title="the runs were not made alike",
        head="run",
        names=sources(record),
        rows=_unstyled(circumstances(record)),
        style="bold yellow",
    )


def _unstyled(
    rows: Sequence[tuple[str, list[str]]],
) -> list[tuple[str, list[tuple[str, str]]]]:
    return [(label, [(value, "") for value in values]) for label, values in rows]


def show_comparison(record: Record, file: IO[str]) -> None:
    """Write what differs, then every candidate's verdict."""
    write(_parts(complete(record)), file)


def _parts(record: Record) -> Iterator[Any]:
    clauses = compared(record)
    for section in _sections(record, clauses):
        if section.rows:
            yield Text(section.title, style=section.style)
            yield _section_table(section)
            yield Text("")
    rows = []
    for candidate in record["candidates"]:
        name, verdict = str(candidate["name"]), str(candidate["verdict"])
        word = Text(verdict, style=_STYLES[html_words.verdict(verdict)[0]])
        reason = wording.reason_with_causes(candidate)
        below = [Text(name, style="bold"), indented(Text.assemble(word, ": ", reason), 2)]
        rows.append(((name, word, reason), below))
    yield fitting(("candidate", "verdict", "reason"), rows)
    different = sum(clause.differs for clause in clauses)
    line = Text(
        f"\n{counted(len(rows), 'candidate')} compared: {whole(record).word}, {different} of "
        f"{len(clauses)} clauses end differently ({wording.seconds(float(record['seconds'] or 0))})"
    )
    for note in filter(None, (not_run_everywhere(clauses), *notes(record))):
        line.append(f"\n{note}", style="yellow")
    yield line


def _section_table(section: Section) -> Fitting:
    """Return a section for a terminal: long cells are cut in the table, and whole in its rows."""
    rows: list[Row] = []
    for label, cells in section.rows:
        short = (cut(text, _LONGEST_CELL) if not style else text for text, style in cells)
        styles = (style for _, style in cells)
        below: list[Any] = [Text(label, style="bold")]
        for name, (text, style) in zip(section.names, cells, strict=True):
            below.append(indented(Text.assemble(name, ": ", Text(text, style=style)), 2))
        rows.append(([label, *map(Text, short, styles)], below))
    return fitting([section.head, *section.names], rows)


def render_comparison_markdown(record: Record) -> str:
    """The comparison as markdown; no text of the record is read as markup."""
    return "\n".join(_lines(complete(record))) + "\n"


def _lines(record: Record) -> Iterator[str]:
    candidates, clauses, total = record["candidates"], compared(record), whole(record)
    _, sign = html_words.verdict(total.word)
    yield f"## {sign} {len(candidates)} candidates compared: {escaped(total.word)}\n"
    for note in filter(None, (not_run_everywhere(clauses), *notes(record))):
        yield f"{escaped(note)}\n"
    verdicts = [
        row(
            _name(entry["name"]),
            escaped(entry["verdict"]),
            escaped(wording.reason_with_causes(entry)),
        )
        for entry in candidates
    ]
    yield table(("candidate", "verdict", "reason"), verdicts) + "\n"
    *differences, runs = _sections(record, clauses)
    ranked = sort_by_margin(clauses)
    margins = Section(
        title="largest margins (error over its bound; 1 is at the bound)",
        head="clause",
        names=[str(candidate["name"]) for candidate in candidates],
        rows=_unstyled(
            [
                (clause.slug, [html_words.margin(outcome.margin) for outcome in clause.outcomes])
                for clause in ranked[:_MOST_MARGINS]
            ]
        ),
    )
    for section in (*differences, margins, runs):
        if section.rows:
            yield f"### {section.title[0].upper()}{section.title[1:]}\n"
            head = (section.head, *map(_name, section.names))
            label_of = _name if section.head == "clause" else escaped
            yield table(head, (_row(label_of(label), cells) for label, cells in section.rows))
            yield ""
        if section is margins and len(ranked) > _MOST_MARGINS:
            yield f"And {len(ranked) - _MOST_MARGINS} clauses with smaller margins.\n"


def _row(label: str, cells: Sequence[tuple[str, str]]) -> str:
    return row(label, *(escaped(text) for text, _ in cells))


def _name(name: object) -> str:
    return code(name, in_table=True)
