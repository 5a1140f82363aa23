"""The golden reference, loaded from this distribution whatever the user's path holds.

Users' repositories have packages named ``reference`` too, and pytest puts them first on the path.
So the golden is loaded from the folder next to this package under a private name; ``import
reference`` in the user's code still finds the user's own.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import ModuleType

    import reference as golden

_PRIVATE_NAME = "_attention_conformance_reference"


def _load() -> ModuleType:
    if _PRIVATE_NAME in sys.modules:
        return sys.modules[_PRIVATE_NAME]
    folder = Path(__file__).resolve().parent.parent / "reference"
    spec = importlib.util.spec_from_file_location(
        _PRIVATE_NAME, folder / "__init__.py", submodule_search_locations=[str(folder)]
    )
    if spec is None or spec.loader is None or not (folder / "__init__.py").is_file():
        msg = f"no golden reference in {folder}: reinstall attention-conformance"
        raise ImportError(msg)
    module = importlib.util.module_from_spec(spec)
    sys.modules[_PRIVATE_NAME] = module
    spec.loader.exec_module(module)
    return module


if not TYPE_CHECKING:
    golden = _load()

__all__ = ["golden"]
