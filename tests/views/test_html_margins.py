from __future__ import annotations

import math
from typing import Any

import pytest
from records import result
from view_records import candidate, record

from conformance.views.html_margins import SHAPES, axis, plots, shapes_of
from conformance.views.html_words import complete


def run(*margins: float | None, **more: Any) -> dict[str, Any]:
    """A completed record of one candidate with these margins, a clause each."""
    clauses = [result(slug=f"mask.c{n}", margin=margin, **more) for n, margin in enumerate(margins)]
    return complete(record(candidate(clauses)))


def test_the_axis_holds_the_bound_and_every_margin() -> None:
    """Powers of ten from the least to the largest margin, zero and infinity beside them."""
    scale = axis(run(1e-5, 3e4))
    assert (scale.low, scale.high) == (-5, 5)
    places = [scale.at(margin) for margin in (0.0, 1e-5, 1.0, 3e4, math.inf, math.nan)]
    assert places == sorted(places)
    assert len(set(places)) == len(places) - 1
    assert scale.at(1.0) == scale.bound


@pytest.mark.parametrize("margins", [[], [None], [0.0], [math.inf, math.nan], [0.5]])
def test_there_is_always_an_axis(margins: list[float | None]) -> None:
    """Without a positive finite margin the axis is a plain one, with the bound on it."""
    scale = axis(run(*margins))
    assert scale.low < 0 < scale.high
    assert 0 in [power for _, power in scale.ticks]


def test_an_axis_is_never_endless() -> None:
    """Margins of 1e36 stand with infinity instead of pressing all others together."""
    scale = axis(run(1e-30, 1e36))
    assert (scale.low, scale.high) == (-8, 8)
    assert scale.at(1e36) == scale.at(math.inf)
    assert scale.at(1e-30) == scale.at(1e-8)
    assert len(scale.ticks) <= 9


def test_lines_are_sorted_the_worst_first() -> None:
    """NaN and infinity lead; clauses that compare no numbers have no line."""
    report = run(0.5, None, math.inf, 2.0, math.nan)
    (plot,) = plots(report, axis(report), {})
    assert {lane.slug for lane in plot.lanes[:2]} == {"mask.c2", "mask.c4"}
    assert [lane.slug for lane in plot.lanes[2:]] == ["mask.c3", "mask.c0"]
    assert [lane.beyond for lane in plot.lanes] == [True, True, True, False]


def test_dtypes_share_a_line_and_differ_in_shape() -> None:
    """One mark a dtype, each told in words, too."""
    clauses = [result(margin=0.1), result(margin=0.4, dtype="float16")]
    report = complete(record(candidate(clauses)))
    (plot,) = plots(report, axis(report), {(0, 1): "f0-1"})
    (lane,) = plot.lanes
    assert [mark.label for mark in lane.marks] == ["float32 0.1", "float16 0.4"]
    assert len({mark.shape for mark in lane.marks}) == 2
    assert plot.shapes == [(0, "float32"), (1, "float16")]
    assert (lane.worst, lane.anchor) == (0.4, "f0-1")


def test_shapes_repeat_after_the_last() -> None:
    """A fifth dtype or device has the first shape again."""
    clauses = [result(dtype="float32", device=f"cuda:{n}") for n in range(SHAPES + 1)]
    shapes = list(shapes_of(complete(record(candidate(clauses)))).values())
    assert shapes == [*range(SHAPES), 0]


def test_very_many_lines_are_cut_and_counted() -> None:
    """Of many candidates each keeps the clauses nearest to their bound."""
    clauses = [result(slug=f"mask.c{n}", margin=n / 100) for n in range(60)]
    report = complete(record(*(candidate(clauses, f"c{n}") for n in range(40))))
    plotted = plots(report, axis(report), {})
    assert len(plotted) == 40
    assert {len(plot.lanes) for plot in plotted} == {30}
    assert plotted[0].lanes[0].slug == "mask.c59"
    assert plotted[0].left_out == "30 clauses further below the bound left out"
