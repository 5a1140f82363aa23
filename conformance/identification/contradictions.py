"""Few probes for certain contradictions between a declaration and its candidate."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from .._golden import golden
from ..base.geometry import Geometry, Pins
from ..declare.candidate import Candidate
from ..declare.declaration import Declaration
from ..problems.materialise import TORCH_DTYPES, in_dtype
from .agreement import PointJudge, Probed
from .caller import Caller, ProbeAnswer, SizeRule, draw_weights, masked, rows_with_keys
from .causality import LONG_KEYS, LONG_QUERIES, RULES, empty_row_rules
from .convention import CORE_LAYOUTS, LAYER_LAYOUTS, Convention, MaskUse
from .plain_reading import OTHER_SIZES
from .points import SCALES
from .record import SCALE_WORDS, empty_words

_SEEDS: Final = (0, 1)
_PLAIN_SIZES: Final[tuple[dict[str, int], ...]] = ({}, OTHER_SIZES)
_POLARITIES: Final = {
    "keep": "declared masks=['keep'] (True attends), but True in it ignores a key",
    "drop": "declared masks=['drop'] (True ignores), but True in it attends",
    "keep_int": "declared masks=['keep_int'] (0 ignores), but 1 in it ignores a key",
}


@dataclass(frozen=True, kw_only=True)
class _Pinned(SizeRule):
    pins: Pins

    def apply(self, geometry: Geometry) -> Geometry:
        """The nearest geometry that obeys the pins."""
        heads = self.pins.apply(geometry).num_heads
        return self.pins.apply(geometry.replace(num_heads=heads, num_kv_heads=heads))


def job(plan: Any, _argument: Any, _tell: Callable[[str, str], None]) -> list[str]:
    """The contradictions of a loaded candidate, in the worker."""
    return contradictions(plan.candidate)


def contradictions(candidate: Candidate) -> list[str]:
    """Sentences about the promises that the candidate certainly breaks by another convention.

    Of undeclared code nothing is promised, but expected.
    """
    found = _contradictions(candidate)
    if candidate.reading is None:
        return found
    return [sentence.replace("declared", "expected", 1) for sentence in found]


def _contradictions(candidate: Candidate) -> list[str]:
    if candidate.kind == "positions" or not candidate.golden_known:
        return []
    caller = declared_caller(candidate)
    declared = candidate.declaration
    judge = PointJudge(
        caller.kind,
        declared.dtypes[0],
        declaration=declared,
        always_causal=declared.always_causal,
    )
    drawn = (caller.draw(sizes, seed=seed) for seed, sizes in enumerate(_PLAIN_SIZES))
    observed = [answer for answer in map(caller.answer, drawn) if answer is not None]
    if len(observed) < len(_PLAIN_SIZES):
        return []
    point = declared.semantics
    samples = _live(observed, judge, point)
    if judge.fits(point, samples):
        sentences = []
    else:
        scaled = [point.replace(scale=rule, scale_factor=1.0) for rule in SCALES]
        other = next(
            (reading for reading in scaled if reading != point and judge.fits(reading, samples)),
            None,
        )
        if other is None:
            return list(_without_causality(declared, observed, judge))
        words = [
            SCALE_WORDS.get(str(reading.scale), f"{reading.scale}") for reading in (point, other)
        ]
        sentences = [f"declared scale {words[0]}, but it is {words[1]}"]
        point = other
    case = Probed(caller=caller, point=point, judge=judge)
    return [
        *sentences,
        *_masks(case),
        *_causal(declared, case),
        *_empty_rows(declared, case),
    ]


def declared_caller(candidate: Candidate) -> Caller:
    """The candidate called as it declares."""
    declared = candidate.declaration
    is_core = candidate.kind == "core"
    layout = next(
        layout
        for layout in (CORE_LAYOUTS if is_core else LAYER_LAYOUTS)
        if layout.batched == declared.batched and layout.give == "{}"
    )
    uses = tuple(
        MaskUse(form=form, parameter=form, shape=shape, native=shape)
        for form in declared.masks
        for shape in declared.shapes_of(form)
    )
    words = {"q": "query", "k": "key", "v": "value", "o": "output"}
    point = declared.semantics
    biases = "".join(role for role, word in words.items() if getattr(point, f"{word}_bias"))

    def prepare(geometry: Geometry, weights: golden.ProjectionWeights | None) -> Any:
        if is_core:
            return candidate.function
        forward = candidate.function(geometry, weights)
        if hasattr(forward, "eval"):
            forward.eval()
        return forward

    def weigh(geometry: Geometry, dtype: str, seed: int) -> Any:
        if is_core:
            return None
        if candidate.fixed_weights is not None:
            return in_dtype(candidate.fixed_weights, TORCH_DTYPES[dtype])
        return draw_weights(geometry, biases, dtype=dtype, seed=seed)

    return Caller(
        prepare=prepare,
        convention=Convention(
            kind=candidate.kind, inputs=declared.inputs, layout=layout, masks=uses
        ),
        sizes=_Pinned(pins=declared.pins),
        weigh=weigh,
        dtype=declared.dtypes[0],
    )


def _live(
    observed: list[ProbeAnswer], judge: PointJudge, reading: golden.Semantics
) -> list[ProbeAnswer]:
    return [one.compared(rows_with_keys(judge.read(one.inputs), reading)) for one in observed]


def _without_causality(
    declared: Declaration, observed: list[ProbeAnswer], judge: PointJudge
) -> Iterator[str]:
    """The contradictions of ``always_causal``: another alignment, or answers without causality."""
    if not declared.always_causal:
        return
    point, other = declared.semantics, _other_alignment(declared)
    promise = f"declared always_causal=True with causal={declared.causal!r}"
    free = PointJudge(declared.kind, declared.dtypes[0], declaration=declared)
    reading = point.replace(causal_alignment=other)
    if judge.fits(reading, _live(observed, judge, reading)):
        yield f"{promise}, but the diagonal is {other}"
    elif free.fits(point, observed):
        yield f"{promise}, but plain answers are those without causality"


def _other_alignment(declared: Declaration) -> str:
    return "top-left" if declared.causal == "bottom-right" else "bottom-right"


def _masks(case: Probed) -> Iterator[str]:
    firsts = {
        use.form: use for use in reversed(case.caller.convention.masks) if use.form in _POLARITIES
    }
    other = "drop" if case.point.mask_polarity == "keep" else "keep"
    for form, use in firsts.items():
        samples = []
        for seed in _SEEDS:
            inputs = masked(case.caller.draw(seed=seed), use.form, use.shape, seed)
            answer = case.caller.answer(inputs)
            if answer is not None and inputs.keep is not None and inputs.keep.shape[-1] > 1:
                samples.append(answer)
        if not samples or case.fits(*samples):
            continue
        if case.fits(*samples, mask_polarity=other):
            yield _POLARITIES[form]


def _causal(declared: Declaration, case: Probed) -> Iterator[str]:
    if declared.causal is None or declared.always_causal or declared.inputs == "self":
        return
    called = case.caller.under(causal="causal")
    drawn = (called.draw(sizes).replace(causal=True) for sizes in (LONG_KEYS, LONG_QUERIES))
    answers = [called.answer(inputs) for inputs in drawn]
    observed = [answer for answer in answers if answer is not None]

    def fits(reading: golden.Semantics) -> bool:
        return case.judge.fits(reading, [answer.live(reading) for answer in observed])

    if len(observed) < len(answers) or fits(case.point):
        return
    other = _other_alignment(declared)
    promise = f"declared causal={declared.causal!r}"
    if fits(case.point.replace(causal_alignment=other)):
        yield f"{promise}, but the diagonal is {other}"
    elif case.fits(*(answer.read_as(causal=False) for answer in observed)):
        yield f"{promise}, but with 4 queries on 6 keys the flag changes nothing"


def _empty_rows(declared: Declaration, case: Probed) -> Iterator[str]:
    promised = declared.empty_rows
    firsts = {use.form: use for use in reversed(case.caller.convention.masks)}
    for form, use in firsts.items() if promised != "any" else ():
        rules = empty_row_rules(case, use)
        if promised not in rules and rules[0] in RULES:
            yield (
                f"declared empty_rows={promised!r}, but a query that {form} leaves no key returns "
                f"{empty_words(rules[:1])}"
            )
