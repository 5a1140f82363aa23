"""Small tables of cells as SVG: light and dark, with a title and a description as text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Final

CELL: Final = 16
GAP: Final = 34
MARGIN: Final = 14
CHARACTER: Final = 6.3  # the width of a character of the labels, about
TOP: Final = 46  # of a panel's cells: its title and the numbers of its columns

# What each kind of cell looks like; the marks tell them apart without colour.
STYLE: Final = """
text { font: 11px system-ui, sans-serif; fill: #1f2933; }
.title { font-weight: 600; } .small { font-size: 10px; fill: #52606d; }
.card { fill: #ffffff; stroke: #d9e2ec; }
.none { fill: #f0f4f8; stroke: #d9e2ec; } .both { fill: #3574b0; stroke: #2b5f91; }
.lost { fill: #ffffff; stroke: #3574b0; stroke-width: 2; } .more { fill: #e8833a; stroke: #b85f1f; }
.stays { fill: #cfe8d5; stroke: #a3cdae; } .moves { fill: #e8833a; stroke: #b85f1f; }
.aside { fill: none; stroke: #bcccdc; stroke-dasharray: 2 2; }
.mark { stroke: #1f2933; stroke-width: 1.5; fill: none; }
@media (prefers-color-scheme: dark) {
text { fill: #e4e7eb; } .small { fill: #9aa5b1; } .card { fill: #1a1f26; stroke: #323f4b; }
.none { fill: #242c35; stroke: #3a4652; } .both { fill: #5c9bd6; stroke: #8bbbe8; }
.lost { fill: #1a1f26; stroke: #5c9bd6; } .stays { fill: #2c4a36; stroke: #467353; }
.aside { stroke: #52606d; }
}
"""
KINDS: Final = {
    ".": ("none", "seen in neither"),
    "b": ("both", "seen in both"),
    "r": ("lost", "seen as required only"),
    "c": ("more", "seen in the counterfactual only"),
    "s": ("stays", "stays within the bound"),
    "m": ("moves", "moves beyond the bound"),
    "-": ("aside", "not judged"),
}
_SIZES: Final = ("width", "height")
MARKED: Final = "cm"  # kinds of cells with a cross


@dataclass(frozen=True, kw_only=True)
class Panel:
    """One table: its title, what its rows and columns are, and a character of KINDS a cell.

    Rows are called by their ``labels``, of at most two characters, or else by their number.
    """

    title: str
    rows: str
    columns: str
    cells: Sequence[str]
    labels: Sequence[str] = ()

    @property
    def width(self) -> float:
        """The width with the labels, in units of the picture."""
        cells = 20 + CELL * max(map(len, self.cells), default=0)
        return max(cells, CHARACTER * len(self.title), CHARACTER * len(self._axes))

    @property
    def height(self) -> float:
        """The height with the labels, in units of the picture."""
        return TOP + CELL * len(self.cells)

    @property
    def _axes(self) -> str:
        return f"{self.rows} \N{DOWNWARDS ARROW}  {self.columns} \N{RIGHTWARDS ARROW}"

    def drawn(self, left: float) -> list[str]:
        """The elements of the panel."""
        lines = [
            text(left, 22, self.title, "title"),
            text(left, 36, self._axes, "small"),
        ]
        names = self.labels or [str(row) for row in range(len(self.cells))]
        for row, kinds in enumerate(self.cells):
            y = TOP + CELL * row
            lines.append(text(left, y + 12, names[row], "small"))
            lines.extend(
                _cell(left + 20 + CELL * place, y, kind) for place, kind in enumerate(kinds)
            )
        return lines


def draw(title: str, description: str, panels: Sequence[Panel], *, note: str = "") -> str:
    """The panels side by side, and below them what the kinds of cells that occur mean."""
    used = [kind for kind in KINDS if any(kind in row for each in panels for row in each.cells)]
    widths = [panel.width for panel in panels]
    longest = max((len(KINDS[kind][1]) for kind in used), default=0)
    width = 2 * MARGIN + max(
        sum(widths) + GAP * (len(panels) - 1),
        CHARACTER * len(note),
        24 + CHARACTER * longest,
    )
    below = max(panel.height for panel in panels) + 14
    parts: list[str] = []
    left: float = MARGIN
    for panel, wide in zip(panels, widths, strict=True):
        parts.extend(panel.drawn(left))
        left += wide + GAP
    for number, kind in enumerate(used):
        y = below + 18 * number
        parts += [_cell(MARGIN, y, kind), text(MARGIN + 24, y + 12, KINDS[kind][1])]
    if note:
        parts.append(text(MARGIN, below + 18 * len(used) + 12, note, "small"))
    height = below + 18 * (len(used) + bool(note)) + 8
    return framed(title, description, (width, height), parts)


def framed(
    title: str, description: str, size: tuple[float, float], parts: Sequence[str], style: str = ""
) -> str:
    """A picture of some elements on a card, which is light or dark as the reader has it."""
    width, height = (f"{each:.0f}" for each in size)
    edge = " ".join(f'{name}="{each - 1:.0f}"' for name, each in zip(_SIZES, size, strict=True))
    lines = [
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
            f'width="{width}" height="{height}" role="img" aria-labelledby="t d">'
        ),
        f'<title id="t">{escape(title)}</title>',
        f'<desc id="d">{escape(description)}</desc>',
        f"<style>{STYLE}{style}</style>",
        f'<rect class="card" x="0.5" y="0.5" {edge} rx="8"/>',
        *parts,
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


def text(x: float, y: float, words: str, kind: str = "", anchor: str = "start") -> str:
    """A line of text; ``kind`` is a class of STYLE, ``anchor`` where x is in it."""
    chosen = f' class="{kind}"' if kind else ""
    placed = "" if anchor == "start" else f' text-anchor="{anchor}"'
    return f'<text{chosen}{placed} x="{x:.0f}" y="{y:.0f}">{escape(words)}</text>'


def _cell(x: float, y: float, kind: str) -> str:
    size = CELL - 2
    square = (
        f'<rect class="{KINDS[kind][0]}" x="{x:.0f}" y="{y:.0f}" width="{size}" height="{size}"/>'
    )
    if kind not in MARKED:
        return square
    inner = f"M{x + 4:.0f} {y + 4:.0f}l6 6m0 -6l-6 6"
    return f'{square}<path class="mark" d="{inner}"/>'
