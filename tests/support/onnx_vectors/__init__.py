"""The node tests of the installed onnx as questions to the golden.

``collected`` finds the vectors, ``asked`` says each in the golden's words, one item of a batch at a
time, ``answered`` evaluates them with the bound of the vectors' dtype. Nothing of the golden is
made from them: they only check it.
"""

from .answered import Expected, expectations
from .asked import Question, questions
from .collected import Vector, expanded_vectors, vectors

__all__ = [
    "Expected",
    "Question",
    "Vector",
    "expanded_vectors",
    "expectations",
    "questions",
    "vectors",
]
