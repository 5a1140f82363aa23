"""Bars and lines as SVG, with words instead of colours alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from conformance.tools.pictures import framed, text

STYLE: Final = """
.bar0 { fill: #3574b0; } .bar1 { fill: #e8833a; } .bar2 { fill: #5f9e6e; } .bar3 { fill: #9a6fb0; }
.bar4 { fill: #b3a03c; }
.line0 { stroke: #3574b0; } .line1 { stroke: #e8833a; } .line2 { stroke: #5f9e6e; }
.line3 { stroke: #9a6fb0; } .curve { fill: none; stroke-width: 1.6; }
.grid { stroke: #d9e2ec; } .limit { stroke: #c0392b; stroke-width: 1.5; stroke-dasharray: 4 3; }
@media (prefers-color-scheme: dark) { .grid { stroke: #323f4b; } .limit { stroke: #ff7b6b; } }
"""
ROW: Final = 15
PLOT: Final = 300
LABEL: Final = 160


def bars(
    title: str,
    rows: Mapping[str, Mapping[str, float]],
    *,
    limit: float | None,
    most: float,
    note: str,
    form: str = ".3g",
) -> str:
    """Horizontal bars, a group a row; a dashed line at the limit, where there is one."""
    names = list(dict.fromkeys(name for group in rows.values() for name in group))
    parts = [text(14, 22, title, "title")]
    y = 36
    for label, group in rows.items():
        parts.append(text(LABEL - 6, y + 11, label, anchor="end"))
        for name, value in group.items():
            length = PLOT * value / most
            kind = f"bar{names.index(name)}"
            parts.append(
                f'<rect class="{kind}" x="{LABEL}" y="{y}" width="{length:.1f}" height="11"/>'
            )
            aside = LABEL + (length if limit is None else PLOT) + 5
            parts.append(text(aside, y + 10, f"{name} {value:{form}}", "small"))
            y += ROW
        y += 7
    if limit is not None:
        x = LABEL + PLOT * limit / most
        parts.append(f'<line class="limit" x1="{x:.0f}" y1="32" x2="{x:.0f}" y2="{y}"/>')
        parts.append(text(x, y + 12, f"{limit:g}", "small", "middle"))
    parts.append(text(14, y + 28, note, "small"))
    return framed(title, note, (LABEL + PLOT + 150, y + 40), parts, STYLE)


def lines(
    title: str, curves: Mapping[str, Sequence[float]], *, across: str, note: str, width: int = 520
) -> str:
    """Curves over 0, 1, 2 … whose values lie between -1 and 1, each named at its end."""
    left, top, height = 40, 40, 150
    count = max(map(len, curves.values()))
    step = (width - 14) / (count - 1)
    parts = [text(14, 22, title, "title")]
    for value in (-1, 0, 1):
        y = top + height * (1 - value) / 2
        parts.append(
            f'<line class="grid" x1="{left}" y1="{y:.0f}" x2="{left + width}" y2="{y:.0f}"/>'
        )
        parts.append(text(left - 6, y + 4, str(value), "small", "end"))
    parts += [
        text(left + step * place, top + height + 16, str(place), "small", "middle")
        for place in range(0, count, 10)
    ]
    for number, values in enumerate(curves.values()):
        points = " ".join(
            f"{left + step * place:.1f},{top + height * (1 - value) / 2:.1f}"
            for place, value in enumerate(values)
        )
        parts.append(f'<polyline class="curve line{number}" points="{points}"/>')
    for number, name in enumerate(curves):
        x, y = left + 120 * number, top + height + 34
        parts.append(
            f'<line class="curve line{number}" x1="{x}" y1="{y - 4}" x2="{x + 20}" y2="{y - 4}"/>'
        )
        parts.append(text(x + 26, y, name))
    parts.append(text(left + width, top + height + 16, across, "small", "end"))
    parts.append(text(14, top + height + 54, note, "small"))
    return framed(title, note, (left + width + 20, top + height + 66), parts, STYLE)
