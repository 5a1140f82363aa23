"""Facts about wrong answers without a name: where they err, and which problems go wrong."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

import torch
from torch import Tensor

from ..base.mistake import NO_MISTAKE
from ..base.results import Violation
from ..calls.calling import CandidateFailure
from ..calls.devices import CPU, kind_of
from ..clauses.subject import Subject
from ..oracle.comparison import AXES
from ..problems.problem import Problem
from ..tolerance import model
from .agreement import BatteryAnswer
from .battery import answer_to, plainest_wrong
from .conditions import CONDITIONS, Condition, size_limit
from .dissection.influence import influence_facts
from .dissection.layer_weights import set_values_to_one
from .dissection.reading import digits_of
from .entries import named_entry, unnamed_entry
from .mistaken_answer import DiagnosedSubject
from .mistakes.named_mistake import read_every_key
from .narrowing import say_limits, telling_apart
from .neighbours import right_with_fewer

# The clause that compares the answers of two devices.
ACROSS_DEVICES: Final = "device.matches-cpu"
_AXIS_NAMES: Final = {
    "batch": ("batch item", "batch items"),
    "head": ("head", "heads"),
    "query": ("query", "queries"),
    "channel": ("channel", "channels"),
}
# Larger multiples of the bound are reported as "more than a million".
MOST_BOUNDS: Final = 1e6
# The fewest wrong answers, and right answers without a condition, to blame the condition.
FEWEST_WRONG: Final = 3
FEWEST_RIGHT: Final = 3
# The exponential of a larger logit overflows float16.
EXTREME: Final = math.log(65504.0)
# Part of torch's message about writing a number into a tensor whose dtype cannot hold it.
_DOES_NOT_FIT: Final = "without overflow"
_TOO_LARGE: Final[dict[str, Any]] = named_entry(
    "number-beyond-dtype",
    "a number is written into a tensor whose dtype cannot hold it, such as -1e9 in float16",
    "take a number of the tensor's own dtype: to hide keys torch.finfo(scores.dtype).min, "
    "or -torch.inf",
)


# Raising calls are reported if at least one call in ten raises.
_MANY: Final = 10


def unknown_entry(
    subject: Subject,
    observed: Sequence[BatteryAnswer],
    shown: BatteryAnswer | None,
    *,
    said: str = "",
    further: Sequence[BatteryAnswer] = (),
) -> dict[str, Any]:
    """Return the report's entry for a mistake without a name, with every fact about it.

    ``shown`` is the failing problem to explain, if any. ``said`` names the place where the facts on
    all wrong answers are already reported: they are not repeated. Facts that ``further`` answers
    contradict are dropped.
    """
    further = [*further, *([] if shown is None else [shown])]
    facts, common, example = _gather(subject, observed, shown, further, only_shown=bool(said))
    texts = [*common[:1], *example, *common[1:]]
    sentence = NO_MISTAKE
    if said:
        sentence += f" ({said})"
    return unnamed_entry(
        f"{sentence}: {'; '.join(texts)}" if texts else sentence,
        facts,
        common="; ".join(common),
        example="; ".join(example),
    )


def lost_search_entry(fault: str) -> dict[str, Any]:
    """Return the report's entry where an error of this harness ended the search for a name."""
    return unnamed_entry(
        f"the search for a name ended with an error of ours, {fault}: please report it"
    )


def beyond_dtype(raised: Violation) -> dict[str, Any] | None:
    """Return the entry of a call that writes a number into a tensor whose dtype cannot hold it."""
    if _DOES_NOT_FIT not in raised.message:
        return None
    return {**_TOO_LARGE, "text": f"{raised.message}: {_TOO_LARGE['text']}"}


def _gather(
    subject: Subject,
    observed: Sequence[BatteryAnswer],
    shown: BatteryAnswer | None,
    further: Sequence[BatteryAnswer],
    *,
    only_shown: bool,
) -> tuple[dict[str, Any], list[str], list[str]]:
    """Return the facts as data, as sentences on all wrong answers, and on the shown answer.

    With ``only_shown`` the second list stays empty.
    """
    wrong = [answer for answer in observed if answer.margin > 1.0]
    facts: dict[str, Any] = {"asked": len(observed), "wrong": len(wrong)}
    common: list[str] = []
    example: list[str] = []
    one = shown if shown is not None else _plainest(wrong)
    if shown is not None and shown.margin <= 1.0:
        right = "the plain answer to this problem is right"
        example.append(right if wrong else f"{right}: only what the clause changes shows")
        facts["plain_answer"] = "right"
        one = None if only_shown else _plainest(wrong)
    if wrong and not only_shown:
        common.append(which_go_wrong(facts, observed, wrong, further))
        common += right_with_fewer(subject, plainest_wrong([*wrong, *further]), answer_to)
    if one is not None:
        which = "this example" if one is shown else "the plainest wrong problem"
        example += _describe_answer(subject, facts, one, which)
    if not only_shown:
        if one is not None:
            facts["repeats"] = repeats(subject, one)
            if not facts["repeats"]:
                common.append("a second call with the same inputs gives another answer")
        common += _values_of_one(subject, facts, wrong)
        common += _stray_influence(subject, facts, wrong)
    return facts, common, example


def _plainest(wrong: Sequence[BatteryAnswer]) -> BatteryAnswer | None:
    return min(
        wrong,
        key=lambda answer: sum(one.holds(answer.inputs) for one in CONDITIONS),
        default=None,
    )


def _describe_answer(
    subject: Subject, facts: dict[str, Any], answer: BatteryAnswer, which: str
) -> list[str]:
    exact = subject.golden(answer.inputs)
    wrong = answer.wrong
    if wrong is None:
        facts["shape"] = list(answer.output.shape)
        facts["expected_shape"] = list(exact.output.shape)
        return [f"its shape is {facts['shape']} where {facts['expected_shape']} is expected"]
    if not bool(wrong.any()):
        return []
    texts = _where(facts, wrong, which)
    rows = exact.empty_rows.expand(wrong.shape)
    if bool((wrong & rows).any()) and not bool((wrong & ~rows).any()):
        facts["rows"] = "without keys"
        texts.append("only rows without keys are wrong")
    broken = int((wrong & ~torch.isfinite(answer.output)).sum())
    facts["not_finite"] = broken
    if broken:
        texts.append(f"{broken} of {wrong.numel()} elements are not finite")
    finite = wrong & torch.isfinite(answer.output) & torch.isfinite(exact.output)
    if bool(finite.any()):
        texts += _sizes(facts, answer.output[finite], exact.output[finite], exact.bound[finite])
    return texts


def _where(facts: dict[str, Any], wrong: Tensor, which: str) -> list[str]:
    facts["affected"], texts = {}, []
    for number, axis in enumerate(AXES.get(wrong.dim(), ())):
        others = [other for other in range(wrong.dim()) if other != number]
        hit = wrong.sum(dim=others) > 0
        indices = [int(index) for index in hit.nonzero().flatten()]
        count = wrong.shape[number]
        facts["affected"][axis] = "all" if len(indices) == count else indices
        if len(indices) < count:
            name = _AXIS_NAMES[axis][len(indices) > 1]
            texts.append(f"{name} {_listed(indices)} (of 0 to {count - 1})")
    place = " and ".join(texts)
    return [
        f"{which} goes wrong only at {place}" if texts else "no batch item, head or row is spared"
    ]


def _listed(indices: list[int]) -> str:
    few = 8
    shown = ", ".join(str(index) for index in indices[:few])
    return f"{shown}, …" if len(indices) > few else shown


def _sizes(facts: dict[str, Any], actual: Tensor, expected: Tensor, bound: Tensor) -> list[str]:
    error = (actual - expected).abs()
    facts["largest_error"] = float(error.max())
    texts = [
        f"the largest error is {facts['largest_error']:.3g}{_describe_bounds(facts, error, bound)}"
    ]
    if not bool(actual.any()):
        facts["answer"] = "zero"
        return [*texts, "the answer is zero there"]
    if actual.numel() < model.FEWEST_FITTED:
        return texts
    factor = float((actual * expected).sum() / expected.square().sum().clamp_min(model.LOST_WEIGHT))
    if _nothing_left(actual - factor * expected, error):
        facts["ratio"] = factor
        texts.append(f"it is {factor:.6g} times what is expected")
    shift = float((actual - expected).mean())
    if _nothing_left(actual - expected - shift, error):
        facts["difference"] = shift
        texts.append(f"it differs by {shift:+.6g} throughout")
    return texts


def _describe_bounds(facts: dict[str, Any], error: Tensor, bound: Tensor) -> str:
    allowed = bound > 0.0
    if not bool(allowed.any()):
        return " where the answer must be exact"
    times = float((error[allowed] / bound[allowed]).max())
    facts["largest_error_in_bounds"] = times
    if times > MOST_BOUNDS:
        return ", more than a million times what is allowed"
    return f", up to {times:.3g} times what is allowed"


def _nothing_left(left: Tensor, error: Tensor) -> bool:
    return float(left.square().sum()) <= model.NEARLY_NOTHING * float(error.square().sum())


def repeats(subject: Subject, answer: BatteryAnswer) -> bool:
    """Whether a second call with the same inputs gives an equal answer within its bound."""
    again = answer_to(subject, answer.inputs)
    if again is None or again.output.shape != answer.output.shape:
        return False
    exact = subject.golden(answer.inputs)
    fits = exact.output.shape == answer.output.shape
    bound = exact.bound if fits else torch.zeros_like(answer.output)
    differs = (again.output - answer.output).abs() > bound
    return not bool((differs & torch.isfinite(again.output)).any())


def _stray_influence(
    subject: Subject, facts: dict[str, Any], wrong: Sequence[BatteryAnswer]
) -> list[str]:
    plain = next((one for one in wrong if not one.inputs.masked and one.inputs.generic), None)
    if plain is None or facts.get("repeats") is False:
        return []
    texts = influence_facts(subject, plain.inputs)
    facts["influence"] = texts
    return texts


def _values_of_one(
    subject: Subject, facts: dict[str, Any], wrong: Sequence[BatteryAnswer]
) -> list[str]:
    plain = next((answer for answer in wrong if not answer.inputs.masked), None)
    ones = None if plain is None else set_values_to_one(subject, plain.inputs)
    if ones is None or ones.mode == "memory" or facts.get("repeats") is False:
        return []
    try:
        sums = subject.answer(ones).double()
    except CandidateFailure:
        return []
    exact = subject.golden(ones)
    least, most = float(sums.min()), float(sums.max())
    right = bool(((sums - exact.output).abs() <= exact.bound).all())
    facts["ones_stay"] = right
    if right:
        # Rows whose answer is zero are not wrong at these values: the fact would say nothing.
        return [] if facts.get("answer") == "zero" else ["values that are all one stay so"]
    facts["ones_become"] = [least, most]
    said = ["NaN"] if math.isnan(least) else dict.fromkeys(map(digits_of, (least, most)))
    return [f"values that are all one become {' to '.join(said)}"]


def add_device_alone(
    subject: Subject, entries: list[dict[str, Any]], problem: Problem | None
) -> list[dict[str, Any]]:
    """Add to entries that the call is answered rightly on the CPU, if it is."""
    declared = subject.candidate.declared_on or subject.declaration.devices
    kinds = {kind_of(name) for name in declared}
    if problem is None or kind_of(subject.device) == CPU or CPU not in kinds:
        return entries
    there, here = (
        answer_to(one, one.inputs(problem.replace(device=one.device)))
        for one in (subject, Subject(subject.candidate, subject.dtype, CPU, sealed=subject.sealed))
    )
    if there is None or here is None or there.margin <= 1.0 or here.margin > 1.0:
        return entries
    alone = f"on {subject.device} alone: on the CPU this call is answered rightly"
    return [{**entry, "text": f"{entry['text']}; {alone}"} for entry in entries]


def add_raising_calls(subject: Subject, entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Add to the first entry a sentence about other calls, if many of these raise.

    A single mistake may cause both, for example a reversed condition that leaves a result
    undefined.
    """
    calls = subject.calls if isinstance(subject, DiagnosedSubject) else {}
    raising = [inputs for inputs, said in calls.items() if said]
    if not entries or _MANY * len(raising) < len(calls) or not raising:
        return entries
    told = {inputs: calls[inputs].rpartition(" (")[2] for inputs in raising}
    most = max(told.values(), key=list(told.values()).count)
    alike = [inputs for inputs in raising if told[inputs] == most]
    others = [inputs for inputs in calls if inputs not in alike]
    words = [
        one.words if given else one.otherwise or one.words.replace("with ", "without ", 1)
        for one in CONDITIONS
        for given in (True, False)
        if all(one.holds(inputs) == given for inputs in alike)
        and not any(one.holds(inputs) == given for inputs in others)
    ]
    which = f": all {words[0]}, and no others" if words else ""
    said = f"{len(alike)} of {len(calls)} calls {calls[alike[0]]}{which}"
    first, *rest = entries
    texts = [key for key in ("text", "common") if key in first]  # what all failures have in common
    return [{**first, **{key: "; ".join(filter(None, (first[key], said))) for key in texts}}, *rest]


def shared_confidence(entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Divide the confidence among equivalent names."""
    return [{**entry, "confidence": entry["confidence"] / len(entries)} for entry in entries]


def which_go_wrong(
    facts: dict[str, Any],
    observed: Sequence[BatteryAnswer],
    wrong: Sequence[BatteryAnswer],
    further: Sequence[BatteryAnswer],
) -> str:
    """Say how many problems go wrong, and their common properties that right problems lack.

    Statements that ``further`` answers contradict are dropped; these were not used to find them.
    """
    bad = {id(answer) for answer in wrong}
    fine = [answer for answer in observed if id(answer) not in bad]
    others = [answer.inputs for answer in further if answer.margin > 1.0]
    spoken = _spoken([*wrong, *further], fine)
    only = [
        one for one in only_with(wrong, fine, spoken) if all(one.holds(inputs) for inputs in others)
    ]
    never = [
        one
        for one in never_with(wrong, fine, spoken)
        if not any(one.holds(inputs) for inputs in others)
    ]
    deciding = _deciding(wrong, fine, further)
    if deciding:
        only, never = list(deciding), []
    facts["only_with"] = [one.name for one in only]
    facts["never_with"] = [one.name for one in never]
    text = f"{len(wrong)} of {len(observed)} problems go wrong"
    if only:
        text += f", only those {say_limits(only)}"
    if never:
        text += f", none {' or '.join(one.words for one in never)}"
    return text


def _deciding(
    wrong: Sequence[BatteryAnswer],
    fine: Sequence[BatteryAnswer],
    further: Sequence[BatteryAnswer],
) -> tuple[Condition, ...]:
    """Return the conditions that separate wrong from right problems.

    They must hold for wrong ``further`` answers, at several sizes, and not for several right ones.
    """
    made = [answer.inputs for answer in (*wrong, *further) if answer.margin > 1.0]
    spared = [answer.inputs for answer in further if answer.margin <= 1.0]
    chosen = telling_apart(made, [answer.inputs for answer in fine]) or ()
    if min(len(wrong), len(fine)) < FEWEST_WRONG:
        return ()
    for one in chosen:
        lacking = sum(not one.holds(inputs) for inputs in spared)
        fields = () if one.sizes is None else one.sizes.fields
        sizes = {tuple(getattr(inputs.geometry, field) for field in fields) for inputs in made}
        if lacking < FEWEST_RIGHT or (fields and len(sizes) < FEWEST_WRONG):
            return ()
    return chosen


def only_with(
    wrong: Sequence[BatteryAnswer],
    right: Sequence[BatteryAnswer],
    spoken: Sequence[Condition] | None = None,
) -> list[Condition]:
    """Return the conditions without which answers are right, as far as the answers show.

    Every wrong answer must meet the condition. To exclude chance, enough right answers must lack
    the condition alone.
    """
    common = _common(_spoken(wrong, right) if spoken is None else spoken, wrong)
    comparable = _count(right, common)
    needed = [
        one
        for one in common
        if _told(len(wrong), comparable, _count(right, _others(common, one), without=one))
    ]
    implied = {one.implies for one in needed}
    return [one for one in needed if one.name not in implied]


def never_with(
    wrong: Sequence[BatteryAnswer],
    right: Sequence[BatteryAnswer],
    spoken: Sequence[Condition] | None = None,
) -> list[Condition]:
    """Return the conditions with which answers are right, although like wrong answers otherwise."""
    spoken = _spoken(wrong, right) if spoken is None else spoken
    common = _common(spoken, wrong)
    sparing = [
        one
        for one in spoken
        if not any(one.holds(answer.inputs) for answer in wrong)
        and _told(
            len(wrong),
            _count(right, common, without=one),
            _count(right, [*_others(common, one), one]),
        )
        # Mask forms exclude each other: a form is right where a wrong form is absent.
        and not any(other.implies and other.implies == one.implies for other in common)
    ]
    kept = {one.name for one in (*sparing, *common)}
    return [one for one in sparing if one.implies not in kept]


def _told(wrong: int, comparable: int, right: int) -> bool:
    """Whether a condition decides: all answers on one side are right, too many for chance.

    On the other side ``wrong`` are wrong and ``comparable`` are right; without an effect of the
    condition the same part of the ``right`` ones would be wrong.
    """
    if wrong < FEWEST_WRONG or right < FEWEST_RIGHT:
        return False
    chance: float = (comparable / (wrong + comparable)) ** right
    return chance <= model.COINCIDENCE


def _spoken(wrong: Sequence[BatteryAnswer], right: Sequence[BatteryAnswer]) -> list[Condition]:
    fixed = [one for one in CONDITIONS if one.name != "many keys"]
    least = min((answer.inputs.geometry.key_length for answer in wrong), default=0)
    below = [n for answer in right if (n := answer.inputs.geometry.key_length) < least]
    extreme = {id(answer.inputs) for answer in (*wrong, *right) if _has_extreme_logits(answer)}
    logits = Condition("extreme logits", "with extreme logits", lambda one: id(one) in extreme)
    limit = [size_limit("key_length", max(below), above=True)] if below else []
    return [*fixed, logits, *limit]


def _has_extreme_logits(answer: BatteryAnswer) -> bool:
    scores = read_every_key(answer.exact.core.run)["scores"]
    return bool((scores.abs() > EXTREME).any())


def _common(conditions: Sequence[Condition], observed: Sequence[BatteryAnswer]) -> list[Condition]:
    return [one for one in conditions if all(one.holds(answer.inputs) for answer in observed)]


def _others(common: Sequence[Condition], one: Condition) -> list[Condition]:
    return [other for other in common if other is not one and one.name != other.implies]


def _count(
    observed: Sequence[BatteryAnswer],
    conditions: Sequence[Condition],
    without: Condition | None = None,
) -> int:
    return sum(
        all(one.holds(answer.inputs) for one in conditions)
        and not (without is not None and without.holds(answer.inputs))
        for answer in observed
    )
