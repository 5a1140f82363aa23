"""The node tests of the installed onnx as questions to the golden.

``collected`` finds the vectors, ``items`` turns each into calls of the golden, one for each item of
its batch, ``answered`` evaluates them with the bound of the vectors' dtype. Nothing of the golden
is made from them: they only check it.
"""

from .answered import Expected, expectations
from .collected import Vector, expanded_vectors, vectors
from .items import Question, questions

__all__ = [
    "Expected",
    "Question",
    "Vector",
    "expanded_vectors",
    "expectations",
    "questions",
    "vectors",
]
