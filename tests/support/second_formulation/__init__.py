"""Multi-head attention once more: scalar loops over 50-digit numbers, for checking the golden.

It shares no code with ``reference`` and uses no tensors. It is written from the docstring of
``Semantics``, takes nested lists and returns nested lists of ``Number``: the exact value together
with how far float64 arithmetic may lie from it. A point of ``Semantics`` comes in as any object
that has its fields.
"""

from .core import Answer, Problem, Sizes, attention
from .heads import leaning, relative_positions
from .layer import LayerAnswer, LayerProblem, Matrices, layer
from .numbers import DIGITS, UNIT_ROUNDOFF, Number, digits, number, perturbed
from .positions import rotated, sinusoidal_positions

__all__ = [
    "DIGITS",
    "UNIT_ROUNDOFF",
    "Answer",
    "LayerAnswer",
    "LayerProblem",
    "Matrices",
    "Number",
    "Problem",
    "Sizes",
    "attention",
    "digits",
    "layer",
    "leaning",
    "number",
    "perturbed",
    "relative_positions",
    "rotated",
    "sinusoidal_positions",
]
