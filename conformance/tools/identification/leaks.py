"""How far below the others a logit must lie for a hidden key to win: what masks fill in or add."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import torch

from ..._golden import golden
from ...oracle.extreme_logits import single_key_inputs
from ...oracle.oracle import evaluate
from ...problems.inputs import Inputs
from .agreement import Judge, Sample
from .caller import Caller, Refusal
from .convention import MaskUse
from .drawing import masked, random_keep

# The contract's clauses ask up to 1e8; common fills are 1e9 and 1e10.
_DECADES: Final = tuple(10.0**power for power in range(1, 13))
MUST_UP_TO: Final = 1e8
_BISECTIONS: Final = 8
# What masks are filled with: round numbers and the lowest ones of half precision.
_USUAL: Final = (1e2, 1e3, 1e4, 32767.0, 32768.0, 65504.0, 1e5, 1e6, 1e7, 1e8, 1e9)


@dataclass(frozen=True, kw_only=True)
class Leak:
    """A hidden key wins from about this magnitude on.

    ``operation`` is ``replace`` (it shows above live logits that are lower) or ``add``; ``fill`` is
    the number that explains the answers, None when none of the usual ones does.
    """

    operation: str
    threshold: float
    fill: float | None


@dataclass(frozen=True, kw_only=True)
class Tight:
    """No hidden key won up to this magnitude; 1 where nothing could be probed."""

    up_to: float


def find_leak(caller: Caller, use: MaskUse, point: golden.Semantics, judge: Judge) -> Leak | Tight:
    """The smallest magnitude at which a hidden key shows; how far it does not, where none does."""
    called = caller.under(masks=(use,))
    if _mixes_rows(point):
        return _usual_fill(called, use, point, judge)
    reached = []
    for operation, low in (("replace", True), ("add", False)):
        held = 1.0
        for target in _DECADES:
            sample = _observe(called, use, point, target, low=low)
            if sample is None:
                break
            if not judge.fits(point, [sample]):
                return _refined(called, use, point, judge, (operation, low, held, target))
            held = target
        reached.append(held)
    return Tight(up_to=min(reached))


def _mixes_rows(point: golden.Semantics) -> bool:
    """Whether rows of the answer hold more than one query, so that none can be judged alone."""
    moved = point.head_merge in ("reinterpret", "tokens") or point.head_split == "reinterpret"
    return moved or point.softmax_axis != "key"


def _usual_fill(
    caller: Caller, use: MaskUse, point: golden.Semantics, judge: Judge
) -> Leak | Tight:
    """The fill that explains whole answers where nothing else does; 1 where none of the usual."""
    for fill in _USUAL:
        sample = _observe(caller, use, point, 10.0 * fill, low=True)
        if sample is None:
            continue
        whole = Sample(sample.inputs, sample.output)
        if judge.fits(point.replace(mask_fill=-fill), [whole]) and not judge.fits(point, [whole]):
            return Leak(operation="replace", threshold=fill, fill=-fill)
    return Tight(up_to=1.0)


def _observe(
    caller: Caller, use: MaskUse, point: golden.Semantics, target: float, *, low: bool
) -> Sample | None:
    inputs = caller.draw(seed=6)
    inputs = masked(inputs, use.form, use.shape, random_keep(use.shape, inputs.geometry))
    first, _ = single_key_inputs(inputs, live=0, target=target, low=low)
    reached = _extreme(first, point, low=low)
    if reached <= 0.0:
        return None
    # The sign of a key's logit differs between heads: the lowest (highest) of them counts.
    stretched, rows = single_key_inputs(inputs, live=0, target=target * target / reached, low=low)
    answer = caller.call(stretched)
    if isinstance(answer, Refusal) or not bool(torch.isfinite(stretched.key).all()):
        return None
    return Sample(stretched, answer.output, rows)


def _extreme(inputs: Inputs, point: golden.Semantics, *, low: bool) -> float:
    """How far the logit of the live key lies below 0, or that of a hidden one above."""
    evaluation = evaluate(inputs.without_mask(), point)
    core = evaluation if isinstance(evaluation, golden.Attention) else evaluation.core
    scores = core.scores
    if inputs.mode == "self":  # the enlarged tokens are queries, too: their own rows are not judged
        scores = scores[..., 1:, :] if low else scores[..., :1, :]
    if not scores.numel():
        return 0.0
    return float(-scores[..., 0].min() if low else scores[..., 1:].max())


def _refined(
    caller: Caller,
    use: MaskUse,
    point: golden.Semantics,
    judge: Judge,
    bracket: tuple[str, bool, float, float],
) -> Leak:
    operation, low, held, failed = bracket
    witnesses = []
    for _ in range(_BISECTIONS):
        middle = (held * failed) ** 0.5
        sample = _observe(caller, use, point, middle, low=low)
        if sample is None:
            break
        if judge.fits(point, [sample]):
            held = middle
        else:
            failed = middle
            witnesses.append(sample)
    at_ten = _observe(caller, use, point, min(10.0 * failed, _DECADES[-1]), low=low)
    witnesses += [at_ten] if at_ten is not None else []
    for explained in (operation, "add"):
        fill = _explaining(judge, point, explained, failed, witnesses)
        if fill is not None:
            return Leak(operation=explained, threshold=failed, fill=fill)
    return Leak(operation=operation, threshold=failed, fill=None)


def _explaining(
    judge: Judge,
    point: golden.Semantics,
    operation: str,
    threshold: float,
    witnesses: list[Sample],
) -> float | None:
    """The round number near the threshold that explains the answers from there on."""
    decade = 10.0 ** int(torch.tensor(threshold).log10().floor())
    round_numbers = [digit * decade for digit in (1, 2, 3, 4, 5, 6, 7, 8, 9, 10)]
    binary = [2.0**power for power in (15, 16, 31)] + [2.0**15 - 1, 65504.0]
    near = sorted((*round_numbers, *binary), key=lambda number: abs(number - threshold))
    for number in near[:6]:
        reading = point.replace(mask_operation=operation, mask_fill=-number)
        if witnesses and judge.fits(reading, witnesses):
            return -number
    return None
