"""Pictures of a problem of a clause, and of the change that its counterfactual would make.

Two tables are drawn: the keys that queries may see, and the elements of the answer that would move.
They are small tables of cells as SVG, light and dark, with a title and a description as text.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from typing import Final

import torch
from torch import Tensor

from .._golden import golden
from ..clauses.registry import Clause, all_clauses
from ..clauses.subject import Subject
from ..declare.candidate import Candidate
from ..oracle.comparison import CounterfactualDifference, watching_counterfactuals
from ..oracle.oracle import Golden, Oracle, evaluate
from ..problems.edges import edge_problems
from ..problems.inputs import Inputs
from ..problems.problem import Problem
from ..running.shrinking.smallest import examine
from .teeth.mistaken_candidates import correct_candidates

PICTURED: Final = frozenset(
    """
mask.golden mask.padding-is-absence mask.broadcast mask.per-item mask.per-head mask.forms-agree
mask.single-key mask.no-leak mask.empty-row mask.bias mask.bias-counts mask.causal
mask.causal-alignment mask.causal-combined mask.causal-first-key mask.causal-and-mask
equivariance.tokens equivariance.queries equivariance.keys equivariance.batch equivariance.heads
equivariance.batch-independent groups.golden groups.equals-repeated groups.order window.golden
window.edge window.unlimited window.causal window.alignment softcap.before-mask cache.golden
cache.position-offset cache.untouched-tail cache.decode-equals-full numerics.subnormal
""".split()
)


LARGEST: Final = 9  # queries and keys that a picture can show
_DTYPE: Final = "float32"


def picture(slug: str) -> str:
    """The picture of a clause as SVG; equal for equal clause and golden.

    Raises LookupError for a clause of which no problem of a picture's size binds.
    """
    return described(evidence(slug))


@dataclass(frozen=True, kw_only=True, eq=False)
class Evidence:
    """One binding example of a clause, compared with its counterfactual.

    required, counterfactual
        The keys that a query may attend, as required and in the counterfactual, bool
        ``[B, H, Lq, Lk]``; ``counterfactual`` is None if its sizes differ, or if it is no answer of
        the golden.
    moved, judged
        The elements of the answer that the counterfactual moves by more than the bound, and the
        compared elements; bool ``[B, H, rows, channels]``.
    """

    clause: Clause
    problem: Problem
    required: Tensor
    counterfactual: Tensor | None
    moved: Tensor
    judged: Tensor


class RecordingOracle(Oracle):
    """An oracle that records its inputs, and the number of counterfactuals compared before."""

    def __init__(self, subject: Subject, compared: list[CounterfactualDifference]) -> None:
        super().__init__(subject.declaration, subject.dtype)
        self.compared = compared
        self.inputs: list[tuple[int, Inputs]] = []
        self.others: list[tuple[int, Inputs, golden.Semantics]] = []

    def answer(self, inputs: Inputs) -> Golden:
        """The golden answer, which is recorded."""
        self.inputs.append((len(self.compared), inputs))
        return super().answer(inputs)

    def output(self, inputs: Inputs, semantics: golden.Semantics | None = None) -> Tensor:
        """The golden output, recorded with its point of the semantics."""
        point = semantics or self.declaration.semantics
        self.others.append((len(self.compared), inputs, point))
        return super().output(inputs, semantics)


def evidence(slug: str) -> Evidence:
    """The first small edge problem of a clause whose counterfactual moves a part of the answer.

    If every binding problem moves the whole answer, the first problem. Raises LookupError if no
    small problem binds, or none is for a core.
    """
    clause = next(clause for clause in all_clauses() if clause.id == slug)
    whole: Evidence | None = None
    for example in _binding(clause):
        if bool((example.judged & ~example.moved).any()):
            return example
        whole = whole or example
    if whole is None:
        msg = f"no small problem of {slug} binds for a core, so it has no picture"
        raise LookupError(msg)
    return whole


def _binding(clause: Clause) -> Iterator[Evidence]:
    for candidate in correct_candidates():
        if candidate.kind != "core" or clause.not_applicable(candidate):
            continue
        subject = Subject(candidate, _DTYPE)
        for drawn in edge_problems(candidate, clause.space, dtype=_DTYPE):
            problem = clause.problem_for(subject, drawn)
            sizes = problem.geometry
            if max(sizes.query_length, sizes.key_length) <= LARGEST:
                example = _tried(clause, candidate, problem)
                if example is not None:
                    yield example


def _tried(clause: Clause, candidate: Candidate, problem: Problem) -> Evidence | None:
    """The evidence of one example; None if the example does not bind or compares nothing."""
    subject = Subject(candidate, _DTYPE)
    with watching_counterfactuals() as compared:
        oracle = RecordingOracle(subject, compared)
        subject.oracle = oracle
        finding = examine(clause, subject, problem)
    shown = next((n for n, each in enumerate(compared) if bool(each.moved.any())), None)
    calls = [inputs for before, inputs in oracle.inputs if shown is not None and before <= shown]
    others = [(inputs, point) for before, inputs, point in oracle.others if before == shown]
    if not finding.binding or shown is None or not calls:
        return None
    required = _allowed(calls[-1], candidate.declaration.semantics)
    other = _allowed(*others[-1]) if others else None
    return Evidence(
        clause=clause,
        problem=problem,
        required=required,
        counterfactual=other if other is not None and other.shape == required.shape else None,
        moved=compared[shown].moved,
        judged=compared[shown].judged,
    )


def _allowed(inputs: Inputs, point: golden.Semantics) -> Tensor:
    """The attended keys by query, bool ``[B, H, Lq, Lk]``."""
    evaluated = evaluate(inputs, point)
    core = evaluated if isinstance(evaluated, golden.Attention) else evaluated.core
    return core.allowed.to(torch.bool)


def described(example: Evidence) -> str:
    """The picture of one item and head of an example, the first that shows both kinds of cells."""
    item, head = _shown(example)
    required = _of(example.required, item, head)
    other = example.counterfactual
    sight = _sight(required, required if other is None else _of(other, item, head))
    motion = _motion(example.moved[item, head], example.judged[item, head])
    count = f"{int(example.moved.sum())} of {int(example.judged.sum())} judged elements move"
    note = f"{_example(example)}; item {item}, head {head}; {count} in all"
    clause = example.clause
    return draw(
        f"What binds {clause.id}",
        f"{clause.sentence} Counterfactual: {clause.counterfactual}. Example: {note}.",
        [
            Panel(title="What a query may see", rows="query", columns="key", cells=sight),
            Panel(
                title="What the counterfactual moves", rows="row", columns="channel", cells=motion
            ),
        ],
        note=note,
    )


def _of(table: Tensor, item: int, head: int) -> Tensor:
    """One item and head of a table, whose batch or heads may be fewer than the answer's."""
    return table[min(item, table.shape[0] - 1), min(head, table.shape[1] - 1)]


def _shown(example: Evidence) -> tuple[int, int]:
    """The item and the head to show: if possible some judged elements move and others stay."""
    items, heads = example.moved.shape[:2]
    places = [(item, head) for item in range(items) for head in range(heads)]

    def kinds(place: tuple[int, int]) -> int:
        moved, judged = example.moved[place], example.judged[place]
        return int(bool(moved.any())) + int(bool((judged & ~moved).any()) and bool(moved.any()))

    return max(places, key=kinds)


def _sight(required: Tensor, counterfactual: Tensor) -> list[str]:
    kinds = {(True, True): "b", (True, False): "r", (False, True): "c", (False, False): "."}
    return [
        "".join(kinds[before, after] for before, after in zip(*row, strict=True))
        for row in zip(required.tolist(), counterfactual.tolist(), strict=True)
    ]


def _motion(moved: Tensor, judged: Tensor) -> list[str]:
    return [
        "".join(
            "-" if not looked else "m" if moves else "s" for moves, looked in zip(*row, strict=True)
        )
        for row in zip(moved.tolist(), judged.tolist(), strict=True)
    ]


def _example(example: Evidence) -> str:
    problem = example.problem
    parts = [f"values {problem.values}", f"seed {problem.seed}"]
    if problem.mask is not None:
        parts.insert(0, f"mask {problem.mask.pattern} as {problem.mask.form}")
    if problem.causal:
        parts.insert(0, "causal")
    if problem.window is not None:
        parts.insert(0, f"window {problem.window}")
    return ", ".join(parts)


CELL: Final = 16
GAP: Final = 34
MARGIN: Final = 14
CHARACTER: Final = 6.3  # the width of a character of the labels, about
TOP: Final = 46  # of a panel's cells: its title and the numbers of its columns

# The look of every kind of cell; the marks tell the kinds apart without colour.
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
    """A table: its title, the meanings of its rows and columns, and a character of KINDS a cell.

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
    """The panels side by side, and below them a legend of the kinds of cells that occur."""
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
    """A picture of some elements on a card, light or dark as the reader's display is set."""
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
