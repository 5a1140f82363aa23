"""Turn targets into candidates; undeclared code is read first."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

from ..base.profile import NO_GRAPH_OPTIONS, GraphOptions
from ..declare.candidate import Candidate
from ..errors import UsageError
from ..targets.preflight import check_layer
from ..targets.resolving import Resolved, Undeclared, candidates_of, find, unique_names


def resolve(targets: Iterable[str]) -> list[Candidate]:
    """Every candidate that the targets name, under unique names.

    Raises UsageError with one sentence for a missing target, a failing import, an object beyond
    judgement, or a contradiction between object and declaration.
    """
    candidates = unique_names([result for target in targets for result in resolve_one(target)])
    for candidate in candidates:
        check_layer(candidate)
    return candidates


def resolve_one(target: str, graph_options: GraphOptions = NO_GRAPH_OPTIONS) -> list[Candidate]:
    """The candidates of one target, their layers not yet built; raises UsageError."""
    return list(_opened(find(target, graph_options)))


def open_object(value: Any, shown: str) -> list[Candidate]:
    """The candidates in an object, from its call, or from its reading; raises UsageError."""
    return list(_opened(entry.located(target) for entry, target in candidates_of(value, shown)))


def _opened(entries: Iterable[Resolved]) -> Iterator[Candidate]:
    for entry in entries:
        if isinstance(entry, Candidate):
            yield entry
        else:
            yield from _read(entry)


def _read(entry: Undeclared) -> list[Candidate]:
    """The candidates read from undeclared code, with notes about missing parts of its file."""
    from .undeclared import read_undeclared  # noqa: PLC0415 (onnx: only what is undeclared)

    try:
        read = read_undeclared(entry)
    except UsageError as error:
        untold = [note for note in entry.notes if note not in str(error)]
        if not untold:
            raise
        msg = f"{'; '.join(untold)}; {error}"
        raise UsageError(msg) from error
    return [replace(one, warnings=(*one.warnings, *entry.notes)) for one in read]
