"""What problems may have in common: the words for where a mistake shows, and where it does not."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from ..base.geometry import Geometry
from ..problems.inputs import Inputs
from .battery import BatteryAnswer
from .mistakes._steps import (
    has_cache,
    has_causal,
    has_mask,
    has_scale,
    has_sinks,
    has_softcap,
    has_window,
)

# Right answers that differ from the wrong ones in one condition, before that condition is blamed.
FEWEST_RIGHT: Final = 3
MANY_KEYS: Final = 64


@dataclass(frozen=True)
class Condition:
    """A property that inputs have or lack.

    ``words`` follow "only". ``implies`` names a condition that holds wherever this one does.
    """

    name: str
    words: str
    holds: Callable[[Inputs], bool]
    implies: str = ""


def _of_form(form: str, words: str) -> Condition:
    return Condition(form, words, lambda inputs: inputs.mask_form == form, implies="mask")


def _of_sizes(
    name: str, words: str, holds: Callable[[Geometry], bool], implies: str = ""
) -> Condition:
    return Condition(name, words, lambda inputs: holds(inputs.geometry), implies)


CONDITIONS: Final[tuple[Condition, ...]] = (
    Condition("mask", "with a mask", has_mask),
    _of_form("keep", "with a mask of what to keep"),
    _of_form("drop", "with a mask of what to drop"),
    _of_form("keep_int", "with an integer mask"),
    _of_form("bias", "with an additive mask"),
    _of_form("lengths", "with lengths"),
    Condition("causal", "with the causal flag", has_causal),
    Condition("scale", "with a scale of the call", has_scale),
    Condition("softcap", "with a softcap", has_softcap),
    Condition("window", "with a window", has_window),
    Condition("sinks", "with sinks", has_sinks),
    Condition("cache", "with cached keys", has_cache),
    _of_sizes("several heads", "with several heads", lambda sizes: sizes.num_heads > 1),
    _of_sizes(
        "grouped heads",
        "where heads share keys and values",
        lambda sizes: sizes.num_kv_heads < sizes.num_heads,
        implies="several heads",
    ),
    _of_sizes("several items", "with several batch items", lambda sizes: sizes.batch > 1),
    _of_sizes(
        "many keys",
        f"with more than {MANY_KEYS} keys",
        lambda sizes: sizes.key_length > MANY_KEYS,
    ),
    _of_sizes(
        "unequal lengths",
        "with more or fewer keys than queries",
        lambda sizes: sizes.query_length != sizes.key_length,
    ),
    _of_sizes(
        "more queries",
        "with more queries than keys",
        lambda sizes: sizes.query_length > sizes.key_length,
        implies="unequal lengths",
    ),
)


def only_with(wrong: Sequence[BatteryAnswer], right: Sequence[BatteryAnswer]) -> list[Condition]:
    """The conditions without which answers are right, as far as the answers show it.

    A condition counts where every wrong answer has it, and enough right ones lack it that share
    all else that the wrong ones have in common: what nearly every problem has explains nothing.
    """
    common = _common(wrong)
    needed = [
        one for one in common if _count(right, _others(common, one), without=one) >= FEWEST_RIGHT
    ]
    implied = {one.implies for one in needed}
    return [one for one in needed if one.name not in implied]


def never_with(wrong: Sequence[BatteryAnswer], right: Sequence[BatteryAnswer]) -> list[Condition]:
    """The conditions with which answers are right, though all else is as in the wrong ones."""
    common = _common(wrong)
    sparing = [
        one
        for one in CONDITIONS
        if not any(one.holds(answer.inputs) for answer in wrong)
        and _count(right, [*_others(common, one), one]) >= FEWEST_RIGHT
        # Two forms of mask exclude each other: one is right because the other is absent.
        and not any(other.implies and other.implies == one.implies for other in common)
    ]
    kept = {one.name for one in (*sparing, *common)}
    return [one for one in sparing if one.implies not in kept]


def _common(observed: Sequence[BatteryAnswer]) -> list[Condition]:
    """The conditions that all answers share."""
    return [one for one in CONDITIONS if all(one.holds(answer.inputs) for answer in observed)]


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
