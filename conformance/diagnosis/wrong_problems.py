"""Which problems go wrong: what all of them have in common that right ones lack."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

from ..tolerance import model
from .agreement import BatteryAnswer
from .conditions import CONDITIONS, Condition, size_limit
from .mistaken_answer import declared_with_every_key
from .mistakes.named_mistake import DeclaredCall
from .narrowing import in_words, telling_apart

# Wrong answers, and right ones that differ from them in one condition, before that is blamed.
FEWEST_WRONG: Final = 3
FEWEST_RIGHT: Final = 3
# Logits beyond it have exponentials that overflow float16.
EXTREME: Final = math.log(65504.0)


def which_go_wrong(
    facts: dict[str, Any],
    observed: Sequence[BatteryAnswer],
    wrong: Sequence[BatteryAnswer],
    further: Sequence[BatteryAnswer],
) -> str:
    """How many problems go wrong, and what those have in common that right ones lack.

    Nothing is said that ``further`` answers, which it was not read from, contradict.
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
        text += f", only those {in_words(only)}"
    if never:
        text += f", none {' or '.join(one.words for one in never)}"
    return text


def _deciding(
    wrong: Sequence[BatteryAnswer],
    fine: Sequence[BatteryAnswer],
    further: Sequence[BatteryAnswer],
) -> tuple[Condition, ...]:
    """The conditions that tell wrong problems from right ones, of plain sizes such as odd numbers.

    They hold for wrong ``further`` answers as well, of several sizes, and not for all right ones.
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
    """The conditions without which answers are right, as far as the answers show it.

    A condition counts where every wrong answer has it, and so many right ones lack it that share
    all else that the wrong ones have in common that chance does not explain it: what nearly every
    problem has explains nothing.
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
    """The conditions with which answers are right, though all else is as in the wrong ones."""
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
        # Two forms of mask exclude each other: one is right because the other is absent.
        and not any(other.implies and other.implies == one.implies for other in common)
    ]
    kept = {one.name for one in (*sparing, *common)}
    return [one for one in sparing if one.implies not in kept]


def _told(wrong: int, comparable: int, right: int) -> bool:
    """Whether a condition decides: all answers on one side of it are right, and enough of them.

    On the other side some are wrong, and ``comparable`` ones are right: if the condition decided
    nothing, as large a part would be wrong among the ``right`` ones.
    """
    if wrong < FEWEST_WRONG or right < FEWEST_RIGHT:
        return False
    chance: float = (comparable / (wrong + comparable)) ** right
    return chance <= model.COINCIDENCE


def _spoken(wrong: Sequence[BatteryAnswer], right: Sequence[BatteryAnswer]) -> list[Condition]:
    """The conditions that facts are about: with the number of keys up to which all is right."""
    fixed = [one for one in CONDITIONS if one.name != "many keys"]
    least = min((answer.inputs.geometry.key_length for answer in wrong), default=0)
    below = [n for answer in right if (n := answer.inputs.geometry.key_length) < least]
    extreme = {id(answer.inputs) for answer in (*wrong, *right) if _has_extreme_logits(answer)}
    logits = Condition("extreme logits", "with extreme logits", lambda one: id(one) in extreme)
    limit = [size_limit("key_length", max(below), above=True)] if below else []
    return [*fixed, logits, *limit]


def _has_extreme_logits(answer: BatteryAnswer) -> bool:
    """Whether some dot product times the scale is far from zero, be its key hidden or not."""
    call = DeclaredCall(inputs=answer.inputs, semantics=answer.subject.declaration.semantics)
    core = declared_with_every_key(answer.exact, call)
    scores = core.scale * core.query @ core.key.mT
    return bool((scores.abs() > EXTREME).any())


def _common(conditions: Sequence[Condition], observed: Sequence[BatteryAnswer]) -> list[Condition]:
    """The conditions that all answers share."""
    return [one for one in conditions if all(one.holds(answer.inputs) for answer in observed)]


def _others(common: Sequence[Condition], one: Condition) -> list[Condition]:
    """The other shared conditions, but for those that hold only where this one does."""
    return [other for other in common if other is not one and one.name != other.implies]


def _count(
    observed: Sequence[BatteryAnswer],
    conditions: Sequence[Condition],
    without: Condition | None = None,
) -> int:
    """How many problems meet every condition, and lack the one that is left out."""
    return sum(
        all(one.holds(answer.inputs) for one in conditions)
        and not (without is not None and without.holds(answer.inputs))
        for answer in observed
    )
