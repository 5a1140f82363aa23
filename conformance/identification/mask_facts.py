"""Find the facts about masks: parameters, forms, shapes, empty rows, leaks.

A leak has a measure: the magnitude of logits from which on a hidden key wins.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import nn

from .._golden import golden
from ..adapters.trial import duplicate
from ..base.geometry import Geometry
from ..diagnosis.mistakes.semantics_changes import filled_mistake
from ..oracle.extreme_logits import lowered_key, single_key_inputs
from ..oracle.oracle import evaluate
from ..problems.inputs import Inputs
from .agreement import Probed
from .caller import ProbeAnswer, Refusal, masked, random_keep
from .causality import empty_row_rules
from .convention import MaskUse
from .deviations import Deviation, without_effect
from .masks import MaskReading, MaskResult, UnreadMask, chosen_uses, find_masks
from .record import empty_words, placed

if TYPE_CHECKING:
    from .deviations import Investigation

# The contract's clauses go up to 1e8; common fills are 1e9 and 1e10.
_DECADES: Final = tuple(10.0**power for power in range(1, 13))
MUST_UP_TO: Final = 1e8
_BISECTIONS: Final = 8
# Usual fills of masks: round numbers and the lowest numbers of half precision.
_USUAL: Final = (1e2, 1e3, 1e4, 32767.0, 32768.0, 65504.0, 1e5, 1e6, 1e7, 1e8, 1e9)


@dataclass(frozen=True, kw_only=True)
class Leak:
    """A hidden key wins from about this magnitude on.

    ``operation`` is ``replace`` (hidden keys beat lower live logits) or ``add``; ``fill`` is the
    number that explains the answers, None if no usual number does.
    """

    operation: str
    threshold: float
    fill: float | None


@dataclass(frozen=True, kw_only=True)
class Tight:
    """The magnitude up to which no hidden key won; 1 if nothing could be probed."""

    up_to: float


def find_leak(case: Probed, use: MaskUse) -> Leak | Tight:
    """The smallest magnitude at which a hidden key shows, or the largest tight magnitude."""
    case = case.under(masks=(use,))
    if _mixes_rows(case.point):
        return _usual_fill(case, use)
    reached = []
    for operation, low in (("replace", True), ("add", False)):
        held = 1.0
        for target in _DECADES:
            sample = _observe(case, use, target, low=low)
            if sample is None:
                break
            if not case.fits(sample):
                return _refined(case, use, (operation, low, held, target))
            held = target
        reached.append(held)
    return Tight(up_to=min(reached))


def _mixes_rows(point: golden.Semantics) -> bool:
    """Whether answer rows mix several queries and cannot be judged alone."""
    moved = point.head_merge in ("reinterpret", "tokens") or point.head_split == "reinterpret"
    return moved or point.softmax_axis != "key"


def _usual_fill(case: Probed, use: MaskUse) -> Leak | Tight:
    """The usual fill that explains whole answers, else a tight magnitude of 1."""
    for fill in _USUAL:
        sample = _observe(case, use, 10.0 * fill, low=True)
        if sample is None:
            continue
        whole = sample.compared(None)
        if case.fits(whole, mask_fill=-fill) and not case.fits(whole):
            return Leak(operation="replace", threshold=fill, fill=-fill)
    return Tight(up_to=1.0)


def promise_causal_fill(case: Investigation) -> None:
    """Promise the finite number that replaces later keys' logits if every call is causal.

    The probe drives the logit of the first query's only key below the number.
    """
    if case.caller.convention.masks or case.point.mask_fill != -math.inf:
        return
    drawn = case.caller.draw(seed=6)
    first = torch.arange(drawn.geometry.query_length).reshape(-1, 1) == 0
    for fill in _USUAL:
        answer = case.caller.answer(lowered_key(drawn, live=0, target=10.0 * fill))
        if answer is None:
            return
        sample = answer.compared(first.expand(drawn.output_shape))
        if case.fits(sample, mask_fill=-fill) and not case.fits(sample):
            case.findings.add(
                "hidden keys",
                f"logits of later keys become {-fill:g}",
                "the first key's logit driven below it, until later keys show",
                {"threshold": fill, "fill": -fill, "operation": "replace"},
            )
            case.point = case.point.replace(mask_fill=-fill)
            return


def _observe(case: Probed, use: MaskUse, target: float, *, low: bool) -> ProbeAnswer | None:
    inputs = case.caller.draw(seed=6)
    inputs = masked(inputs, use.form, use.shape, random_keep(use.shape, inputs.geometry))
    first, _ = single_key_inputs(inputs, live=0, target=target, low=low)
    reached = _extreme(first, case.point, low=low)
    if reached <= 0.0:
        return None
    # The sign of a key's logit differs between heads: the lowest (highest) logit counts.
    stretched, rows = single_key_inputs(inputs, live=0, target=target * target / reached, low=low)
    answer = case.caller.call(stretched)
    if isinstance(answer, Refusal) or not bool(torch.isfinite(stretched.key).all()):
        return None
    return answer.compared(rows)


def _extreme(inputs: Inputs, point: golden.Semantics, *, low: bool) -> float:
    """The depth of the live key's logit below 0, or the height of a hidden key's above 0."""
    evaluation = evaluate(inputs.without_mask(), point)
    core = evaluation if isinstance(evaluation, golden.Attention) else evaluation.core
    scores = core.scores
    if inputs.mode == "self":  # rows of the enlarged tokens, as queries, are not judged
        scores = scores[..., 1:, :] if low else scores[..., :1, :]
    if not scores.numel():
        return 0.0
    return float(-scores[..., 0].min() if low else scores[..., 1:].max())


def _refined(case: Probed, use: MaskUse, bracket: tuple[str, bool, float, float]) -> Leak:
    operation, low, held, failed = bracket
    witnesses = []
    for _ in range(_BISECTIONS):
        middle = (held * failed) ** 0.5
        sample = _observe(case, use, middle, low=low)
        if sample is None:
            break
        if case.fits(sample):
            held = middle
        else:
            failed = middle
            witnesses.append(sample)
    at_ten = _observe(case, use, min(10.0 * failed, _DECADES[-1]), low=low)
    witnesses += [at_ten] if at_ten is not None else []
    for explained in (operation, "add"):
        fill = _explaining(case, explained, failed, witnesses)
        if fill is not None:
            return Leak(operation=explained, threshold=failed, fill=fill)
    return Leak(operation=operation, threshold=failed, fill=None)


def _explaining(
    case: Probed, operation: str, threshold: float, witnesses: list[ProbeAnswer]
) -> float | None:
    """A round number near the threshold that explains all witness answers."""
    decade = 10.0 ** int(torch.tensor(threshold).log10().floor())
    round_numbers = [digit * decade for digit in (1, 2, 3, 4, 5, 6, 7, 8, 9, 10)]
    binary = [2.0**power for power in (15, 16, 31)] + [2.0**15 - 1, 65504.0]
    near = sorted((*round_numbers, *binary), key=lambda number: abs(number - threshold))
    for number in near[:6]:
        if witnesses and case.fits(*witnesses, mask_operation=operation, mask_fill=-number):
            return -number
    return None


_POLARITY: Final = {
    "keep": "True attends",
    "drop": "True ignores",
    "keep_int": "0 ignores",
    "bias": "added to the logits, minus infinity ignores",
    "lengths": "keys at or past the length are ignored",
}
_OPERATIONS: Final = {
    "multiply-weights": "the weights are multiplied after the softmax, rows no longer sum to one",
    "multiply-logits": "the logits are multiplied by it: a hidden key keeps a logit of 0",
    "add-to-kept": "where a mask is meant, hand over an additive float",
}
# Names of masks for other keys than those of a self-attention.
_OF_OTHERS: Final = re.compile(r"head|encoder|context|cross|mem|additional", re.IGNORECASE)
# The promised form and shape of a mask without effect, suggested only by its name.
_BY_NAME: Final = (
    ("len", "lengths", "B"),
    ("padding", "drop", "BK"),
    ("drop", "drop", "BHQK"),
    ("bias", "bias", "BHQK"),
    ("", "keep", "BHQK"),
)


def add_facts(case: Investigation) -> None:
    """Find the masks, then the answers of empty rows and the leaks of hidden keys."""
    parameters = case.parameters.meaning("mask")
    results = find_masks(case, parameters)
    if case.judge.always_causal and not any(isinstance(result, MaskReading) for result in results):
        replaced = case.point.replace(causal_combination="mask-only")
        again = find_masks(replace(case, point=replaced), parameters)
        if any(isinstance(result, MaskReading) for result in again):
            results, case.point = again, replaced
            case.findings.add(
                "causal and mask",
                "causality is dropped when a mask is given",
                "masked calls are golden without the triangle",
                "mask-only",
            )
    named: set[str] = set()
    for result in results:
        name = f"mask {result.parameter.name} ({result.kind})"
        if name in named and isinstance(result, MaskReading):  # read differently in other shapes
            name = f"mask {result.parameter.name} ({result.kind}, {result.uses[0].native})"
        named.add(name)
        if isinstance(result, MaskReading):
            _add_mask(case, name, result)
        elif not result.parameter.guessed:
            case.findings.add(
                name,
                f"{placed(result.parameter)}: {result.why}",
                "calls with and without it",
                {"parameter": result.parameter.name, "form": None},
            )
    readings = [result for result in results if isinstance(result, MaskReading)]
    _declare(case, readings)
    idle = _without_effect(results, readings)
    _observe_idle_forms(case, results, readings)
    case.unread = [name for name in _not_read(results, readings) if name not in idle]
    if not readings:
        case.idle = next((name for name in idle if not _OF_OTHERS.search(name)), "")
    # Masks for inputs absent from plain calls change nothing.
    case.unchecked += [name for name in idle if _OF_OTHERS.search(name)]
    if not parameters:
        case.findings.add("mask", "none", "no parameter sounds like one", None)
    elif not case.caller.convention.masks:
        case.findings.add("mask", "none that works", "calls with each mask-like parameter", None)


def _add_mask(case: Investigation, name: str, reading: MaskReading) -> None:
    shapes = ", ".join(dict.fromkeys(use.native for use in reading.uses))
    words = (
        f"{placed(reading.parameter)}: {_polarity(reading)}, shapes {shapes}{_operation(reading)}"
    )
    if reading.ambiguous:
        words += (
            f"; not {', '.join(reading.ambiguous)}, taken for another shape where sizes are equal"
        )
    evidence = f"golden within bound in {len(reading.uses)} shape{'s' * (len(reading.uses) != 1)}"
    # Only a mask of two values has a polarity.
    if reading.form not in ("bias", "lengths") and reading.point.mask_operation != "add-to-kept":
        evidence += ", and not with the other polarity"
    value = {
        "parameter": reading.parameter.name,
        "form": reading.form,
        "shapes": [use.shape for use in reading.uses],
        "operation": reading.point.mask_operation,
    }
    case.findings.add(name, words, evidence, value)


def _polarity(reading: MaskReading) -> str:
    if reading.point.mask_operation == "add-to-kept":
        return "True is added as 1, and nothing is hidden"
    if reading.kind == "compared float":
        far, none = ("attends", "ignores") if reading.form == "drop" else ("ignores", "attends")
        return f"compared with a number, not added: one far below zero {far}, 0 {none}"
    if reading.kind in ("int", "0/1 float"):
        return "1 ignores" if reading.form == "drop" else "0 ignores"
    return _POLARITY[reading.form]


def _operation(reading: MaskReading) -> str:
    operation = reading.point.mask_operation
    if operation in _OPERATIONS:
        return f"; {_OPERATIONS[operation]}"
    if operation == "replace" and reading.point.mask_fill > -MUST_UP_TO:
        return f"; hidden logits become {reading.point.mask_fill:g}"
    if operation == "add" and reading.point.mask_fill > -MUST_UP_TO:
        return f"; {reading.point.mask_fill:g} is added to hidden logits"
    if reading.point.bias_order == "before-scale":
        return "; it joins before the scaling and is scaled too"
    return ""


def _declare(case: Investigation, understood: Sequence[MaskReading]) -> None:
    """Promise the masks that a single declaration can express, and probe their empty rows."""
    exact = [
        reading for reading in understood if reading.exact and reading.point.mask_fill < -MUST_UP_TO
    ]
    alike = exact or [reading for reading in understood if reading.point == understood[0].point]
    uses = chosen_uses(alike)
    if not uses:
        return
    left = [reading for reading in understood if reading not in alike]
    case.other_readings = list(dict.fromkeys(reading.point for reading in left))
    if left:
        case.findings.add(
            "masks left out",
            ", ".join(f"{reading.parameter.name} ({reading.kind})" for reading in left),
            "a declaration has one meaning for all its masks: the exact ones are declared",
            [reading.parameter.name for reading in left],
        )
    used = {use.parameter for use in uses}
    names = dict.fromkeys(reading.parameter.name for reading in understood)
    case.unchecked = [name for name in names if name not in used]
    for reading in alike:
        case.point = case.point.replace(
            mask_operation=reading.point.mask_operation, mask_fill=reading.point.mask_fill
        )
        if reading.form == "bias":
            case.point = case.point.replace(bias_order=reading.point.bias_order)
    case.caller = case.caller.under(masks=_in_training(case, uses))
    if not exact:
        case.findings.add(
            "empty rows",
            "what the arithmetic gives: hidden keys are never gone",
            "the mask leaves them some weight",
            "any",
        )
        return
    # The widest shape of each form and parameter comes first.
    firsts: dict[tuple[str, str], MaskUse] = {}
    for use in case.caller.convention.masks:
        firsts.setdefault((use.form, use.parameter), use)
    _empty_rows(case, list(firsts.values()))
    _leaks(case, list(firsts.values()))


def _observe_idle_forms(
    case: Investigation, results: Sequence[MaskResult], readings: Sequence[MaskReading]
) -> None:
    """Record every accepted mask form without effect, if another form of the parameter works."""
    read = {reading.parameter.name for reading in readings}
    for mask in results:
        if isinstance(mask, UnreadMask) and mask.idle and mask.parameter.name in read:
            words = f"`{mask.parameter.name}` is taken as a {mask.kind} mask, and hides no key then"
            fix = "hide the keys that it marks, or raise for what is no additive mask"
            case.observed.append(without_effect(f"{mask.parameter.name} ({mask.kind})", words, fix))


def _without_effect(results: Sequence[MaskResult], readings: Sequence[MaskReading]) -> list[str]:
    """The names of unread parameters that change no answer in their forms."""
    unread = [
        mask for mask in results if isinstance(mask, UnreadMask) and not mask.parameter.guessed
    ]
    names = _not_read(results, readings)
    return [
        name for name in names if all(mask.idle for mask in unread if mask.parameter.name == name)
    ]


def _not_read(results: Sequence[MaskResult], readings: Sequence[MaskReading]) -> list[str]:
    """The names of parameters that were not understood in any form."""
    read = {reading.parameter.name for reading in readings}
    unread = [one.parameter for one in results if isinstance(one, UnreadMask)]
    names = dict.fromkeys(parameter.name for parameter in unread if not parameter.guessed)
    return [name for name in names if name not in read]


def promise_idle_mask(case: Investigation) -> None:
    """Promise the mask that hides nothing: a declaration without the mask would conform.

    Promised after all other probes: nothing else can be probed with the mask.
    """
    name = case.idle
    if not name:
        return
    case.observed.append(
        without_effect(
            name,
            f"`{name}` looks like a mask and hides no key",
            "give hidden keys minus infinity before the softmax",
        )
    )
    if case.promises_idle and not case.as_observed:
        form, shape = next(use for word, *use in _BY_NAME if word in name.lower())
        mask_use = MaskUse(form=form, parameter=name, shape=shape, native=shape)
        case.caller = case.caller.under(masks=(mask_use,))


def _in_training(case: Investigation, uses: tuple[MaskUse, ...]) -> tuple[MaskUse, ...]:
    """The uses with shapes that a module accepts in training mode too: clauses call it there."""
    prepare = case.caller.prepare

    def train(geometry: Geometry, weights: golden.ProjectionWeights | None) -> Callable[..., Any]:
        built = prepare(geometry, weights)
        return duplicate(built).train() if isinstance(built, nn.Module) else built

    caller = replace(case.caller, prepare=train)
    inputs = caller.draw(seed=6)
    if isinstance(caller.call(inputs), Refusal):
        return uses
    refused = {
        use.shape: use.native
        for use in uses
        if isinstance(caller.under(masks=(use,)).call(masked(inputs, use.form, use.shape)), Refusal)
    }
    kept = tuple(use for use in uses if use.shape not in refused)
    if not refused or {use.form for use in kept} != {use.form for use in uses}:
        return uses
    case.findings.add(
        "mask shapes of eval mode",
        f"{', '.join(refused.values())}: left out, as training mode refuses them",
        "calls in both modes, in each shape",
        list(refused),
    )
    return kept


def _empty_rows(case: Investigation, uses: Sequence[MaskUse]) -> None:
    rules = {(use.form, use.parameter): empty_row_rules(case, use) for use in uses}
    case.promises["empty_by_mask"] = [[form, *rule] for (form, _), rule in rules.items()]
    first = next(iter(rules.values()))
    same = all(rule == first for rule in rules.values())
    if same:
        words = empty_words(first)
    else:
        words = "; ".join(
            f"{empty_words(rule)} by {parameter} ({form})"
            for (form, parameter), rule in rules.items()
        )
    case.findings.add(
        "empty rows",
        words,
        f"rows without a key in {', '.join(form for form, _ in rules)}",
        first[0] if same else "any",
    )


def _leaks(case: Investigation, uses: Sequence[MaskUse]) -> None:
    leaks = {(use.form, use.parameter): find_leak(case, use) for use in uses if use.form != "bias"}
    if not leaks:
        return
    leaking = [leak for leak in leaks.values() if isinstance(leak, Leak)]
    if not leaking:
        largest = min(leak.up_to for leak in leaks.values() if isinstance(leak, Tight))
        case.findings.add(
            "hidden keys",
            f"never win, up to logits of {_short(f'{largest:g}')}"
            if largest > 1.0
            else "could not be probed",
            "the only live logit driven down, and hidden ones up, decade by decade",
            None,
        )
        return
    worst = min(leaking, key=lambda leak: leak.threshold)
    case.findings.add(
        "hidden keys",
        _leak_words(worst),
        "the only live logit driven down (or hidden ones up) until another key shows",
        {"threshold": worst.threshold, "fill": worst.fill, "operation": worst.operation},
    )
    _expect(case, worst)


def _leak_words(leak: Leak) -> str:
    side = "live logits below" if leak.operation == "replace" else "live ones from logits of"
    sign = "-" if leak.operation == "replace" else ""
    words = f"win over {side} about {sign}{leak.threshold:.3g}"
    if leak.fill is not None:
        what = "hidden logits become" if leak.operation == "replace" else "hidden logits get"
        words += f": {what} {leak.fill:g}"
    words = _short(words)
    if leak.threshold > MUST_UP_TO:
        words += " (beyond the 1e8 that clauses try)"
    return words


def _short(words: str) -> str:
    """``1e8`` instead of ``1e+08``."""
    return words.replace("e+0", "e").replace("e+", "e")


def _expect(case: Investigation, leak: Leak) -> None:
    """Promise or record a leak that clauses notice."""
    if leak.threshold > MUST_UP_TO:
        return
    if leak.fill is not None:
        case.point = case.point.replace(mask_operation=leak.operation, mask_fill=leak.fill)
        return
    words = f"hidden keys {_leak_words(leak)}"
    filled = filled_mistake(
        case.point.replace(mask_operation=leak.operation, mask_fill=-leak.threshold)
    )
    case.observed.append(
        Deviation(
            observed=words,
            text=words,
            fix=filled.fix,
            mistaken=True,
            clause=filled.primary,
        )
    )
