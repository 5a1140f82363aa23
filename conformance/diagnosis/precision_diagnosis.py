"""Names a mistake of precision: a rounding that nobody declared."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import chain, compress
from operator import not_
from typing import Any, Final

import torch
from torch import Tensor

from .._golden import golden
from ..base.mistake import parts_of
from ..calls.calling import CandidateFailure
from ..clauses.numerics import LONG
from ..clauses.precision import AVERAGED, NEARLY_TIED
from ..clauses.subject import Subject
from ..operators.roundings import ROUNDINGS, Rounding, format_rounding, round_to_tf32
from ..oracle.comparison import GROSS, compare
from ..problems.edges import edge_problems
from ..problems.inputs import Inputs
from ..problems.materialise import TORCH_DTYPES
from ..tolerance import model
from .agreement import BatteryAnswer
from .conditions import MANY_KEYS
from .entries import named_entry
from .mistakes import DeclaredCall
from .mistakes.named_mistake import Edits, answer_stage, read_every_key, run_of_call
from .precision_losses import (
    ALLOW_TF32,
    AS_INPUTS,
    EIGHT_BITS,
    EXPONENTIALS,
    KEPT,
    LOSSES,
    SPOKEN,
    SUMS,
    TEN_BITS,
    Lossy,
    PrecisionLoss,
    losses_of_format,
    relative_exponentials,
)

Observed = Sequence[tuple[Inputs, Tensor]]
# Answers, spread over the battery, on which every loss of precision is tried.
FEW: Final = 12
# Edge problems asked from each space: one per recipe.
PROBED: Final = 2
# Wrong answers that every loss of precision is tried on first, and the part of their errors that
# it must explain: of all together, finally of each.
FIRST_TRIED: Final = 3
HALF: Final = 0.5


def _relative_in_tiles(stages: tuple[str, ...], tile: int) -> Lossy:
    def edits(rounding: Rounding) -> Edits:
        return relative_exponentials(rounding, *stages, tile=tile)

    return edits


# Exponentials as fused kernels round them: relative to the largest logit so far.
TILED: Final[tuple[PrecisionLoss, ...]] = tuple(
    loss
    for size in (16, 32, 64, 128)
    for name, rounding, remedy in (
        ("float16", format_rounding("float16"), AS_INPUTS),
        ("tf32", round_to_tf32, ALLOW_TF32),
        ("bfloat16", format_rounding("bfloat16"), AS_INPUTS),
    )
    for loss in losses_of_format(
        name,
        rounding,
        remedy,
        manner=f" (relative to the largest logit so far, in tiles of {size} keys)",
        stages=[
            (stage, what, _relative_in_tiles(stages, size)) for stage, what, stages in EXPONENTIALS
        ],
    )
)
EVERY: Final = (LOSSES, TILED, EIGHT_BITS, SUMS)
# Both round alike as long as no number leaves float16's range.
SHORT_FORMATS: Final = ("float16", "tf32")
COARSER: Final = {  # from the coarsest on: it holds the fewest numbers
    "float64": ("bfloat16", "float16", "tf32", "float32"),
    "float32": ("bfloat16", "float16", "tf32"),
    "float16": ("float8_e5m2", "float8_e4m3fn", "bfloat16"),
    "bfloat16": ("float8_e5m2", "float8_e4m3fn"),
}
# The fewest missing bits, in all wrong answers, that are reported.
FEWEST_LOST: Final = 3
EVERYWHERE: Final = torch.tensor([0.0, 0.5], dtype=torch.float64)  # mantissas of 0 and 2^n
# Dtypes that TensorFloat-32 cuts.
ROUNDED_SHORT: Final = ("float32", "float64")


def spread_over(observed: Sequence[BatteryAnswer]) -> list[tuple[Inputs, Tensor]]:
    """Choose a few of all answers and a few of the wrong ones, which may be rare.

    Gross errors that only calls with options show must be explained as well.
    """
    wrong = [answer for answer in observed if answer.margin > 1.0]
    gross = [(answer.inputs, answer.output) for answer in wrong if answer.margin > GROSS]
    every = (plain(observed), plain(wrong) or gross)
    return list(dict(pair for some in every for pair in some[:: len(some) // FEW + 1]).items())


def plain(answers: Sequence[BatteryAnswer]) -> list[tuple[Inputs, Tensor]]:
    """Select answers on which losses of precision are acted out: generic values, short calls."""
    inputs = ((answer.inputs, answer.output) for answer in answers)
    return [pair for pair in inputs if pair[0].generic and not _is_long_with_options(pair[0])]


def _is_long_with_options(inputs: Inputs) -> bool:
    """Whether acting a loss out would take long, though shorter calls show it as well."""
    given = (inputs.scale, inputs.softcap, inputs.window, inputs.sinks)
    with_options = inputs.causal or inputs.past > 0 or any(one is not None for one in given)
    return with_options and inputs.geometry.key_length > MANY_KEYS


def precision_entry(subject: Subject, observed: Observed) -> dict[str, Any] | None:
    """Return the loss of precision that, acted out, gives the candidate's answers, or None."""
    if any(_too_far(subject, *pair) for pair in observed):
        return None
    wrong = [pair for pair in observed if not agrees(subject, *pair)]
    if not _may_be_of_precision(subject, observed, wrong):
        return None  # problems that bring out losses of precision are large
    others = list(probed(subject))
    every = [*observed, *others]
    wrong += [pair for pair in others if not agrees(subject, *pair)]
    if not wrong or any(output.shape != inputs.output_shape for inputs, output in wrong):
        return None
    small = list(_small(subject, others))
    return (
        _coarse_entry(subject, [*every, *small])
        or _epsilon_entry(subject, wrong)
        or _loss_entry(subject, [*wrong, *small])
        or _bits_entry(subject, wrong)
    )


def _may_be_of_precision(subject: Subject, observed: Observed, wrong: Observed) -> bool:
    """Whether the answers (and the ``wrong`` ones among them) permit a loss of precision.

    Each loss must explain these answers as well as later ones.
    """
    few = wrong[:FIRST_TRIED]
    if len(few) < FIRST_TRIED:
        return True
    telling = _telling(subject, observed)
    if telling.numel() < model.FEWEST_FITTED or _coarsest(subject, telling):
        return True
    if _bits_entry(subject, wrong) is not None:
        return True
    speaking = [_Lossy(subject, *pair) for pair in few]
    if any(_unexplained(speaking, loss.edits, HALF) <= HALF for loss in chain(*EVERY)):
        return True
    elements = sum(output.numel() for _, output in wrong)
    return elements < model.FEWEST_FITTED or _epsilon_entry(subject, wrong) is not None


def _too_far(subject: Subject, inputs: Inputs, output: Tensor) -> bool:
    known = subject.golden(inputs)
    if output.shape != known.output.shape:
        return True
    judged = known.judged.expand(known.output.shape)
    expected, error = known.output[judged].abs(), (output - known.output)[judged].abs()
    return bool(error.numel()) and not bool(error.max() <= model.COARSEST_ROUNDING * expected.max())


def _loss_entry(subject: Subject, wrong: Observed) -> dict[str, Any] | None:
    # Without a finite row, where the format overflowed, an answer says nothing.
    speaking = [one for one in (_Lossy(subject, *pair) for pair in wrong) if one.total > 0.0]
    if not speaking:
        return None
    return _entry_among_all(speaking, subject.dtype) or _entry_of_two(speaking, subject.dtype)


def _entry_among_all(wrong: Sequence[_Lossy], dtype: str) -> dict[str, Any] | None:
    return next(filter(None, (_entry_of(wrong, losses, dtype) for losses in EVERY)), None)


def _entry_of_two(wrong: Sequence[_Lossy], dtype: str) -> dict[str, Any] | None:
    soonest = min(wrong, key=lambda one: one.keys)  # one of the two losses explains it
    every = chain(*EVERY) if soonest.keys <= MANY_KEYS else ()  # all take too long on many
    some = filter(partial(_explains_half, soonest), every)
    for explained in dict.fromkeys(
        tuple(_explains_half(one, loss) for one in wrong) for loss in some
    ):
        groups = [list(compress(wrong, explained)), list(compress(wrong, map(not_, explained)))]
        both = [entry for group in groups if group and (entry := _entry_among_all(group, dtype))]
        if len(both) == len(groups):
            signs = {"name": "+", "text": "; ", "fix": "; "}
            each = {key: dict.fromkeys(one[key] for one in both) for key in signs}
            made = {key: sign.join(each[key]) for key, sign in signs.items()}
            return {**made, "confidence": min(one["confidence"] for one in both)}
    return None


def _explains_half(wrong: _Lossy, loss: PrecisionLoss) -> bool:
    return _unexplained([wrong], loss.edits, HALF) <= HALF


def loses_alike(subject: Subject, entry: dict[str, Any], observed: Observed) -> bool:
    """Whether answers are wrong and the loss of a known entry makes all the wrong ones.

    The loss was identified on other answers: these may be few and small.
    """
    wrong = [pair for pair in observed if not agrees(subject, *pair)]
    if not wrong or any(_too_far(subject, *pair) for pair in wrong):
        return False
    telling = _telling(subject, wrong)
    if telling.numel() and entry["name"] == _computed_in(_coarsest(subject, telling)):
        return True
    names = parts_of(entry["name"])  # of two losses, each makes a part of the wrong answers
    every = [one.edits for one in chain(*EVERY) if one.name_in(subject.dtype) in names]
    acted = [_add_epsilon(entry["epsilon"])] if "epsilon" in entry else every
    each = (_Lossy(subject, *pair) for pair in wrong)
    return all(any(_unexplained([one], loss, HALF) <= HALF for loss in acted) for one in each)


def _entry_of(
    wrong: Sequence[_Lossy], losses: Sequence[PrecisionLoss], dtype: str
) -> dict[str, Any] | None:
    """Return the simplest of the losses that explains the answers, or None.

    Each answer is tested alone as well: a sum of squares may hide all but the largest error.
    """
    few = wrong[:FIRST_TRIED]
    # Each answer must be explained: a loss that fails on a few is not tried on the rest.
    promising = [loss for loss in losses if _unexplained(few, loss.edits, HALF) <= HALF]
    if not promising:
        return None
    # A loss that leaves more is neither the best nor compared with the best below.
    most = max(model.LARGEST_LEFT_BY_LOSS / model.CLEARLY_LESS, model.MUCH_CLOSER)
    # The largest errors first: a loss that does not explain them is soon given up.
    largest = sorted(wrong, key=lambda one: -one.total)
    left = [(_unexplained(largest, loss.edits, most), loss) for loss in promising]
    least = min(part for part, _ in left)
    if least > model.LARGEST_LEFT_BY_LOSS:
        return None
    equals = [
        loss
        for part, loss in left
        if part * model.CLEARLY_LESS <= least and all(_explains_half(one, loss) for one in wrong)
    ]
    if not equals:
        return None
    best = equals[0]
    # Float16 and tf32 round ties apart: one element may leave a hundredth and proves neither.
    formats = {
        loss.number_format
        for part, loss in left
        if loss.stage == best.stage and part <= max(least / model.CLEARLY_LESS, model.MUCH_CLOSER)
    }
    either = best.number_format in SHORT_FORMATS and formats.issuperset(SHORT_FORMATS)
    text = best.what_in_ten_bits() if either else best.text
    doubt = len({loss.name for loss in equals} | {f"{best.stage}-{name}" for name in formats})
    return named_entry(
        best.name_in(dtype), text, KEPT if either else best.fix, (1.0 - least) / doubt
    )


def _epsilon_entry(subject: Subject, wrong: Observed) -> dict[str, Any] | None:
    speaking, epsilon = [_Lossy(subject, *pair) for pair in wrong], 0.0
    for _ in range(model.NEWTON_STEPS):
        move = _newton_step(speaking, epsilon)
        if not math.isfinite(move):
            return None
        epsilon += max(-model.LARGEST_STEP, min(move, model.LARGEST_STEP))
    if epsilon <= 0.0 or not _one_number_explains(speaking, _add_epsilon(epsilon)):
        return None
    return named_entry(
        "epsilon-in-the-denominator",
        f"about {epsilon:.2g} is added to the sum of the exponentials",
        "divide by the sum alone; where it is zero no key is attended: treat that apart",
        epsilon=epsilon,
    )


def _newton_step(wrong: Sequence[_Lossy], epsilon: float) -> float:
    """Return the Gauss-Newton step towards the best epsilon; infinite if epsilon has no effect."""
    step, along, steepness = model.DIFFERENCE_STEP, 0.0, 0.0
    for one in wrong:
        here, below, above = (
            one.lacking(_add_epsilon(epsilon + change)) for change in (0.0, -step, step)
        )
        slope = (below - above) / (2.0 * step)
        along += float((here * slope).sum())
        steepness += float(slope.square().sum())
    return along / steepness if steepness > 0.0 else math.inf


def _add_epsilon(epsilon: float) -> Edits:
    """Divide by a sum with epsilon added; the exponentials are relative to the largest logit."""

    def change(total: Tensor, exponentials: Tensor) -> Tensor:
        return total + epsilon * exponentials.amax(dim=-1, keepdim=True)

    return (golden.Edit("total", change=change),)


def _one_number_explains(wrong: Sequence[_Lossy], acted: Edits) -> bool:
    most = model.LARGEST_UNEXPLAINED
    return (
        all(_unexplained([one], acted, most) <= most for one in wrong)
        and sum(one.elements for one in wrong) >= model.FEWEST_FITTED
    )


def probed(subject: Subject) -> Iterator[tuple[Inputs, Tensor]]:
    """Yield answers to problems that bring out losses of precision."""
    for space in (AVERAGED, NEARLY_TIED, LONG):
        if space.not_applicable(subject.candidate):
            continue
        for problem in edge_problems(subject.candidate, space, dtype=subject.dtype)[:PROBED]:
            inputs = subject.inputs(problem)
            try:
                yield inputs, subject.answer(inputs).double()
            except CandidateFailure:
                continue


def _small(subject: Subject, others: Observed) -> Iterator[tuple[Inputs, Tensor]]:
    """Yield wrong answers to small numbers, where float16 loses more than TensorFloat-32."""
    for inputs, _ in others:
        if inputs.is_layer or inputs.mode != "separate" or subject.dtype not in ROUNDED_SHORT:
            return
        for factor in (model.SHRUNK, 1.0 / model.SHRUNK):
            small = inputs.with_tokens(
                query=inputs.query * factor,
                key=inputs.key / factor,
                value=inputs.value * model.SHRUNK,
            )
            try:
                output = subject.answer(small).double()
            except CandidateFailure:
                continue
            if not agrees(subject, small, output):
                yield small, output


def agrees(subject: Subject, inputs: Inputs, output: Tensor, *, factor: float = 1.0) -> bool:
    """Whether an answer is the golden one at a multiple of the scale."""
    known = subject.golden(inputs)
    if known.output.shape != output.shape:
        return False
    if factor != 1.0:
        known = subject.golden(inputs.replace(scale=known.core.scale * factor))
    # The quick part spares the bound, which is expensive.
    least = known.least_bound
    if least is not None and bool(((output - known.output).abs() <= least).all()):
        return True
    return compare(output, known.output, known.bound, judged=known.judged).margin <= 1.0


def _coarse_entry(subject: Subject, observed: Observed) -> dict[str, Any] | None:
    """Return the coarsest format that holds every answer, among formats coarser than the tensors'.

    A right answer is a number of a format with 13 bits fewer once in thousands of cases.
    """
    telling = _telling(subject, observed)
    if telling.numel() < model.FEWEST_FITTED:
        return None
    name = _coarsest(subject, telling)
    return _coarse(name, telling) if name else None


def _bits_entry(subject: Subject, wrong: Observed) -> dict[str, Any] | None:
    """Return how many bits all wrong answers keep, if fewer than their dtype has.

    The probability of an equal number of trailing zeros by chance halves with each bit.
    """
    telling = _telling(subject, wrong)
    full = 1 - round(math.log2(torch.finfo(TORCH_DTYPES[subject.dtype]).eps))
    kept = next((bits for bits in range(1, full) if _has_bits(telling, bits)), full)
    if telling.numel() < model.FEWEST_FITTED or full - kept < FEWEST_LOST:
        return None
    return named_entry(
        f"rounded-to-{kept}-bits",
        f"all answers that are wrong are numbers of {kept} bits, where {subject.dtype} has "
        f"{full}: it computes in fewer, or rounds its answer to them",
        KEPT,
    )


def _has_bits(numbers: Tensor, bits: int) -> bool:
    scaled = torch.frexp(numbers).mantissa * 2.0**bits
    return bool((scaled == scaled.round()).all())


def _coarsest(subject: Subject, answers: Tensor) -> str:
    formats = COARSER[subject.dtype]
    return next((n for n in formats if bool((ROUNDINGS[n](answers) == answers).all())), "")


def _telling(subject: Subject, observed: Observed) -> Tensor:
    judged = []
    for inputs, output in observed:
        rows = subject.golden(inputs).judged.expand(inputs.output_shape)
        judged.append(output[rows] if output.shape == rows.shape else output.flatten())
    answers = torch.cat(judged)
    answers = answers[torch.isfinite(answers)]
    return answers[~torch.isin(torch.frexp(answers).mantissa.abs(), EVERYWHERE)]


def _coarse(name: str, answers: Tensor) -> dict[str, Any]:
    spoken, confidence = SPOKEN.get(name, name), 1.0
    below = answers.abs() < torch.finfo(torch.float16).smallest_normal
    if name == "float16" and int(below.sum()) < model.FEWEST_FITTED:
        spoken, confidence = TEN_BITS, 1.0 / len(SHORT_FORMATS)
    return named_entry(
        _computed_in(name),
        f"its answers are all numbers of {spoken}: "
        "it computes in that inside, or rounds its answer to it",
        KEPT,
        confidence,
    )


def _computed_in(name: str) -> str:
    return f"computed-in-{name}"


class _Lossy:
    def __init__(self, subject: Subject, inputs: Inputs, output: Tensor) -> None:
        self._output = output
        known = subject.golden(inputs)
        call = DeclaredCall(inputs=inputs, semantics=subject.declaration.semantics)
        # A quantisation step of a whole tensor depends on keys that no query reads, too.
        self._run = read_every_key(run_of_call(call))
        # Rows that are not finite do not count: formats differ in where they overflow.
        judged = known.judged & torch.isfinite(output).all(dim=-1, keepdim=True)
        self._judged = judged.expand(known.output.shape)
        self._weight = known.bound[self._judged].clamp_min(model.LOST_WEIGHT).reciprocal()
        self.elements = output.numel()
        self.keys = inputs.geometry.key_length
        # The squared errors in bounds, without any loss.
        self.total = self.left(())

    def lacking(self, acted: Edits) -> Tensor:
        """Return the distance to the answer of an acted loss, in bounds, per element."""
        lossy: Tensor = self._run.edited(*acted)[answer_stage(self._run)]
        return (self._output - lossy)[self._judged] * self._weight

    def left(self, acted: Edits) -> float:
        """Return the squared errors, in bounds, that an acted loss leaves."""
        return float(self.lacking(acted).square().sum())


def _unexplained(wrong: Sequence[_Lossy], acted: Edits, most: float) -> float:
    """Return the part of the squared errors that a loss leaves: 0 if it explains everything.

    Infinite as soon as the part exceeds ``most``; later answers are then not computed.
    """
    total, left = sum(one.total for one in wrong), 0.0
    for one in wrong:
        left += one.left(acted)
        if not left <= most * total:
            return math.inf
    part = left / total if total > 0.0 else math.inf
    return part if math.isfinite(part) else math.inf
