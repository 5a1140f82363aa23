"""Where a declaration contradicts what its candidate does: few probes, and only what is certain."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

from ..._golden import golden
from ...base.geometry import Geometry, Pins
from ...declare.candidate import Candidate
from ...declare.declaration import Declaration
from ...problems.inputs import Inputs
from ...problems.materialise import TORCH_DTYPES, in_dtype
from . import causality
from .agreement import Judge, Seen
from .box import Box, SizeRule
from .causality import LONG_KEYS, LONG_QUERIES, rows_with_keys
from .convention import CORE_LAYOUTS, LAYER_LAYOUTS, Convention, MaskUse
from .drawing import draw_weights, masked, random_keep
from .plain import OTHER_SIZES, SCALES
from .record import SCALE_WORDS, empty_words

JOB: Final = "conformance.tools.identification.contradictions:job"
_SEEDS: Final = (0, 1)
_PLAIN_SIZES: Final[tuple[dict[str, int], ...]] = ({}, OTHER_SIZES)
_POLARITIES: Final = {
    "keep": "declared masks=['keep'] (True attends), but True in it ignores a key",
    "drop": "declared masks=['drop'] (True ignores), but True in it attends",
    "keep_int": "declared masks=['keep_int'] (0 ignores), but 1 in it ignores a key",
}


class _Pinned(SizeRule):
    """The sizes that a declaration pins."""

    def __init__(self, candidate: Candidate) -> None:
        super().__init__()
        object.__setattr__(self, "pins", candidate.declaration.pins)

    def apply(self, geometry: Geometry) -> Geometry:
        """The nearest geometry that obeys the pins."""
        pins: Pins = self.pins  # type: ignore[attr-defined]  # set above
        heads = pins.apply(geometry).num_heads
        return pins.apply(geometry.replace(num_heads=heads, num_kv_heads=heads))


def job(plan: Any, _argument: Any, _tell: Callable[[str, str], None]) -> list[str]:
    """The contradictions of a loaded candidate, in the worker."""
    return contradictions(plan.candidate)


def contradictions(candidate: Candidate) -> list[str]:
    """One sentence for each promise that the candidate certainly breaks by another convention."""
    if candidate.kind == "positions" or not candidate.golden_known:
        return []
    box = declared_box(candidate)
    promised = candidate.declaration
    judge = Judge(
        box.kind,
        promised.dtypes[0],
        declaration=promised,
        always_causal=promised.always_causal,
    )
    observed = _plain_answers(box)
    point, sentences = _plain(observed, judge, promised.semantics)
    if point is None:
        return list(_unasked(promised, observed, judge))
    return [
        *sentences,
        *_masks(box, judge, point),
        *_causal(candidate, box, judge, point),
        *_empty_rows(candidate, box, judge, point),
    ]


def declared_box(candidate: Candidate) -> Box:
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
    convention = Convention(kind=candidate.kind, inputs=declared.inputs, layout=layout, masks=uses)
    return Box(
        prepare=_prepare(candidate),
        convention=convention,
        sizes=_Pinned(candidate),
        weigh=_weigh(candidate),
        dtype=declared.dtypes[0],
    )


def _prepare(candidate: Candidate) -> Callable[[Inputs], Any]:
    def prepare(inputs: Inputs) -> Any:
        if candidate.kind == "core":
            return candidate.function
        forward = candidate.function(inputs.geometry, inputs.weights)
        if hasattr(forward, "eval"):
            forward.eval()
        return forward

    return prepare


def _weigh(candidate: Candidate) -> Callable[[Geometry, str, int], Any]:
    point = candidate.declaration.semantics
    words = {"q": "query", "k": "key", "v": "value", "o": "output"}
    biases = "".join(role for role, word in words.items() if getattr(point, f"{word}_bias"))

    def weigh(geometry: Geometry, dtype: str, seed: int) -> Any:
        if candidate.kind == "core":
            return None
        if candidate.fixed_weights is not None:
            return in_dtype(candidate.fixed_weights, TORCH_DTYPES[dtype])
        return draw_weights(geometry, biases, dtype=dtype, seed=seed)

    return weigh


def _plain_answers(box: Box) -> list[Seen]:
    """The answers to two plain calls; none where one of them is refused."""
    answers = [box.answers(box.draw(sizes, seed=seed)) for seed, sizes in enumerate(_PLAIN_SIZES)]
    seen = [Seen(answer.inputs, answer.output) for answer in answers if answer is not None]
    return seen if len(seen) == len(answers) else []


def _plain(
    seen: list[Seen], judge: Judge, declared: golden.Semantics
) -> tuple[golden.Semantics | None, list[str]]:
    """The point that plain answers follow, with a sentence when its scale is another."""
    if not seen:
        return None, []
    seen = _live(seen, judge, declared)
    if judge.fits(declared, seen):
        return declared, []
    for rule in SCALES:
        point = declared.replace(scale=rule, scale_factor=1.0)
        if point != declared and judge.fits(point, seen):
            said = SCALE_WORDS.get(str(declared.scale), f"{declared.scale}")
            return point, [f"declared scale {said}, but it is {SCALE_WORDS[rule]}"]
    return None, []


def _live(seen: list[Seen], judge: Judge, reading: golden.Semantics) -> list[Seen]:
    """The same, judged where a reading leaves each query a key."""
    rows = [rows_with_keys(judge.read(one.inputs), reading) for one in seen]
    return [Seen(one.inputs, one.output, live) for one, live in zip(seen, rows, strict=True)]


def _unasked(promised: Declaration, seen: list[Seen], judge: Judge) -> Iterator[str]:
    """What the causality that is always promised is instead, where it is another or none."""
    if not promised.always_causal or not seen:
        return
    declared = promised.semantics
    other = "top-left" if promised.causal == "bottom-right" else "bottom-right"
    told = f"declared always_causal=True with causal={promised.causal!r}"
    free = Judge(promised.kind, promised.dtypes[0], declaration=promised)
    reading = declared.replace(causal_alignment=other)
    if judge.fits(reading, _live(seen, judge, reading)):
        yield f"{told}, but the diagonal is {other}"
    elif free.fits(declared, seen):
        yield f"{told}, but plain answers are those without causality"


def _masks(box: Box, judge: Judge, point: golden.Semantics) -> Iterator[str]:
    """Masks of two values whose polarity is the other one."""
    firsts = {use.form: use for use in reversed(box.convention.masks) if use.form in _POLARITIES}
    other = "drop" if point.mask_polarity == "keep" else "keep"
    for form, use in firsts.items():
        seen = []
        for seed in _SEEDS:
            inputs = box.draw(seed=seed)
            keep = random_keep(use.shape, inputs.geometry, seed=seed)
            answer = box.answers(masked(inputs, use.form, use.shape, keep))
            if answer is not None and keep.shape[-1] > 1:
                seen.append(Seen(answer.inputs, answer.output))
        if not seen or judge.fits(point, seen):
            continue
        if judge.fits(point.replace(mask_polarity=other), seen):
            yield _POLARITIES[form]


def _causal(candidate: Candidate, box: Box, judge: Judge, point: golden.Semantics) -> Iterator[str]:
    declared = candidate.declaration.causal
    always = candidate.declaration.always_causal
    if declared is None or always or candidate.declaration.inputs == "self":
        return
    called = box.under(causal="causal")
    answers = [
        called.answers(box.draw(sizes).replace(causal=True)) for sizes in (LONG_KEYS, LONG_QUERIES)
    ]
    observed = [one for one in answers if one is not None]

    def fits(reading: golden.Semantics) -> bool:
        seen = [
            Seen(one.inputs, one.output, rows_with_keys(one.inputs, reading)) for one in observed
        ]
        return judge.fits(reading, seen)

    if len(observed) < len(answers) or fits(point):
        return
    other = "top-left" if declared == "bottom-right" else "bottom-right"
    if fits(point.replace(causal_alignment=other)):
        yield f"declared causal={declared!r}, but the diagonal is {other}"
    elif judge.fits(
        point, [Seen(one.inputs.replace(causal=False), one.output) for one in observed]
    ):
        yield f"declared causal={declared!r}, but with 4 queries on 6 keys the flag changes nothing"


def _empty_rows(
    candidate: Candidate, box: Box, judge: Judge, point: golden.Semantics
) -> Iterator[str]:
    declared = candidate.declaration.empty_rows
    if declared == "any":
        return
    firsts = {use.form: use for use in reversed(box.convention.masks)}
    for form, use in firsts.items():
        rules = causality.by_mask(box, use, point, judge)
        if declared in rules or rules[0] not in causality.RULES:
            continue
        yield (
            f"declared empty_rows={declared!r}, but a query that {form} leaves no key returns "
            f"{empty_words(rules[:1])}"
        )
