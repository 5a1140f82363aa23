"""The conformance harness for multi-head attention.

Importing this package is cheap: torch and the rest are imported when a name is first used, so that
the pytest plugin and ``--help`` stay fast.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ._golden import golden as _golden
    from .adapters.compiled import compiled
    from .adapters.graph import graph
    from .adapters.module import module
    from .candidate import Candidate
    from .clauses._vocabulary import matches_golden, same_answer
    from .comparison import compare
    from .declare import core, fixed_layer, layer, positions
    from .errors import DeclarationError, UsageError
    from .expected import ExpectedFailure
    from .geometry import Geometry
    from .inputs import Inputs
    from .mistake import Mistake
    from .problem import Problem
    from .registry import Clause, Finding, clause
    from .results import Violation
    from .space import Space
    from .subject import Subject
    from .suites import parametrize, suite
    from .tolerance.contract import Contract, contract_for

    ProjectionWeights = _golden.ProjectionWeights
    Semantics = _golden.Semantics
    STANDARD = _golden.STANDARD

_HOME = {
    "Candidate": "candidate",
    "Clause": "registry",
    "Contract": "tolerance.contract",
    "DeclarationError": "errors",
    "ExpectedFailure": "expected",
    "Finding": "registry",
    "Geometry": "geometry",
    "Inputs": "inputs",
    "Mistake": "mistake",
    "Problem": "problem",
    "ProjectionWeights": "_golden:golden",
    "STANDARD": "_golden:golden",
    "Semantics": "_golden:golden",
    "Space": "space",
    "Subject": "subject",
    "UsageError": "errors",
    "Violation": "results",
    "clause": "registry",
    "compare": "comparison",
    "compiled": "adapters.compiled",
    "contract_for": "tolerance.contract",
    "core": "declare",
    "fixed_layer": "declare",
    "graph": "adapters.graph",
    "layer": "declare",
    "matches_golden": "clauses._vocabulary",
    "module": "adapters.module",
    "parametrize": "suites",
    "positions": "declare",
    "same_answer": "clauses._vocabulary",
    "suite": "suites",
}

__all__ = [
    "STANDARD",
    "Candidate",
    "Clause",
    "Contract",
    "DeclarationError",
    "ExpectedFailure",
    "Finding",
    "Geometry",
    "Inputs",
    "Mistake",
    "Problem",
    "ProjectionWeights",
    "Semantics",
    "Space",
    "Subject",
    "UsageError",
    "Violation",
    "clause",
    "compare",
    "compiled",
    "contract_for",
    "core",
    "fixed_layer",
    "graph",
    "layer",
    "matches_golden",
    "module",
    "parametrize",
    "positions",
    "same_answer",
    "suite",
]


def __getattr__(name: str) -> Any:
    """A public name, looked up anew each time: pytester's runs forget modules that they imported.

    What was kept here would make candidates of a class that the reloaded rest does not know.
    """
    if name not in _HOME:
        msg = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(msg)
    module_name, _, attribute = _HOME[name].partition(":")
    home = importlib.import_module(f".{module_name}", __name__)
    return getattr(home if not attribute else getattr(home, attribute), name)


def __dir__() -> list[str]:
    return sorted(__all__)
