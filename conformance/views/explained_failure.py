"""One failure for a person at a terminal: problem, fix, picture, facts."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import IO, Any, Final

from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from . import wording
from .complete import Record, complete
from .failure_picture import Picture, PictureTable, picture_of
from .printing import indented, write
from .verdict_marks import replay_command

# Columns of a picture, whatever the terminal has.
_WIDTH: Final = 100
_GAP: Final = 3
_HIDDEN: Final = "#"
_SAME: Final = "="
_DIGITS: Final = 3
_LARGE: Final = 1e4
# Colours for a quarter, half, three quarters and more of the largest number: above zero and below.
_MORE: Final = ("black on #d3e5f5", "black on #a3cbec", "black on #6eabdf", "white on #1668b8")
_LESS: Final = ("black on #f7dccf", "black on #f0b899", "black on #e58e62", "white on #a8401b")
_ODD: Final = "black on #f0bf62"
_LABEL_WIDTH: Final = 11
# Below the picture; the other labels say what is wrong and what to do.
_FACTS: Final = ("requires", "found", "raised at", "called at", "blame")
_INPUT: Final = "on"


def show_failure(candidate: Record, clause: Record, file: IO[str], *, report: str) -> None:
    """Write what is known of a failed clause.

    ``clause`` is one of the results of ``candidate``, an entry of the record in the file
    ``report``.
    """
    place = next(n for n, result in enumerate(candidate["clauses"]) if result is clause)
    (whole,) = complete({"candidates": [candidate]})["candidates"]
    write(_parts(whole, whole["clauses"][place], report), file)


def _parts(candidate: Record, clause: Record, report: str) -> Iterator[Any]:
    violation = clause["violation"] or {}
    details = [clause["level"], wording.where(clause), str(violation.get("kind") or "")]
    head = Text.assemble((candidate["name"], "bold"), " ", (clause["id"], "bold"))
    yield head.append(f" [{', '.join(filter(None, details))}]: {clause['status']}")
    pairs = wording.explanation(clause)
    said = [(label, text) for label, text in pairs if label not in (*_FACTS, _INPUT)]
    yield from _lines(said or [("diagnosis", "none")])
    yield from _lines((label, text) for label, text in pairs if label == _INPUT)
    yield Text("")
    yield from _picture(candidate, clause)
    yield Text("")
    yield from _lines((label, text) for label, text in pairs if label in _FACTS)
    if clause["counterexample"]:
        yield from _lines([("replay", replay_command(candidate, clause, report))])


def _lines(pairs: Iterator[tuple[str, str]] | Sequence[tuple[str, str]]) -> Iterator[Any]:
    for label, text in pairs:
        yield indented(f"{label + ':':<{_LABEL_WIDTH}}{text}", 2)


def _picture(candidate: Record, clause: Record) -> Iterator[Any]:
    drawn = picture_of(candidate, clause)
    if drawn is None:
        yield indented("no picture: the record holds no weights that were read for this failure", 2)
        return
    picture, result = drawn
    if result is not clause:
        on = wording.counterexample(result["counterexample"] or {})
        yield from _lines([("picture", f"that of {result['id']}, the same mistake, on {on}")])
    yield indented(picture.title, 2)
    yield Drawing(picture)
    if picture.text:
        yield indented(picture.text, 2)


class Drawing:
    """The tables of a picture: side by side if they fit, else below each other.

    If not all keys fit, those around the worst weight are shown.
    """

    def __init__(self, picture: Picture) -> None:
        self.picture = picture

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield the lines for rich."""
        del console
        width = min(options.max_width, _WIDTH) - 2
        tables = self.picture.tables
        for group in (tables[:3], tables[3:]):
            for line in self._group(group, width):
                yield indented(line, 2)
        yield indented(Text(self._legend(), style="dim"), 2)

    def _group(self, tables: Sequence[PictureTable], width: int) -> Iterator[Text]:
        every = range(len(self.picture.hidden[0]))
        blocks = self._blocks(tables, every, gap=2)
        if sum(block[0].cell_len + _GAP for block in blocks) - _GAP <= width:
            for lines in zip(*blocks, strict=True):
                yield Text(" " * _GAP).join(lines)
            return
        fitting = ((keys, self._blocks(tables, keys, gap=1)) for keys in self._windows())
        keys, tight = next(one for one in fitting if len(one[0]) == 1 or _width(one[1]) <= width)
        if len(keys) < len(every):
            first = self.picture.first[1]
            yield Text(f"keys {first + keys[0]} to {first + keys[-1]}, those that fit here")
        for block in tight:
            yield from block

    def _blocks(self, tables: Sequence[PictureTable], keys: range, *, gap: int) -> list[list[Text]]:
        return [_block(self.picture, table, keys, gap=gap) for table in tables]

    def _windows(self) -> Iterator[range]:
        """Yield ranges of keys around the worst weight: all keys, then ever fewer."""
        count, worst = len(self.picture.hidden[0]), self.picture.worst[1]
        for shown in range(count, 0, -1):
            first = max(0, min(worst - shown // 2, count - shown))
            yield range(first, first + shown)

    def _legend(self) -> str:
        signs = []
        if any(map(any, self.picture.hidden)):
            signs.append(f"{_HIDDEN} the key is hidden from the query")
        if not all(map(all, self.picture.wrong)):
            signs.append(f"{_SAME} as expected, to within rounding")
        if self.picture.tables[3:]:
            signs.append("logits: the largest of each row is subtracted")
        return "   ".join(signs)


def _width(blocks: Sequence[Sequence[Text]]) -> int:
    return max(lines[0].cell_len for lines in blocks)


def _block(picture: Picture, table: PictureTable, keys: range, *, gap: int) -> list[Text]:
    """Return the lines of a table, all of one width: title, keys, and a line a query."""
    rows = [
        [_cell(picture, table, query, key) for key in keys] for query in range(len(table.cells))
    ]
    heads = [str(picture.first[1] + key) for key in keys]
    sign = any(map(any, picture.hidden))  # has a column of its own
    width = max(len(text) for text in [*(text for row in rows for text, _ in row), *heads])
    first, last = picture.first[0], picture.first[0] + len(rows) - 1
    label = max(len(str(last)), len("q\\k"))
    lines = [Text(table.title, style="bold"), Text("q\\k".rjust(label), style="dim")]
    for head in heads:
        lines[1].append(" " * gap + head.rjust(width) + " " * sign)
    for number, row in enumerate(rows):
        line = Text(str(first + number).rjust(label), style="dim")
        for key, (text, style) in zip(keys, row, strict=True):
            mark = _HIDDEN if picture.hidden[number][key] else " " * sign
            line.append(" " * gap, style="not dim").append(f"{text:>{width}}{mark}", style=style)
        lines.append(line)
    widest = max(line.cell_len for line in lines)
    for line in lines:
        line.pad_right(widest - line.cell_len)
    return lines


def _cell(picture: Picture, table: PictureTable, query: int, key: int) -> tuple[str, str]:
    """Return text and style of a cell; a hidden key without a weight has only its sign."""
    value = table.cells[query][key]
    if value is None:
        return "", "not dim"
    if table.scale == "difference" and not picture.wrong[query][key]:
        return _SAME, "dim"
    if picture.hidden[query][key] and value == 0:
        return "", "dim"
    return _number(value, signed=table.scale == "difference"), _shade(value, table)


def _number(value: float, *, signed: bool) -> str:
    """Format with three decimals, or two digits and an exponent for extreme sizes."""
    if not math.isfinite(value):
        return str(value)
    size = abs(value)
    plain = size == 0 or 0.5 * 10**-_DIGITS <= size < _LARGE
    sign = "+" if signed else ""
    return f"{value:{sign}.{_DIGITS}f}" if plain else f"{value:{sign}.1e}"


def _shade(value: float, table: PictureTable) -> str:
    """Return the colours of a number, the darker the nearer to the end of the table's scale."""
    if not math.isfinite(value):
        return f"not dim {_ODD}"
    if value == 0 or not table.end:
        return "not dim"
    shades = _MORE if value > 0 else _LESS
    step = min(len(shades), math.ceil(len(shades) * abs(value) / table.end))
    return f"not dim {shades[max(1, step) - 1]}"
