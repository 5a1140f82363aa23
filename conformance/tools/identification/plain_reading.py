"""What is computed without any mask: scale, axis of the softmax, heads, biases, causality."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from ..._golden import golden
from .agreement import Judge, Sample, fitting
from .caller import Caller, Observation, Refusal

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
class PlainReading:
    """The reading that fits every plain probe.

    ``always`` is the alignment of a causality that no flag turns on. ``others`` are further points
    that fit every probe; ``tried`` counts the points compared. ``cap`` is that of logits
    which are always capped.
    """

    point: golden.Semantics
    always: str | None
    margin: float
    tried: int
    others: tuple[golden.Semantics, ...] = ()
    fitted: bool = False
    cap: float | None = None


def observe(caller: Caller, dtype: str = "float32") -> list[Observation] | Refusal:
    """Two probes of different sizes where it allows them."""
    observed = []
    for seed in SEEDS:
        sizes = OTHER_SIZES if seed else {}
        answer = caller.call(caller.draw(sizes, seed=seed, dtype=dtype))
        if isinstance(answer, Refusal):
            return answer
        observed.append(answer)
    return observed


def read_plain(
    caller: Caller, observed: Sequence[Observation], judge: Judge
) -> PlainReading | None:
    """The simplest point within bound of every probe; None when there is none."""
    tried = 0
    for always in (None, "bottom-right", "top-left"):
        samples = [read_as(observation, always) for observation in observed]
        for simple in _by_deviations(caller):
            points = [with_alignment(point, always) for point in simple]
            tried += len(points)
            if fits := fitting(judge, points, samples):
                return PlainReading(
                    point=fits[0],
                    always=always,
                    margin=max(judge.margin(fits[0], sample) for sample in samples),
                    tried=tried,
                    others=tuple(fits[1:]),
                )
    return _with_fitted_scale(
        [read_as(observation, None) for observation in observed], judge, tried
    )


def read_as(observation: Observation, always: str | None) -> Sample:
    """An answer as a sample, of a causal problem where something is always causal."""
    return Sample(observation.inputs.replace(causal=always is not None), observation.output)


def with_alignment(point: golden.Semantics, always: str | None) -> golden.Semantics:
    """A point with the alignment of a causality that is always there."""
    return point if always is None else point.replace(causal_alignment=always)


def _by_deviations(caller: Caller) -> Iterator[list[golden.Semantics]]:
    """The points by how many fields they change: none, one, two, three."""
    fields = _fields(caller)
    for count in range(_MOST_DEVIATIONS + 1):
        yield [
            golden.STANDARD.replace(**dict(zip(names, values, strict=True)))
            for names in itertools.combinations(fields, count)
            for values in itertools.product(*(fields[name] for name in names))
        ]


def _fields(caller: Caller) -> dict[str, Sequence[Any]]:
    """What may deviate, without the specification's own values."""
    fields: dict[str, Sequence[Any]] = {"scale": SCALES[1:], "softmax_axis": _AXES[1:]}
    sizes = caller.draw().geometry
    if sizes.num_kv_heads != sizes.num_heads:
        fields["group_order"] = ("tile",)
    if caller.kind == "layer":
        fields["head_split"] = _SPLITS[1:]
        fields["head_merge"] = _MERGES[1:]
        for role, name in _BIASES.items():
            if role in caller.biases:
                fields[name] = (False,)
    return fields


def _with_fitted_scale(samples: Sequence[Sample], judge: Judge, tried: int) -> PlainReading | None:
    """The reading with a scale, or a factor on it, fitted on one probe, that fits all of them."""

    def distance(scale: float) -> float:
        return judge.distance(golden.STANDARD.replace(scale=scale), samples[:1])

    best = nearest_number(_GRID, distance)
    sizes = samples[0].inputs.geometry
    first: float = golden.scale_value(
        golden.STANDARD,
        head_size=sizes.head_size,
        value_head_size=sizes.value_head_size,
        num_heads=sizes.num_heads,
    )
    points = [golden.STANDARD.replace(scale=number) for number in round_numbers(best)]
    factors = round_numbers(best / first)
    points += [golden.STANDARD.replace(scale_factor=number) for number in factors]
    for point in points:
        if judge.fits(point, samples):
            margin = max(judge.margin(point, sample) for sample in samples)
            return PlainReading(point=point, always=None, margin=margin, tried=tried, fitted=True)
    return None


def round_numbers(fitted: float) -> list[float]:
    """The numbers that people write near a fitted number, and at last that number itself."""
    roots = [math.sqrt(count) for count in range(2, _MOST_ROOTS)]
    inverse = [1.0 / count for count in range(2, _MOST_ROOTS)]
    rounded = [float(f"{fitted:.{digits}g}") for digits in range(1, _DIGITS)]
    candidates = [*roots, *inverse, *(1.0 / root for root in roots)]
    nearest = sorted(candidates, key=lambda number: abs(number - fitted))[:2]
    return [*rounded, *nearest, fitted]


def nearest_number(grid: Sequence[float], distance: Callable[[float], float]) -> float:
    """The number of a logarithmic grid, then between its points, with the least distance."""
    best = min(grid, key=distance)
    width = grid[1] / grid[0]
    for _ in range(_REFINEMENTS):
        width = math.sqrt(width)
        best = min((best, best * width, best / width), key=distance)
    return best
