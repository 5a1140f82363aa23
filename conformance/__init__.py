"""The conformance harness for multi-head attention.

Importing this package is cheap: torch and the rest are imported when a name is first used, so that
the pytest plugin and ``--help`` stay fast.
"""

from __future__ import annotations

import importlib
import os
import sys

# Not taken from typing, which takes longer to load than all the rest: a Ctrl-C in that time would
# end the command before ``__main__`` can answer it.
TYPE_CHECKING = False

if TYPE_CHECKING:
    from typing import Any

    from ._golden import golden as _golden
    from .adapters.compiled import compiled
    from .adapters.graph import graph
    from .adapters.matrices import with_matrices
    from .adapters.module import module
    from .base.expected import ExpectedFailure
    from .base.geometry import Geometry, multiple_of
    from .base.mistake import Mistake
    from .base.results import Violation
    from .clauses.judging import matches_golden, same_answer
    from .clauses.registry import Clause, Finding, clause
    from .clauses.subject import Subject
    from .declare.candidate import Candidate
    from .declare.decorators import core, fixed_layer, layer, positions
    from .declare.module_caches import Cache
    from .declare.ranks import Ranks
    from .errors import DeclarationError, NonconformanceError, UsageError
    from .models.torch_model import model
    from .oracle.comparison import compare
    from .problems.inputs import Inputs
    from .problems.problem import Problem
    from .problems.space import Space
    from .targets.resolving import load
    from .testing.suites import parametrize, suite
    from .tolerance.contract import Contract, contract_for
    from .tools.judge import Judge, Report, check

    ProjectionWeights = _golden.ProjectionWeights
    Semantics = _golden.Semantics
    STANDARD = _golden.STANDARD

_HOMES = {
    "_golden:golden": "ProjectionWeights STANDARD Semantics",
    "adapters.compiled": "compiled",
    "adapters.graph": "graph",
    "adapters.matrices": "with_matrices",
    "adapters.module": "module",
    "base.expected": "ExpectedFailure",
    "base.geometry": "Geometry multiple_of",
    "base.mistake": "Mistake",
    "base.results": "Violation",
    "clauses.judging": "matches_golden same_answer",
    "clauses.registry": "Clause Finding clause",
    "clauses.subject": "Subject",
    "declare.candidate": "Candidate",
    "declare.decorators": "core fixed_layer layer positions",
    "declare.module_caches": "Cache",
    "declare.ranks": "Ranks",
    "errors": "DeclarationError NonconformanceError UsageError",
    "models.torch_model": "model",
    "targets.resolving": "load",
    "oracle.comparison": "compare",
    "problems.inputs": "Inputs",
    "problems.problem": "Problem",
    "problems.space": "Space",
    "testing.suites": "parametrize suite",
    "tolerance.contract": "Contract contract_for",
    "tools.judge": "Judge Report check",
}
_HOME = {name: home for home, names in _HOMES.items() for name in names.split()}

__all__ = [
    "STANDARD",
    "Cache",
    "Candidate",
    "Clause",
    "Contract",
    "DeclarationError",
    "ExpectedFailure",
    "Finding",
    "Geometry",
    "Inputs",
    "Judge",
    "Mistake",
    "NonconformanceError",
    "Problem",
    "ProjectionWeights",
    "Ranks",
    "Report",
    "Semantics",
    "Space",
    "Subject",
    "UsageError",
    "Violation",
    "check",
    "clause",
    "compare",
    "compiled",
    "contract_for",
    "core",
    "fixed_layer",
    "graph",
    "layer",
    "load",
    "matches_golden",
    "model",
    "module",
    "multiple_of",
    "parametrize",
    "positions",
    "same_answer",
    "suite",
    "with_matrices",
]


def __getattr__(name: str) -> Any:
    """A public name, looked up again each time: pytester's runs forget imported modules.

    A kept class would differ from that of the reloaded modules.
    """
    if name not in _HOME:
        msg = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(msg)
    module_name, _, attribute = _HOME[name].partition(":")
    folder = folder_of_the_script()
    if folder is not None:
        sys.path.remove(folder)
    try:
        home = importlib.import_module(f".{module_name}", __name__)
    finally:
        if folder is not None:
            sys.path.insert(0, folder)
    return getattr(home if not attribute else getattr(home, attribute), name)


def folder_of_the_script() -> str | None:
    """The first entry of Python's path: the script's folder, or the working folder.

    Files beside the script, such as candidates, are no libraries of the harness. None without such
    an entry, or if the harness itself lies in the folder.
    """
    if sys.flags.safe_path or not sys.path:
        return None
    own = __file__.rpartition(os.sep)[0].rpartition(os.sep)[0]
    script = getattr(sys.modules.get("__main__"), "__file__", None)
    try:
        working = os.getcwd()  # noqa: PTH109 (pathlib would be imported, maybe from there)
    except OSError:  # it is gone
        working = ""
    theirs = ["", working] if script is None else ["", working, script.rpartition(os.sep)[0]]
    return sys.path[0] if sys.path[0] in theirs and sys.path[0] != own else None


def __dir__() -> list[str]:
    return sorted(__all__)
