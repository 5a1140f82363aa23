"""Makes the numbers of a small failing problem plainer: zeros, ones and small integers.

After the sizes: whole tensors first, then single elements, for as long as the same failure is seen.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

from ..base.tables import MOST_ELEMENTS
from ..problems.problem import Overrides, Problem

LARGEST_INTEGER = 3
# The mask of kept keys: hiding more of them would leave rows without any.
KEPT = "keep"
Values = tuple[float, ...]


def simplify_values(
    problem: Problem,
    drawn: dict[str, Values],
    still_fails: Callable[[Problem], bool],
    *,
    tries: int,
) -> tuple[Problem, int]:
    """The problem with the plainest values found that still fail, and how many were tried.

    ``drawn`` are the values of the tensors that may be replaced, in row-major order. More than 64
    of them stay as they are: nobody reads so many one by one.
    """
    if sum(map(len, drawn.values())) > MOST_ELEMENTS:
        return problem, 0
    search = _Search(problem, drawn, still_fails, tries)
    for name, values in drawn.items():
        search.take_first(name, _plainer_wholes(name, values))
    for name, values in drawn.items():
        for place in range(len(values)):
            search.take_first(name, _plainer_at(name, search.values[name], place))
    return search.best, search.used


class _Search:
    """The plainest failing problem so far."""

    def __init__(
        self,
        problem: Problem,
        drawn: dict[str, Values],
        still_fails: Callable[[Problem], bool],
        tries: int,
    ) -> None:
        self.best = problem
        self.values = dict(drawn)
        self.used = 0
        self._still_fails = still_fails
        self._tries = tries

    def take_first(self, name: str, proposals: Iterator[Values]) -> None:
        """Go on with the first proposal for a tensor with which the problem fails."""
        overrides = self.best.overrides or Overrides(seed=self.best.seed)
        for values in proposals:
            if values == self.values[name]:
                return  # what follows is less plain than what there is
            if self.used >= self._tries:
                return
            self.used += 1
            plainer = self.best.replace(overrides=overrides.replace(name, values))
            if self._still_fails(plainer):
                self.best = plainer
                self.values[name] = values
                return


def _plainer_wholes(name: str, values: Values) -> Iterator[Values]:
    """All zeros, all ones, small integers; a mask of nothing but kept keys."""
    if name != KEPT:
        yield (0.0,) * len(values)
    yield (1.0,) * len(values)
    if not all(value == round_small(value) for value in values):
        yield tuple(map(round_small, values))


def _plainer_at(name: str, values: Values, place: int) -> Iterator[Values]:
    """One element zero, one, or a small integer; of a mask one more key kept."""
    for plain in (0.0, 1.0, round_small(values[place])) if name != KEPT else (1.0,):
        yield (*values[:place], plain, *values[place + 1 :])


def round_small(value: float) -> float:
    """The nearest integer of at most three in size; infinities and NaN stay what they are."""
    if not math.isfinite(value):
        return value
    return float(max(-LARGEST_INTEGER, min(LARGEST_INTEGER, round(value))))
