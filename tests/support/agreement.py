"""Whether a tensor of the golden lies within the second formulation's own rounding bounds."""

from __future__ import annotations

from typing import Any

from second_formulation import number
from torch import Tensor


def disagreement(golden: Tensor, second: Any, name: str) -> str:
    """``""`` where every element lies within its bound, else what the first bad element is.

    Both being NaN is agreement, one alone is not. Shapes are compared as far as nested lists say
    them.
    """
    if isinstance(second, list):
        have = list(golden.shape)
        if have[:1] != [len(second)]:
            return f"{name} has shape {have}, not {len(second)} entries"
        entries = zip(golden, second, strict=True)
        reasons = (
            disagreement(first, other, f"{name}[{n}]") for n, (first, other) in enumerate(entries)
        )
        return next((reason for reason in reasons if reason), "")
    if golden.dim() > 0:
        return f"{name} has shape {list(golden.shape)}, not one number"
    reason = _element_disagrees(golden.item(), second)
    return f"{name} {reason}" if reason else ""


def _element_disagrees(got: float, entry: Any) -> str:
    if isinstance(entry, bool):
        return "" if got is entry else f"is {got}, not {entry}"
    exact = number(got).value
    if exact == entry.value or (exact != exact and entry.value != entry.value):  # noqa: PLR0124 (NaN)
        return ""
    difference = float(abs(exact - entry.value))
    if difference <= entry.error:
        return ""
    return f"is {got}, off by {difference:.3g} where rounding allows {entry.error:.3g}"
