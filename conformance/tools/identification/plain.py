"""What is computed without any mask: scale, axis of the softmax, heads, biases, causality."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from ..._golden import golden
from .agreement import Judge, Seen, fitting
from .box import Box, Observation, Refusal

SCALES: Final = (
    "inverse-sqrt-head-size",
    "none",
    "inverse-head-size",
    "sqrt-head-size",
    "inverse-sqrt-model-width",
    "inverse-sqrt-num-heads",
    "inverse-sqrt-value-head-size",
)
_AXES: Final = ("key", "query", "head", "batch", "none")
_SPLITS: Final = ("blocks", "interleaved", "reinterpret")
_MERGES: Final = ("blocks", "interleaved", "reinterpret", "tokens")
_BIASES: Final = {"q": "query_bias", "v": "value_bias", "o": "output_bias"}
_MOST_DEVIATIONS: Final = 3
# Factors on the scale that are looked for: a logarithmic grid, then ever finer around the best.
_GRID: Final = tuple(10.0 ** (step / 8.0) for step in range(-24, 17))
_REFINEMENTS: Final = 40
# Fitted numbers are taken for roots and inverses of counts up to this, or for so few digits.
_MOST_ROOTS: Final = 1025
_DIGITS: Final = 5
SEEDS: Final = (0, 1)
OTHER_SIZES: Final[dict[str, int]] = {
    "head_size": 8,
    "num_heads": 2,
    "num_kv_heads": 2,
    "batch": 3,
}


@dataclass(frozen=True, kw_only=True)
class Plain:
    """The reading that fits every plain probe.

    ``always`` is the alignment of a causality that no flag turns on. ``others`` are the points that
    no probe of these sizes can tell from it; ``tried`` counts the rivals. ``cap`` is that of logits
    which are always capped.
    """

    point: golden.Semantics
    always: str | None
    others: tuple[golden.Semantics, ...]
    margin: float
    tried: int
    fitted: bool = False
    cap: float | None = None


def observe(box: Box, dtype: str = "float32") -> list[Observation] | Refusal:
    """Two probes of different sizes where it allows them."""
    observed = []
    for seed in SEEDS:
        sizes = OTHER_SIZES if seed else {}
        answer = box.ask(box.draw(sizes, seed=seed, dtype=dtype))
        if isinstance(answer, Refusal):
            return answer
        observed.append(answer)
    return observed


def plain(box: Box, observed: Sequence[Observation], judge: Judge) -> Plain | None:
    """The simplest point within bound of every probe; None when there is none."""
    tried = 0
    for always in (None, "bottom-right", "top-left"):
        seen = [read_as(one, always) for one in observed]
        for simple in _by_deviations(box):
            points = [with_alignment(point, always) for point in simple]
            tried += len(points)
            found = fitting(judge, points, seen)
            if found:
                return _chosen(found, always, seen, judge, tried)
    return _with_fitted_scale(box, [read_as(one, None) for one in observed], judge, tried)


def read_as(one: Observation, always: str | None) -> Seen:
    """An answer, read as a causal one where something is always causal."""
    return Seen(one.inputs.replace(causal=always is not None), one.output)


def with_alignment(point: golden.Semantics, always: str | None) -> golden.Semantics:
    """A point with the alignment of a causality that is always there."""
    return point if always is None else point.replace(causal_alignment=always)


def _chosen(
    found: Sequence[golden.Semantics],
    always: str | None,
    seen: Sequence[Seen],
    judge: Judge,
    tried: int,
) -> Plain:
    first = found[0]
    margin = max(judge.margin(first, one) for one in seen)
    return Plain(point=first, always=always, others=tuple(found[1:]), margin=margin, tried=tried)


def _by_deviations(box: Box) -> Iterator[list[golden.Semantics]]:
    """The points by how many fields they change: none, one, two, three."""
    fields = _fields(box)
    for count in range(_MOST_DEVIATIONS + 1):
        yield [
            golden.STANDARD.replace(**dict(zip(names, values, strict=True)))
            for names in itertools.combinations(fields, count)
            for values in itertools.product(*(fields[name] for name in names))
        ]


def _fields(box: Box) -> dict[str, Sequence[Any]]:
    """What may deviate, without the specification's own values."""
    fields: dict[str, Sequence[Any]] = {"scale": SCALES[1:], "softmax_axis": _AXES[1:]}
    sizes = box.draw().geometry
    if sizes.num_kv_heads != sizes.num_heads:
        fields["group_order"] = ("tile",)
    if box.kind == "layer":
        fields["head_split"] = _SPLITS[1:]
        fields["head_merge"] = _MERGES[1:]
        for role, name in _BIASES.items():
            if role in box.biases:
                fields[name] = (False,)
    return fields


def _with_fitted_scale(box: Box, seen: Sequence[Seen], judge: Judge, tried: int) -> Plain | None:
    """A number, or a factor on the rule, that was fitted on one probe and holds on the others."""
    del box
    best = _best_scale(seen[0], judge)
    first: float = golden.scale_value(golden.STANDARD, **_head_sizes(seen[0]))
    numbers = [golden.STANDARD.replace(scale=number) for number in round_numbers(best)]
    factors = [
        golden.STANDARD.replace(scale_factor=number) for number in round_numbers(best / first)
    ]
    for point in (*numbers, *factors):
        if judge.fits(point, seen):
            margin = max(judge.margin(point, one) for one in seen)
            return Plain(
                point=point, always=None, others=(), margin=margin, tried=tried, fitted=True
            )
    return None


def round_numbers(fitted: float) -> list[float]:
    """Numbers that people write which may be meant by a fitted one, and at last that itself."""
    roots = [math.sqrt(count) for count in range(2, _MOST_ROOTS)]
    inverse = [1.0 / count for count in range(2, _MOST_ROOTS)]
    meant = [float(f"{fitted:.{digits}g}") for digits in range(1, _DIGITS)]
    known = [*roots, *inverse, *(1.0 / root for root in roots)]
    nearest = sorted(known, key=lambda number: abs(number - fitted))[:2]
    return [*meant, *nearest, fitted]


def _best_scale(one: Seen, judge: Judge) -> float:
    """The scale whose answer comes nearest."""

    def apart(scale: float) -> float:
        return judge.distance(golden.STANDARD.replace(scale=scale), [one])

    return nearest_number(_GRID, apart)


def nearest_number(grid: Sequence[float], apart: Callable[[float], float]) -> float:
    """The number of a logarithmic grid, then between its points, that is least apart."""
    best = min(grid, key=apart)
    width = grid[1] / grid[0]
    for _ in range(_REFINEMENTS):
        width = math.sqrt(width)
        best = min((best, best * width, best / width), key=apart)
    return best


def _head_sizes(one: Seen) -> dict[str, int]:
    sizes = one.inputs.geometry
    return {
        "head_size": sizes.head_size,
        "value_head_size": sizes.value_head_size,
        "num_heads": sizes.num_heads,
    }
