"""The causal flag: what it does, where its diagonal runs, and how it acts with a mask."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from ..._golden import golden
from ...problems.inputs import Inputs
from .agreement import Judge, Seen
from .box import Box, Observation, Refusal
from .convention import MaskUse
from .drawing import masked, prefix_keep, random_keep
from .signature import Parameter

# Where nothing tells them apart, the specification's own is taken.
_ALIGNMENTS: Final = ("bottom-right", "top-left")
_OFFSETS: Final = (0, -1, 1)
_COMBINATIONS: Final = ("both", "mask-only", "causal-only", "either")
_ONE_QUERY: Final = {"query_length": 1, "key_length": 6}
LONG_KEYS: Final = {"query_length": 4, "key_length": 6}
LONG_QUERIES: Final = {"query_length": 6, "key_length": 4}
# A flag that was turned off for plain calls is turned on by its other value.
_FLIPPED: Final = {"False": "True", "True": "False"}
_SQUARE: Final = {"query_length": 5, "key_length": 5}


@dataclass(frozen=True, kw_only=True)
class Causality:
    """What the flag does.

    ``gives`` is its value that is causal, as source. ``readings`` are the points that fit, several
    where no lengths tell them apart. ``idle`` says that answers are those without the flag.
    """

    parameter: Parameter
    gives: str
    readings: tuple[golden.Semantics, ...]
    why: str = ""
    evidence: str = ""
    idle: bool = False

    @property
    def works(self) -> bool:
        """Whether the flag makes attention causal in a known way."""
        return bool(self.readings)

    @property
    def alignment(self) -> str:
        """The alignment of the first reading."""
        return self.readings[0].causal_alignment


def find_causality(
    box: Box, parameter: Parameter, points: Sequence[golden.Semantics], judge: Judge
) -> Causality:
    """Probe one flag, with more keys than queries and the reverse where both are taken.

    ``points`` are what hiding a key may mean for this thing, the likeliest first.
    """
    gives = _FLIPPED.get(dict(box.convention.options).get(parameter.name, ""), "True")
    flagged = box.under(causal=parameter.name, causal_gives=gives)
    answers = [_ask(flagged, sizes) for sizes in (LONG_KEYS, LONG_QUERIES)]
    observed = [one for one in answers if isinstance(one, Observation)]
    if not observed:
        answers = [_ask(flagged, _SQUARE)]
        observed = [one for one in answers if isinstance(one, Observation)]
    if not observed:
        refusal = answers[0]
        why = refusal.why if isinstance(refusal, Refusal) else "gives an answer of another shape"
        return Causality(
            parameter=parameter, gives=gives, readings=(), why=f"with it alone it {why}"
        )
    plain = [Seen(one.inputs.replace(causal=False), one.output) for one in observed]
    if judge.fits(points[0], plain):
        return Causality(
            parameter=parameter, gives=gives, readings=(), why="it changes nothing", idle=True
        )
    fits: list[golden.Semantics] = []
    for point in points:
        fits = fits or [one for one in _points(point) if _fits(one, observed, judge)]
    if not fits:
        return Causality(
            parameter=parameter,
            gives=gives,
            readings=(),
            why="it hides keys in no way that is known",
        )
    lengths = ", ".join(
        f"{one.inputs.geometry.query_length} x {one.inputs.geometry.key_length}" for one in observed
    )
    return Causality(
        parameter=parameter,
        gives=gives,
        readings=tuple(fits),
        evidence=f"{parameter.name}={gives} on queries x keys of {lengths}",
    )


def _points(point: golden.Semantics) -> list[golden.Semantics]:
    return [
        point.replace(causal_alignment=alignment, causal_offset=offset)
        for offset in _OFFSETS
        for alignment in _ALIGNMENTS
    ]


def _ask(box: Box, sizes: dict[str, int]) -> Observation | Refusal:
    inputs = box.draw(sizes, seed=0).replace(causal=True)
    answer = box.ask(inputs)
    if isinstance(answer, Observation) and tuple(answer.output.shape) != inputs.output_shape:
        return Refusal("shape", f"returned the shape {list(answer.output.shape)}")
    return answer


def _fits(point: golden.Semantics, observed: Sequence[Observation], judge: Judge) -> bool:
    return all(
        judge.fits(point, [Seen(one.inputs, one.output, rows_with_keys(one.inputs, point))])
        for one in observed
    )


def rows_with_keys(inputs: Inputs, point: golden.Semantics) -> Any:
    """The rows in which every head has a key, broadcastable to the answer."""
    some = inputs.allowed(point).any(dim=-1)
    return some.all(dim=1).unsqueeze(-1) if inputs.is_layer else some.unsqueeze(-1)


def find_combination(box: Box, use: MaskUse, point: golden.Semantics, judge: Judge) -> str | None:
    """How mask and causality act together: ``both``, … or ``refused``; None when unknown."""
    both = box.under(masks=(use,))
    inputs = box.draw(LONG_KEYS, seed=0)
    make = prefix_keep if use.form == "lengths" else random_keep
    keep = make(use.shape, inputs.geometry, seed=3)
    keep[..., 0] = True  # a key that causality shows to every query of top-left, too
    inputs = masked(inputs, use.form, use.shape, keep).replace(causal=True)
    answer = both.ask(inputs)
    if isinstance(answer, Refusal):
        return "refused"
    for combination in _COMBINATIONS:
        reading = point.replace(causal_combination=combination)
        seen = Seen(inputs, answer.output, rows_with_keys(inputs, reading))
        if judge.fits(reading, [seen]):
            return combination
    return None


def find_single_query(box: Box, point: golden.Semantics, judge: Judge) -> golden.Semantics | None:
    """The point at which a single query is never causal, where that alone explains the answer.

    Only an alignment at the first key can tell, with more keys than the one.
    """
    answer = _ask(box, _ONE_QUERY)
    if isinstance(answer, Refusal) or answer.inputs.geometry.query_length != 1:
        return None
    seen = Seen(answer.inputs, answer.output, rows_with_keys(answer.inputs, point))
    free = point.replace(one_query_causal=False)
    whole = Seen(answer.inputs, answer.output)
    return free if judge.fits(free, [whole]) and not judge.fits(point, [seen]) else None
