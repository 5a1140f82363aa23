"""A statement of what a candidate computes, as a mistake that can be acted out and so checked."""

from __future__ import annotations

from typing import Any, Final

from ..mistakes import NamedMistake

_PRIMARY: Final = "numerics.golden"


def statement(name: str, text: str, fix: str, **steps: Any) -> NamedMistake:
    """The golden with exactly the change that was read; ``name`` is of the form "kind: words"."""
    return NamedMistake(name=name, primary=_PRIMARY, sentence=text, fix=fix, **steps)
