"""How much longer a run takes, judged by what was done so far."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from typing import Final

# Before so many clauses were run, nothing is said.
_LEAST: Final = 5


class Estimate:
    """The clauses that are left, and what each of them took where it was run.

    Clauses differ a hundredfold and candidates much less: a clause that another candidate was asked
    already is expected to take as long, any other one as long as all did on average.
    """

    def __init__(self, slugs: Iterable[str], *, jobs: int = 1) -> None:
        self._left = Counter(slugs)
        self._jobs = jobs
        self._took: dict[str, list[float]] = defaultdict(list)
        self.total = self._left.total()
        self.done = 0

    def heard(self, slug: str, seconds: float) -> None:
        """A clause was run."""
        if self._left[slug]:
            self._left[slug] -= 1
        self._took[slug].append(seconds)
        self.done += 1

    def again(self, slug: str) -> None:
        """A clause that was run will be run once more."""
        self._left[slug] += 1
        self.total += 1

    def seconds(self) -> float | None:
        """The seconds that are left, None where too little was seen."""
        if self.done < _LEAST:
            return None
        means = {slug: sum(took) / len(took) for slug, took in self._took.items()}
        every = [seconds for took in self._took.values() for seconds in took]
        mean = sum(every) / len(every)
        work = sum(many * means.get(slug, mean) for slug, many in self._left.items())
        return work / max(1, min(self._jobs, self._left.total()))
