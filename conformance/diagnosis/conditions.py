"""What problems may have in common: the words for where a mistake shows, and where it does not."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from ..problems.inputs import Inputs
from .battery import Seen

# Right answers that differ from the wrong ones in one thing, before that thing is blamed.
FEWEST_RIGHT: Final = 3
MANY_KEYS: Final = 64


@dataclass(frozen=True, kw_only=True)
class Condition:
    """Something that inputs have or lack.

    ``words`` say it behind "only". ``implies`` names conditions that hold wherever this one does.
    """

    name: str
    words: str
    holds: Callable[[Inputs], bool]
    implies: tuple[str, ...] = ()


def _of_form(form: str, words: str) -> Condition:
    return Condition(
        name=form, words=words, holds=lambda inputs: inputs.mask_form == form, implies=("mask",)
    )


CONDITIONS: Final[tuple[Condition, ...]] = (
    Condition(name="mask", words="with a mask", holds=lambda inputs: inputs.masked),
    _of_form("keep", "with a mask of what to keep"),
    _of_form("drop", "with a mask of what to drop"),
    _of_form("keep_int", "with an integer mask"),
    _of_form("bias", "with an additive mask"),
    _of_form("lengths", "with lengths"),
    Condition(name="causal", words="with the causal flag", holds=lambda inputs: inputs.causal),
    Condition(
        name="scale",
        words="with a scale of the call",
        holds=lambda inputs: inputs.scale is not None,
    ),
    Condition(
        name="softcap", words="with a softcap", holds=lambda inputs: inputs.softcap is not None
    ),
    Condition(name="window", words="with a window", holds=lambda inputs: inputs.window is not None),
    Condition(name="sinks", words="with sinks", holds=lambda inputs: inputs.sinks is not None),
    Condition(name="cache", words="with cached keys", holds=lambda inputs: inputs.past > 0),
    Condition(
        name="several heads",
        words="with several heads",
        holds=lambda inputs: inputs.geometry.num_heads > 1,
    ),
    Condition(
        name="grouped heads",
        words="where heads share keys and values",
        holds=lambda inputs: inputs.geometry.num_kv_heads < inputs.geometry.num_heads,
        implies=("several heads",),
    ),
    Condition(
        name="several items",
        words="with several batch items",
        holds=lambda inputs: inputs.geometry.batch > 1,
    ),
    Condition(
        name="many keys",
        words=f"with more than {MANY_KEYS} keys",
        holds=lambda inputs: inputs.geometry.key_length > MANY_KEYS,
    ),
    Condition(
        name="unequal lengths",
        words="with more or fewer keys than queries",
        holds=lambda inputs: inputs.geometry.query_length != inputs.geometry.key_length,
    ),
    Condition(
        name="more queries",
        words="with more queries than keys",
        holds=lambda inputs: inputs.geometry.query_length > inputs.geometry.key_length,
        implies=("unequal lengths",),
    ),
)


def only_with(wrong: Sequence[Seen], right: Sequence[Seen]) -> list[Condition]:
    """The conditions without which answers are right, as far as the answers show it.

    A condition counts where every wrong answer has it, and enough right ones lack it that share
    all else that the wrong ones have in common: what nearly every problem has explains nothing.
    """
    common = [one for one in CONDITIONS if _all_have(one, wrong)]
    found = [
        one for one in common if _count(right, _others(common, one), without=one) >= FEWEST_RIGHT
    ]
    implied = {name for one in found for name in one.implies}
    return [one for one in found if one.name not in implied]


def never_with(wrong: Sequence[Seen], right: Sequence[Seen]) -> list[Condition]:
    """The conditions with which answers are right, though all else is as in the wrong ones."""
    common = [one for one in CONDITIONS if _all_have(one, wrong)]
    names = {one.name for one in common}
    found = [
        one
        for one in CONDITIONS
        if not any(one.holds(seen.inputs) for seen in wrong)
        and _count(right, [*_others(common, one), one]) >= FEWEST_RIGHT
        # Two forms of mask exclude each other: one is right because the other is not given.
        and not any(other.implies and other.implies == one.implies for other in common)
    ]
    kept = {one.name for one in found} | names
    return [one for one in found if not kept & set(one.implies)]


def _all_have(condition: Condition, observed: Sequence[Seen]) -> bool:
    return all(condition.holds(seen.inputs) for seen in observed)


def _others(common: Sequence[Condition], one: Condition) -> list[Condition]:
    """What is shared beside a condition; what implies the condition cannot be had without it."""
    return [other for other in common if other is not one and one.name not in other.implies]


def _count(
    observed: Sequence[Seen], conditions: Sequence[Condition], without: Condition | None = None
) -> int:
    """How many problems meet every condition, and lack the one that is left out."""
    return sum(
        all(one.holds(seen.inputs) for one in conditions)
        and not (without is not None and without.holds(seen.inputs))
        for seen in observed
    )
