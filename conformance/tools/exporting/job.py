"""What the worker does for ``conformance export-check``: opens the module, exports it, tries it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from torch import nn

from ...adapters.graph import Besides, graph_candidate
from ...adapters.source import source_of
from ...errors import UsageError
from ...graphs.validation import read_header
from ...running.workers.messages import Loaded, RunOptions
from ...targets.loading import guarded
from .asking import Asking, ask, described
from .exporter import NotExported, export, require_exporter
from .opening import keep_source, load_kept, module_of

Tell = Callable[[str, str], None]


@dataclass(frozen=True)
class Exportable:
    """A module that is to be exported, with no clause to run."""

    target: str
    module: nn.Module

    def loaded(self) -> Loaded:
        """The same as plain data."""
        return Loaded(
            name=type(self.module).__name__,
            target=self.target,
            kind="module",
            declaration={},
            gauge="",
            deviations=(),
            expected=(),
            tasks=(),
        )

    @cached_property
    def asking(self) -> Asking:
        """How it is called; raises UsageError."""
        asking: Asking = guarded(
            f"{self.target} cannot be called", lambda: ask(self.module, self.target)
        )
        return asking


def modules_of(options: RunOptions, tell: Tell = lambda _what, _name: None) -> list[Exportable]:
    """The module that each target names; raises UsageError with one sentence."""
    require_exporter()
    found = []
    for target in options.targets:
        tell("loading", target)
        found.append(Exportable(target, module_of(target)))
    return found


def prepare(thing: Exportable, folder: str, tell: Tell) -> dict[str, Any]:
    """Find out how the module is called, and keep it beside its graphs to come."""
    tell("asking", thing.target)
    inputs = described(thing.asking)
    return {"inputs": inputs, "source": str(keep_source(thing.target, thing.module, Path(folder)))}


def export_one(thing: Exportable, wanted: dict[str, Any], tell: Tell) -> dict[str, Any]:
    """Export the module once and read the graph; what goes wrong is the ``reason``."""
    path = Path(wanted["path"])
    outcome = {"verdict": "", "reason": "", "opset": None}
    tell("exporting", path.name)
    load_kept(thing.module, path.parent)  # a worker that was lost has built another one
    try:
        export(thing.asking, wanted["exporter"], wanted["opset"], path)
    except NotExported as error:
        if error.unsupported:
            return {**outcome, "verdict": "unsupported", "reason": str(error)}
        return {**outcome, "verdict": "not-exported", "reason": f"cannot be exported: {error}"}
    tell("reading", path.name)
    try:
        opset = read_header(path).opsets.get("")
        read = graph_candidate(path, Besides(source=source_of(thing.module, thing.target)))
    except UsageError as error:
        return {**outcome, "verdict": "not-read", "reason": f"cannot be read: {error}"}
    if read.graph is not None:
        read.graph.process.close()
    return {**outcome, "opset": opset}
