"""The conditions that tell the calls that go wrong from those that do not."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from typing import Final

from ..problems.inputs import Inputs
from .conditions import FINER, Condition

# Conditions that all wrong answers may have in common before chance explains it.
MOST_TOGETHER: Final = 2


def telling_apart(made: Sequence[Inputs], spared: Sequence[Inputs]) -> tuple[Condition, ...] | None:
    """The fewest conditions that all inputs of ``made`` meet and none of ``spared`` does together.

    The plainest of equally many; None where no two tell them apart.
    """
    if not spared:
        return ()
    literals = [each for one in FINER for each in (one, one.negated) if each.words]
    common = [one for one in literals if all(one.holds(inputs) for inputs in made)]
    left = [{index for index, inputs in enumerate(spared) if one.holds(inputs)} for one in common]
    for count in range(1, MOST_TOGETHER + 1):
        for chosen in combinations(range(len(common)), count):
            if not set.intersection(*(left[index] for index in chosen)):
                return tuple(common[index] for index in chosen)
    return None
