"""The options of the command line for graphs."""

from __future__ import annotations

import dataclasses
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
    """

    source: str | None = None
    state_dict: str | None = None
    declaration: str | None = None

    def names(self) -> list[str]:
        """The options that were used, as they are spelled."""
        options = {
            "--source": self.source,
            "--state-dict": self.state_dict,
            "--declaration": self.declaration,
        }
        return [option for option, value in options.items() if value is not None]


NO_GRAPH_OPTIONS = GraphOptions()


def read_graph_options(options: Any) -> GraphOptions:
    """The options in the ``beside`` of a record; raises UsageError for anything else."""
    if options is None:
        return NO_GRAPH_OPTIONS
    names = {field.name for field in dataclasses.fields(GraphOptions)}
    if not isinstance(options, Mapping) or not names >= set(options):
        msg = f"the report's 'beside' is {options!r:.60}: give {', '.join(sorted(names))}"
        raise UsageError(msg)
    for name, value in options.items():
        if value is not None and not isinstance(value, str):
            msg = f"the report's 'beside' has {value!r:.60} as {name}: give a text"
            raise UsageError(msg)
    return GraphOptions(**options)
