"""The names of the compiled forms of a candidate: see :mod:`conformance.adapters.compiled`."""

from __future__ import annotations

from typing import Final

# By torch.compile's ``dynamic``.
SUFFIXES: Final = {None: " (compiled)", True: " (compiled, dynamic)"}


def names_compiled(name: str) -> bool:
    """Whether a name is that of a compiled form."""
    return name.endswith(tuple(SUFFIXES.values()))
