"""Causal diagonals, sinusoidal positions, and tokens in another order."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from candidates.masked_attention import masked_attention
from candidates.sinusoidal_positions import SinusoidalPositions
from conformance.base.geometry import FIELDS, Geometry
from conformance.clauses.subject import Subject
from conformance.problems.problem import Problem
from conformance.tools.pictures import Panel, draw

from .plots import lines

POSITIONS, WIDTH, COLUMNS = 60, 32, (6, 7, 8, 9)  # as document 002 plots them
ORDER = (2, 0, 1, 3)  # as document 004 exchanges its tokens: t3, t1, t2, t4
WIDE = 8  # the tokens


def causal_alignments(queries: int = 3, keys: int = 5) -> str:
    """The two causal diagonals for fewer queries than keys, and what telling them apart takes."""
    right = torch.ones(queries, keys).tril(keys - queries).bool()
    left = torch.ones(queries, keys).tril().bool()
    apart = _cells(right, left, {(True, False): "r", (False, True): "c"})
    panels = [
        Panel(title="bottom-right", rows="query", columns="key", cells=_cells(right, right)),
        Panel(title="top-left", rows="query", columns="key", cells=_cells(left, left)),
        Panel(title="where they differ", rows="query", columns="key", cells=apart),
    ]
    note = f"{queries} queries, {keys} keys; with equal lengths the two are one"
    title = "Two causal diagonals"
    return draw(title, f"{note}. bottom-right is required, top-left instead.", panels, note=note)


def _cells(
    one: Tensor, two: Tensor, kinds: dict[tuple[bool, bool], str] | None = None
) -> list[str]:
    known = {(True, True): "b", (False, False): ".", **(kinds or {})}
    return [
        "".join(known[pair] for pair in zip(*row, strict=True))
        for row in zip(one.tolist(), two.tolist(), strict=True)
    ]


def positions() -> str:
    """Columns 6 to 9 of the encoding over 60 positions at width 32, as document 002 plots them."""
    encoding = SinusoidalPositions(WIDTH, dropout=0.0).eval()
    table = encoding(torch.zeros(1, POSITIONS, WIDTH))[0]
    curves = {f"column {column}": table[:, column].tolist() for column in COLUMNS}
    return lines(
        "Sinusoidal positions",
        curves,
        across="position",
        note=f"columns {COLUMNS[0]} to {COLUMNS[-1]} of {WIDTH}, positions 0 to {POSITIONS - 1}",
    )


def tokens_reordered() -> str:
    """Document 004's run: the rows of the answer follow the tokens; with positions they do not."""
    encoding = SinusoidalPositions(WIDE, dropout=0.0).eval()
    rows = [f"t{token + 1}" for token in ORDER]
    panels = [
        Panel(title=title, rows="row", columns="channel", cells=_moving(prepare), labels=rows)
        for title, prepare in (("answers over x", _as_it_is), ("answers over x + P", encoding))
    ]
    note = "the answer for t3, t1, t2, t4 against that for t1, t2, t3, t4 with its rows exchanged"
    return draw("Tokens in another order", note, panels, note=note)


def _as_it_is(tokens: Tensor) -> Tensor:
    return tokens


def _moving(prepare: Callable[[Tensor], Tensor]) -> list[str]:
    """What lies beyond the bounds of both answers: tokens exchanged against rows exchanged."""
    subject, sizes = Subject(masked_attention, "float32"), dict.fromkeys(FIELDS, WIDE)
    lengths = {"batch": 1, "query_length": len(ORDER), "key_length": len(ORDER)}
    heads = {"num_heads": 2, "num_kv_heads": 2, "head_size": 4, "value_head_size": 4}
    problem = Problem(geometry=Geometry(**{**sizes, **lengths, **heads}), dtype="float32", seed=0)
    given = subject.inputs(problem)
    before, after = (
        given.with_tokens(query=tokens, key=tokens, value=tokens)
        for tokens in (prepare(given.query), prepare(given.query[:, list(ORDER)]))
    )
    rows = subject.answer(before).double()[0, list(ORDER)]
    moved = subject.answer(after).double()[0]
    allowed = subject.golden(before).bound[0, list(ORDER)] + subject.golden(after).bound[0]
    far = (rows - moved).abs() > allowed
    return ["".join("m" if each else "s" for each in row) for row in far.tolist()]
