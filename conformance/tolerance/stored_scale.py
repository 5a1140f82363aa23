"""The rounding of the logit scale itself, which all scores have in common."""

from __future__ import annotations

import math

from .contract import Contract


def scale_rounding(scale: float, contract: Contract) -> float:
    """The relative error of a scale that is stored in the working dtype in one of the usual forms.

    It may be stored as the number, as its inverse that divides, as the inverse of that inverse, or
    as a root that meets query and key, which counts twice. All of them are exact for a power of
    four. The error is that of the very number: mostly far below its bound, the unit roundoff. The
    accumulator's roundoff is added for the arithmetic with it.
    """
    size = abs(scale)
    if size == 0.0 or not math.isfinite(1.0 / size):
        return contract.accumulator_roundoff
    unit = contract.unit_roundoff
    root = math.sqrt(size)
    forms = (
        rounded(size, unit),
        1.0 / rounded(1.0 / size, unit),
        rounded(1.0 / rounded(1.0 / size, unit), unit),
        rounded(root, unit) ** 2,
        rounded(1.0 / root, unit) ** -2,
    )
    return max(abs(form / size - 1.0) for form in forms) + contract.accumulator_roundoff


def rounded(number: float, unit_roundoff: float) -> float:
    """A positive number to nearest even in a binary format without limits of its exponent.

    A roundoff of zero stands for exact arithmetic.
    """
    if unit_roundoff == 0.0:
        return number
    mantissa, exponent = math.frexp(number)
    return math.ldexp(round(mantissa / unit_roundoff) * unit_roundoff, exponent)
