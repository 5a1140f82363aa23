"""The conditions that tell the calls that go wrong from those that do not."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import reduce
from operator import and_
from typing import Final

from ..problems.inputs import Inputs
from .conditions import FINER, Condition, size_limits

# Conditions that all wrong answers may have in common before chance explains it.
MOST_TOGETHER: Final = 2


def telling_apart(made: Sequence[Inputs], spared: Sequence[Inputs]) -> tuple[Condition, ...] | None:
    """The fewest conditions that all inputs of ``made`` meet and none of ``spared`` does together.

    The plainest of equally many; None where no two tell them apart.
    """
    sizes = ([inputs.geometry for inputs in some] for some in (made, spared))
    literals = [each for one in FINER for each in (one, one.negated) if each.words]
    literals += size_limits(*sizes)
    common = [one for one in literals if all(one.holds(inputs) for inputs in made)]
    left = [
        sum(1 << index for index, inputs in enumerate(spared) if one.holds(inputs))
        for one in common
    ]
    chosen = fewest(left, len(spared), MOST_TOGETHER)
    return None if chosen is None else tuple(common[index] for index in chosen)


def fewest(left: Sequence[int], count: int, most: int) -> tuple[int, ...] | None:
    """The fewest of some properties that none of ``count`` things has together, as indices.

    ``left`` holds a number for each property, bit i for the thing i that has it. Of equally many
    the first are taken; None where no ``most`` of them suffice.
    """
    if not count:
        return ()
    plainest: dict[int, int] = {}
    for index, mask in enumerate(left):
        if mask != (1 << count) - 1:
            plainest.setdefault(mask, index)
    masks = list(plainest)
    if masks and _common(masks):
        return None
    for number in range(1, most + 1):
        chosen = min(_excluding(plainest, (1 << count) - 1, number), default=None)
        if chosen is not None:
            return chosen
    return None


def _excluding(plainest: dict[int, int], left: int, number: int) -> Iterator[tuple[int, ...]]:
    """Sets of so many properties that none of the things ``left`` has together, as indices.

    ``plainest`` holds the index of each property by the things that have it.
    """
    if not left:
        yield ()
    elif number:
        first = left & -left  # one of the properties has to exclude it
        for mask, index in plainest.items():
            if not mask & first:
                for others in _excluding(plainest, left & mask, number - 1):
                    yield tuple(sorted((index, *others)))


def _common(masks: Sequence[int]) -> int:
    """The bits that all of some numbers have."""
    return reduce(and_, masks)
