"""The options of a run of the catalogue, and its entries: plain data without torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from ...running.workers.messages import Loaded, RunOptions

LOADER: Final = "conformance.tools.teeth.jobs:plan_teeth"
REPOSITORY: Final = "candidates.broken"


@dataclass(frozen=True, kw_only=True)
class TeethOptions(RunOptions):
    """Which mistakes and which correct candidates, everything a worker needs to start over.

    ``targets`` name mistakes; without any it is the whole catalogue: the shipped mistakes, those of
    installed distributions and, in a checkout of the repository, ``candidates.broken``.
    ``correct`` names further correct candidates; the others run beside the whole catalogue only.
    ``mistakes`` and ``not_mistakes`` are globs of names. Without ``thorough`` the many correct
    candidates of the repository are left out.
    """

    correct: tuple[str, ...] = ()
    thorough: bool = True
    mistakes: tuple[str, ...] = ()
    not_mistakes: tuple[str, ...] = ()
    preflight: bool = False
    loader: str = LOADER

    @property
    def whole(self) -> bool:
        """Whether it is the whole catalogue that is run."""
        return not (self.targets or self.mistakes or self.not_mistakes)


@dataclass(frozen=True, kw_only=True)
class LoadedEntry(Loaded):
    """A mistake, or a correct candidate, as the record needs it; its primary clause comes first."""

    sentence: str
    fix: str
    primary: str
    also: tuple[str, ...]
    origin: str
    correct: bool
