"""The record as markdown that GitHub and GitLab render: for a comment or a step summary."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from ..base.record import GREEN
from . import counterexample, wording
from .complete import Record, complete, notes
from .verdict_marks import case_id, is_strict, mark, problems, replay_command, told, whole
from .wording import count, shown_columns, worst_margin

# Characters special anywhere in a line of Markdown, the pipe of tables and the dollar of formulas.
_SPECIAL: Final = re.compile(r"([\\`*_\[\]|~$])")
_ENTITIES: Final = {"&": "&amp;", "<": "&lt;", ">": "&gt;"}
# GitHub links these after reading the Markdown, so that no backslash helps: a space of zero width
# does. Mentions, addresses, issues, and emoji by name.
_BREAK: Final = "&#8203;"
_LINKED: Final = re.compile(
    r"(@)(?=\w)|(:)(?=//)|\b(www)(?=\.)|(#)(?=\d)|\b(GH)(?=-\d)|(:)(?=[\w+-]+:)", re.IGNORECASE
)
_MARK: Final = "\ue000"


def escaped(text: object) -> str:
    """Escape a text for one line of Markdown, also inside a table."""
    safe = _SPECIAL.sub(r"\\\1", _plain(text))
    return _escape_start(safe).replace(_MARK, _BREAK)


def escape_in_html(text: object) -> str:
    """A text between tags, where markdown reads no backslashes."""
    return _plain(text).replace(_MARK, _BREAK)


def _plain(text: object) -> str:
    """Return one line without HTML, marked where GitHub would link it."""
    line = " ".join(str(text).replace(_MARK, "").split())
    broken = _LINKED.sub(lambda match: f"{match[0]}{_MARK}", line)
    return re.sub(r"[&<>]", lambda match: _ENTITIES[match[0]], broken)


def _escape_start(line: str) -> str:
    """Escape a line's start: no list, heading or rule."""
    return re.sub(r"^(\d*)([-+=#.)])", r"\1\\\2", line)


def code(text: object, *, in_table: bool = False) -> str:
    """Return a text in code type on one line, with any backticks, and pipes in a table."""
    line = " ".join(str(text).split())
    if not line:
        return ""
    fence = _fence(line, 1)
    pad = " " if line.startswith("`") or line.endswith("`") else ""
    span = f"{fence}{pad}{line}{pad}{fence}"
    return span.replace("|", "\\|") if in_table else span


def code_block(lines: list[str]) -> str:
    """Return lines verbatim, in a block with a longer fence than any in the lines."""
    text = "\n".join(lines)
    fence = _fence(text, 3)
    return f"{fence}text\n{text}\n{fence}"


def _fence(text: str, least: int) -> str:
    """Return more backticks than any run of them in a text."""
    return "`" * max([least, *(len(run) + 1 for run in re.findall("`+", text))])


def row(*cells: str) -> str:
    """Return one row of a table, of escaped cells."""
    return f"| {' | '.join(cells)} |"


def table(head: Sequence[str], rows: Iterable[str], rules: Sequence[str] = ()) -> str:
    """A table of GitHub's markdown; ``rules`` align the columns, to the left by default."""
    return "\n".join([row(*head), row(*(rules or [":--"] * len(head))), *rows])


# A comment of GitHub holds 65,536 characters; something may stand above it.
COMMENT_LIMIT: Final = 65_000
_ROWS: Final = 100
_CELL: Final = 300
# Causes of a candidate that stand before the table of its clauses.
_CAUSES: Final = 12
_BLOCK: Final = 4_000
_SIGNS: Final = {
    **dict.fromkeys((*GREEN, "passed"), "✅"),
    **dict.fromkeys(("fails", "failed", "unexpected-pass", "error"), "❌"),
}
_EXPLAINED: Final = ("error", "failed", "unexpected-pass")
_TABULATED: Final = (*_EXPLAINED, "untestable", "expected-failure")


def render_markdown(record: Record, limit: int = COMMENT_LIMIT) -> str:
    """The record as markdown of at most ``limit`` bytes; a sentence says what was left out."""
    record = complete(record)
    blocks = [_title(record), _overview(record), *_problems(record)]
    blocks += [
        _section(entry, clauses)
        for entry in record["candidates"]
        if _needs_words(entry, clauses := told(record, entry))
    ]
    return _fitted([*blocks, *_all_details(record)], limit)


def _fitted(blocks: Sequence[str], limit: int) -> str:
    """Return the blocks in order within the limit; the rest is counted."""
    note = "_{} of {} parts were left out here, to stay below {:,} bytes: the JSON record has all._"
    room = limit - len(note) - 40
    kept = []
    for block in blocks:
        size = len(block.encode()) + 2
        if size <= room:
            kept.append(block)
            room -= size
    if len(kept) < len(blocks):
        kept.append(note.format(len(blocks) - len(kept), len(blocks), limit))
    return "\n\n".join(kept) + "\n"


def _title(record: Record) -> str:
    total, tool = whole(record), record["tool"]
    facts = (
        f"profile {record['profile']}, seed {record['seed']}, "
        f"{wording.seconds(record['seconds'])}, version {tool.get('version', 'unknown')}, "
        f"specification {tool.get('specification', 'unknown')}"
    )
    title = f"## {_sign(total.word)} Attention conformance: {escaped(total.word)}"
    noted = [escaped(note) for note in notes(record) if note != total.reason]
    return "\n\n".join([title, _cell(total.reason), *noted, escaped(facts)])


def _overview(record: Record) -> str:
    candidates = record["candidates"]
    columns = shown_columns(candidates)
    rows = []
    for candidate in candidates[:_ROWS]:
        margin, slug = worst_margin(candidate)
        cells = [
            _cell(candidate["name"]),
            f"{_sign(candidate['verdict'])} {escaped(candidate['verdict'])}",
            *(str(count(candidate, name) or "-") for name in columns),
            f"{float(candidate['seconds']):.1f}",
            f"{margin} {code(slug, in_table=True)}".strip(),
        ]
        rows.append(row(*cells))
    head = ("candidate", "verdict", *columns, "seconds", "worst margin")
    rules = [":--", ":--", *["--:"] * (len(columns) + 1), ":--"]
    return f"{table(head, rows, rules)}{_more(len(candidates), 'candidates')}"


def _sign(word: str) -> str:
    return _SIGNS.get(word, "⚠️")


def _more(number: int, what: str) -> str:
    return f"\n\n_and {number - _ROWS:,} more {what}_" if number > _ROWS else ""


def _problems(record: Record) -> list[str]:
    lines = [
        f"- ❌ {code(problem.id)} {_cell(problem.candidate)} {_cell(problem.message)}"
        for problem in problems(record)[:_ROWS]
    ]
    return ["\n".join(lines)] if lines else []


def _needs_words(candidate: Record, clauses: list[Record]) -> bool:
    listed = any(clause["status"] in _TABULATED for clause in clauses)
    return listed or candidate["verdict"] != "conforms" or bool(candidate["warnings"])


def _section(candidate: Record, clauses: list[Record]) -> str:
    parts = [
        f"### {_cell(candidate['name'])}: {escaped(candidate['verdict'])}",
        f"{_cell(wording.verdict_reason(candidate))} ({code(candidate['target'])})",
        *([_cell(wording.site(candidate))] if wording.site(candidate) else []),
        *(f"⚠️ {_cell(sentence)}" for sentence in candidate["warnings"]),
    ]
    names = {clause["id"] for clause in clauses}
    causes = [one for one in wording.causes(candidate) if names.intersection(one["clauses"])]
    parts += map(_cause, causes[:_CAUSES])
    listed = [clause for clause in clauses if clause["status"] in _TABULATED]
    if listed:
        # Tolerated results come last: of very many rows the first are shown.
        listed.sort(key=lambda one: (_TABULATED.index(one["status"]), one["level"] != "MUST"))
        head = ("clause", "level", "dtype", "status", "found", "diagnosis")
        rows = map(_clause_row, listed[:_ROWS])
        parts.append(f"{table(head, rows)}{_more(len(listed), 'clauses')}")
    return "\n\n".join(parts)


def _cause(cause: Record) -> str:
    slugs = ", ".join(map(code, cause["clauses"][:_ROWS]))
    smallest = wording.counterexample(cause.get("counterexample") or {})
    lines = [
        f"- **{_cell(wording.cause_title(cause))}**",
        f"  - fix: {_cell(cause['fix'])}" if cause["fix"] else "",
        f"  - line: {code(line)}" if (line := wording.said_line(cause)) else "",
        f"  - smallest input: {_cell(smallest)}" if smallest else "",
        f"  - explains {slugs} ({escaped(cause['level'])})",
    ]
    return "\n".join(filter(None, lines))


def _clause_row(clause: Record) -> str:
    sign = "⚠️" if mark(clause) in ("passed", "skipped") else _sign("failed")
    causes = [str(entry.get("name") or "") for entry in clause["diagnosis"]]
    return row(
        code(clause["id"], in_table=True),
        escaped(clause["level"]),
        escaped(wording.where(clause)),
        f"{sign} {escaped(clause['status'])}",
        _cell(wording.message(clause)),
        _cell(", ".join(filter(None, causes))),
    )


def _all_details(record: Record) -> Iterator[str]:
    """Yield each failure in full, to be folded out; those that redden the run first."""
    strict = is_strict(record)
    failed = [
        (candidate, clause)
        for candidate in record["candidates"]
        for clause in told(record, candidate)
        if clause["status"] in _EXPLAINED
    ]
    failed.sort(key=lambda pair: mark(pair[1], strict=strict) == "skipped")
    for candidate, clause in failed:
        yield _details(candidate, clause)


def _details(candidate: Record, clause: Record) -> str:
    lines = [f"{label + ':':<11}{text}" for label, text in wording.explanation(clause)]
    if clause["counterexample"]:
        lines.append(f"{'replay:':<11}{replay_command(candidate, clause)}")
        shown = counterexample.block(clause["counterexample"])
        lines.extend(["", *shown] if shown else [])
    text = "\n".join(lines)
    if len(text) > _BLOCK:
        text = f"{text[:_BLOCK]} … ({len(text) - _BLOCK:,} more characters in the JSON record)"
    name = escape_in_html(f"{candidate['name']}: {case_id(clause)}")
    return f"<details><summary>{name}</summary>\n\n{code_block(text.splitlines())}\n\n</details>"


def _cell(text: object) -> str:
    line = " ".join(str(text)[: 4 * _CELL].split())
    return escaped(line if len(line) <= _CELL else f"{line[: _CELL - 1]}…")
