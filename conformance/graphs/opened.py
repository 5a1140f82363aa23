"""A graph that is ready to be judged: file, process, roles, weights and source together."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from .header import Header
from .process import GraphProcess, Setting
from .reading import Reading
from .told import Told
from .weighing import Found


@dataclass(frozen=True, kw_only=True, eq=False)
class OpenedGraph:
    """What the clauses ``export.*`` and blame ask.

    forward
        ``forward(setting)`` gives the candidate's forward under other settings of the runtime.
    source
        The eager forward that the graph was exported from, None where nobody named it;
        ``exported`` the same of the exported program.
    """

    header: Header
    told: Told
    process: GraphProcess
    reading: Reading
    found: Found
    forward: Callable[[Setting], Callable[..., Any]]
    source: Callable[..., Any] | None = None
    exported: Callable[..., Any] | None = None
    lacking: tuple[str, ...] = ()
    notes: dict[str, str] = field(default_factory=dict)
