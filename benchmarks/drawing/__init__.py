"""The figures of docs/ that are no clause's picture, each a function that returns SVG."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from . import attention, terminal, tolerance

FIGURES: Final[Mapping[str, Callable[[], str]]] = {
    "causal-alignments": attention.causal_alignments,
    "failing-kernel": terminal.failing_kernel,
    "positions": attention.positions,
    "tokens-reordered": attention.tokens_reordered,
    "tolerance-margins": tolerance.margins,
    "tolerance-parts": tolerance.parts,
    "tolerance-power": tolerance.power,
}
