"""The request for a run: profile, dtypes, the part of one of several machines.

The options for the graphs among its targets belong to it, too.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from ..errors import UsageError, did_you_mean

DTYPES: Final = ("float32", "float64", "float16", "bfloat16")


MOST: Final = 1000
_WRITTEN: Final = re.compile(r"(\d{1,6})/(\d{1,6})", re.ASCII)


@dataclass(frozen=True, kw_only=True)
class Shard:
    """Shard ``index`` of ``count``, counted from 1.

    The examples of a clause have positions 0, 1, 2 … in the order of a run on one machine; the
    positions ``index - 1``, ``index - 1 + count`` … belong to this shard.
    """

    index: int
    count: int

    def owns(self, position: int) -> bool:
        """Whether the example at a position belongs to this shard."""
        return position % self.count == self.index - 1

    def position(self, number: int) -> int:
        """The position of the number-th example of this shard, counted from 0."""
        return self.index - 1 + number * self.count

    def __str__(self) -> str:
        return f"{self.index}/{self.count}"


WHOLE: Final = Shard(index=1, count=1)


def read_shard(text: str) -> Shard:
    """The shard of a text ``I/N``; raises UsageError."""
    written = _WRITTEN.fullmatch(text.strip())
    if written is None:
        msg = f"--shard {text!r} is no shard: write I/N, such as 2/4 for the second of four"
        raise UsageError(msg)
    index, count = int(written[1]), int(written[2])
    if not 1 <= count <= MOST:
        msg = f"--shard {text}: there must be 1 to {MOST} shards"
        raise UsageError(msg)
    if not 1 <= index <= count:
        msg = f"--shard {text}: the shards of {count} are 1/{count} to {count}/{count}"
        raise UsageError(msg)
    return Shard(index=index, count=count)


@dataclass(frozen=True, kw_only=True)
class Profile:
    """``examples`` problems a clause, of lengths up to ``longest``.

    ``reductions`` limits the trials of smaller failing problems, over the whole candidate, and
    ``edges`` the number of hand-picked problems (None: all). Clauses about combinations ask for any
    ``strength`` values of different parameters together, ``turns`` times: from the second time on
    with drawn sizes and values. A profile that ``explores`` goes on with freshly drawn problems,
    round after round, for as long as the run may take. With ``most`` a clause gets at most that
    number of problems, the hand-picked problems first; if a clause has hand-picked problems, none
    is drawn.
    """

    name: str
    examples: int
    longest: int
    reductions: int
    edges: int | None = None
    most: int | None = None
    strength: int = 2
    turns: int = 1
    explores: bool = False


_FULL: Final = Profile(name="full", examples=150, longest=130, reductions=1500, strength=3)
PROFILES: Final[dict[str, Profile]] = {
    "smoke": Profile(name="smoke", examples=2, longest=40, reductions=100, most=2, strength=1),
    "quick": Profile(name="quick", examples=40, longest=40, reductions=400),
    "full": _FULL,
    "thorough": Profile(
        name="thorough", examples=600, longest=513, reductions=6000, strength=3, turns=3
    ),
    "nightly": Profile(
        name="nightly", examples=150, longest=257, reductions=6000, strength=3, explores=True
    ),
    "default": _FULL,  # the name before every entrance had its own default
}
# The profile of whoever names none.
DEFAULT_PROFILE: Final = "quick"


def profile_named(name: Any) -> Profile:
    """The profile of a name; raises UsageError for an unknown name."""
    if not isinstance(name, str) or name not in PROFILES:
        known = [known for known in PROFILES if known == PROFILES[known].name]
        msg = f"there is no profile {name!r}{did_you_mean(str(name), known)}"
        raise UsageError(msg)
    return PROFILES[name]


@dataclass(frozen=True, kw_only=True)
class GraphOptions:
    """The options for the graphs among the targets, and the definition of functions.

    source
        The target of the module from which the graphs were exported.
    state_dict, declaration
        Paths of the file with the module's weights, and of the file with roles and promises.
    definition
        The path of the definition by which functions, no graphs, are declared.
    seconds, memory
        The seconds that a candidate may give no answer, and the bytes that it may take; None
        without a limit of the run.
    """

    source: str | None = None
    state_dict: str | None = None
    declaration: str | None = None
    definition: str | None = None
    seconds: float | None = None
    memory: int | None = None

    def names(self) -> list[str]:
        """The used options for graphs, in their spelling on the command line."""
        options = {
            "--source": self.source,
            "--state-dict": self.state_dict,
            "--declaration": self.declaration,
        }
        return [option for option, value in options.items() if value is not None]

    def record_options(self) -> dict[str, str | None]:
        """The options for the record, from which a replay opens equal candidates."""
        return {
            "source": self.source,
            "state_dict": self.state_dict,
            "declaration": self.declaration,
            **({} if self.definition is None else {"definition": self.definition}),
        }


NO_GRAPH_OPTIONS = GraphOptions()


def read_graph_options(options: Any) -> GraphOptions:
    """The options in the ``beside`` of a record; raises UsageError for anything else."""
    if options is None:
        return NO_GRAPH_OPTIONS
    names = {*NO_GRAPH_OPTIONS.record_options(), "definition"}
    if not isinstance(options, Mapping) or not names >= set(options):
        msg = f"the report's 'beside' is {options!r:.60}: give {', '.join(sorted(names))}"
        raise UsageError(msg)
    for name, value in options.items():
        if value is not None and not isinstance(value, str):
            msg = f"the report's 'beside' has {value!r:.60} as {name}: give a text"
            raise UsageError(msg)
    return GraphOptions(**options)
