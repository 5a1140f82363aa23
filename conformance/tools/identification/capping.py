"""A cap on the logits that no keyword sets, ``c * tanh(logits / c)``: fitted as a scale is."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Final

from ..._golden import golden
from .agreement import Judge, Seen
from .box import Observation
from .plain import SCALES, Plain, nearest_number, read_as, round_numbers, with_alignment

# Caps in use are 20, 30 and 50; beyond the last one ordinary logits show none.
_ALIGNMENTS: Final = ("bottom-right", "top-left")
_GRID: Final = tuple(10.0 ** (step / 4.0) for step in range(-4, 13))


def capped(observed: Sequence[Observation], judge: Judge) -> Plain | None:
    """The reading with a cap that holds on every probe, fitted on the first; None without one."""
    readings = (_fitted(observed, judge, always) for always in (None, *_ALIGNMENTS))
    return next((one for one in readings if one is not None), None)


def _fitted(observed: Sequence[Observation], judge: Judge, always: str | None) -> Plain | None:
    """The scale that comes nearest with any cap, then its cap, as a number that people write."""
    seen = [read_as(one, always) for one in observed]
    points = [with_alignment(golden.STANDARD.replace(scale=rule), always) for rule in SCALES]

    def apart(point: golden.Semantics, cap: float) -> float:
        return judge.distance(point, [_with_cap(seen[0], cap)])

    nearest = min(points, key=lambda point: min(apart(point, cap) for cap in _GRID))
    for cap in round_numbers(nearest_number(_GRID, partial(apart, nearest))):
        read = [_with_cap(one, cap) for one in seen]
        if judge.fits(nearest, read):
            margin = max(judge.margin(nearest, one) for one in read)
            return Plain(
                point=nearest,
                always=always,
                others=(),
                margin=margin,
                tried=len(points),
                fitted=True,
                cap=cap,
            )
    return None


def _with_cap(one: Seen, cap: float) -> Seen:
    return Seen(one.inputs.replace(softcap=cap), one.output, one.rows)
