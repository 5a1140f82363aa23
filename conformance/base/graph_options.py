"""The options of the command line for graphs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..errors import UsageError


@dataclass(frozen=True, kw_only=True)
class GraphOptions:
    """The options for the graphs among the targets.

    source
        The target of the module that they were exported from.
    state_dict, declaration
        Paths of the file with its weights, and of the file that declares roles and promises.
    seconds, memory
        How long a candidate of the run may give no answer, and how many bytes it may take; None
        where the run does not say.
    """

    source: str | None = None
    state_dict: str | None = None
    declaration: str | None = None
    seconds: float | None = None
    memory: int | None = None

    def names(self) -> list[str]:
        """The options that were used, as they are spelled."""
        options = {
            "--source": self.source,
            "--state-dict": self.state_dict,
            "--declaration": self.declaration,
        }
        return [option for option, value in options.items() if value is not None]

    def beside(self) -> dict[str, str | None]:
        """What a record keeps, so that a replay opens the same."""
        return {
            "source": self.source,
            "state_dict": self.state_dict,
            "declaration": self.declaration,
        }


NO_GRAPH_OPTIONS = GraphOptions()


def read_graph_options(options: Any) -> GraphOptions:
    """The options in the ``beside`` of a record; raises UsageError for anything else."""
    if options is None:
        return NO_GRAPH_OPTIONS
    names = set(NO_GRAPH_OPTIONS.beside())
    if not isinstance(options, Mapping) or not names >= set(options):
        msg = f"the report's 'beside' is {options!r:.60}: give {', '.join(sorted(names))}"
        raise UsageError(msg)
    for name, value in options.items():
        if value is not None and not isinstance(value, str):
            msg = f"the report's 'beside' has {value!r:.60} as {name}: give a text"
            raise UsageError(msg)
    return GraphOptions(**options)
