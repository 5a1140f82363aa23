"""The conformance harness for multi-head attention.

Importing this package is cheap: torch and the rest are imported when a name is first used, so that
the pytest plugin and ``--help`` stay fast.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ._golden import golden as _golden
    from .adapters.module import module
    from .candidate import Candidate
    from .declare import core, fixed_layer, layer, positions
    from .errors import DeclarationError, UsageError
    from .expected import ExpectedFailure
    from .geometry import Geometry
    from .mistake import Mistake
    from .suites import parametrize, suite
    from .tolerance.contract import Contract, contract_for

    ProjectionWeights = _golden.ProjectionWeights
    Semantics = _golden.Semantics
    STANDARD = _golden.STANDARD

_HOME = {
    "Candidate": "candidate",
    "Contract": "tolerance.contract",
    "DeclarationError": "errors",
    "ExpectedFailure": "expected",
    "Geometry": "geometry",
    "Mistake": "mistake",
    "ProjectionWeights": "_golden:golden",
    "STANDARD": "_golden:golden",
    "Semantics": "_golden:golden",
    "UsageError": "errors",
    "contract_for": "tolerance.contract",
    "core": "declare",
    "fixed_layer": "declare",
    "layer": "declare",
    "module": "adapters.module",
    "parametrize": "suites",
    "positions": "declare",
    "suite": "suites",
}

__all__ = [
    "STANDARD",
    "Candidate",
    "Contract",
    "DeclarationError",
    "ExpectedFailure",
    "Geometry",
    "Mistake",
    "ProjectionWeights",
    "Semantics",
    "UsageError",
    "contract_for",
    "core",
    "fixed_layer",
    "layer",
    "module",
    "parametrize",
    "positions",
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
