"""A candidate from a second copy of its code, which has made no calls."""

from __future__ import annotations

import importlib.util
import sys
from types import ModuleType

from ..declare.candidate import Candidate
from ..errors import UsageError
from .loading import guarded
from .resolving import candidates_in, object_of
from .target_strings import split_target


def loaded_anew(candidate: Candidate) -> Candidate | None:
    """The same candidate, of a copy of its module that was executed just now.

    What its code keeps of earlier calls is not there, but for what other modules keep of them. None
    where its code is not to run in this process, and where no copy can be made or told.
    """
    runs_here = not (candidate.isolated or candidate.graph is not None)
    if not runs_here or candidate.of_model or candidate.eager is not None or not candidate.target:
        return None
    try:
        where, name = split_target(candidate.target)
        module = object_of(where)
        copy = _executed_again(module) if isinstance(module, ModuleType) else None
        found = [] if copy is None else [one for one, _ in candidates_in(copy, where, name)]
    except UsageError:
        return None
    names = (candidate.name, candidate.first_name)
    found = [one for one in found if one.kind == candidate.kind]
    same = found if len(found) == 1 else [one for one in found if one.name in names]
    return same[0] if len(same) == 1 else None


def _executed_again(module: ModuleType) -> ModuleType | None:
    """A second copy of a module, known by its name only while it is executed."""
    spec = module.__spec__
    if spec is None or spec.loader is None:
        return None
    loader, copy = spec.loader, importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = copy
    try:
        guarded(f"{spec.name} cannot be executed again", lambda: loader.exec_module(copy))
    finally:
        sys.modules[spec.name] = module
    return copy
