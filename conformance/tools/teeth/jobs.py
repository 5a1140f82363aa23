"""What a worker does with an entry of the catalogue."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from ...base.results import ClauseResult
from ...running.workers.crew import Crew, Hands
from ...running.workers.messages import Loaded
from ...session.judging import judge
from .options import LoadedEntry

# Starting a worker takes as long as some entries.
_ENTRIES_A_WORKER: Final = 8
_CAUGHT_BY: Final = ("MUST", "SHOULD")

Heard = Callable[[LoadedEntry, list[ClauseResult], bool], None]
Said = tuple[list[ClauseResult], bool]


@dataclass(frozen=True, kw_only=True)
class Pace:
    """How a run goes about it: workers, seconds for an answer, and whether one clause is enough."""

    jobs: int
    timeout: float
    first: bool


def run_entries(crew: Crew, loaded: list[LoadedEntry], pace: Pace, heard: Heard) -> None:
    """Run every entry; ``heard`` gets each one's results, and whether they are all of them.

    An entry that an interrupt cuts off is heard of, too. Raises HarnessError when a worker cannot
    go on.
    """

    def do(hands: Hands[Said], index: int) -> None:
        hands.tell(_run(hands, index, loaded[index], first=pace.first))

    crew.work(
        range(len(loaded)),
        do,
        lambda index, said: heard(loaded[index], *said),
        most=-(-len(loaded) // _ENTRIES_A_WORKER),
    )


def entries_of(loaded: list[Loaded]) -> list[LoadedEntry]:
    """The entries of the catalogue among what was loaded: all of it."""
    return [entry for entry in loaded if isinstance(entry, LoadedEntry)]


def _run(hands: Hands[Said], index: int, entry: LoadedEntry, *, first: bool) -> Said:
    """The results of an entry; a mistake that need be caught only once ends with that clause."""
    results: list[ClauseResult] = []
    for result in hands.supervisor.run_candidate(index):
        if hands.stopping():
            return results, False
        judged = judge(result, entry.name, entry.expected if entry.correct else ())
        results.append(judged)
        if first and not entry.correct and catches(judged):
            break
    return results, True


def catches(result: ClauseResult) -> bool:
    """Whether a result catches a mistake: a clause that must or should hold has failed."""
    return result.status == "failed" and result.level in _CAUGHT_BY
