"""The file and line of a candidate, and its expected failures, for reports."""

from __future__ import annotations

import ast
import functools
import inspect
import sys
import tokenize
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from ..base.expected import ExpectedFailure, Place
from ..base.files import path_in_repository, user_path
from ..declare.candidate import Candidate
from .target_strings import defined_names, is_graph, is_path, split_site, split_target

_HARNESS: Final = Path(__file__).resolve().parent.parent

FileAndLine = tuple[Path, int | None]


def whereabouts(candidate: Candidate) -> dict[str, Any] | None:
    """``{"file": …, "line": …}`` of the object that a candidate wraps, else of its target's object.

    The file's path starts at the root of its repository, with slashes, as services that show a
    repository expect; outside of any repository at the working folder, elsewhere the path is whole.
    The line is None for a graph, or if unknown. None without a file, as in a console.
    """
    result = candidate.eager or candidate
    place = _of_graph(result.target) or _of_object(result.function) or _of_target(result.target)
    if place is None:
        return None
    path, line = place
    return {"file": path_in_repository(path), "line": line}


def _of_graph(target: str) -> FileAndLine | None:
    return (user_path(split_site(target)[0]), None) if is_graph(target) else None


def _of_object(value: Any) -> FileAndLine | None:
    """File and line of a function or a class; None for the harness' own, which wrap the user's."""
    try:
        result = inspect.unwrap(value)
        while isinstance(result, functools.partial):
            result = result.func
        if not (inspect.isroutine(result) or inspect.isclass(result)):
            result = type(result)
        path = Path(inspect.getsourcefile(result) or "").resolve()
        line = inspect.getsourcelines(result)[1]
    except Exception:  # noqa: BLE001 (the user's object may answer anything: the target still tells)
        return None
    return (path, max(line, 1)) if path.is_file() and not path.is_relative_to(_HARNESS) else None


def _of_target(target: str) -> FileAndLine | None:
    """The place that binds the object of a target, else the target's file."""
    try:
        where, name = split_target(split_site(target)[0])
        file = where if is_path(where) else str(sys.modules[where].__file__)
        path = user_path(file)
        path = path / "__init__.py" if path.is_dir() else path
        return (path, _line_of(path, name)) if path.is_file() else None
    except Exception:  # noqa: BLE001 (a target that a plugin resolves, a file that is not Python)
        return None


def _line_of(path: Path, name: str | None) -> int | None:
    """The line that defines, assigns or imports a name first."""
    with tokenize.open(path) as file:
        tree = ast.parse(file.read())
    wanted = (name or "").partition(".")[0]
    statements = (node for node in ast.walk(tree) if isinstance(node, ast.stmt))
    lines = [node.lineno for node in statements if wanted in _bound(node)]
    return min(lines, default=None)


def _bound(node: ast.stmt) -> set[str]:
    if isinstance(node, (ast.Import, ast.ImportFrom)):
        return {alias.asname or alias.name for alias in node.names}
    return defined_names(node)


def declared_expectations(candidate: Candidate) -> tuple[ExpectedFailure, ...]:
    """The expected failures of a declaration, each with the place of its source."""
    entries = candidate.declaration.expected_failures
    if not entries:
        return ()
    place = _place(candidate, whereabouts(candidate))
    return tuple(replace(entry, place=entry.place or place) for entry in entries)


def _place(candidate: Candidate, location: Mapping[str, Any] | None) -> Place:
    """The line of the declaration, or the candidate's name where it has no source."""
    if location is None or location["line"] is None:
        return Place(file=f"the declaration of {candidate.name} ({candidate.target})")
    return Place(file=str(location["file"]), line=int(location["line"]))
