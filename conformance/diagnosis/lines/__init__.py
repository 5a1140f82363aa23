"""The line of a user's function that makes a mistake, where the values it computes prove which.

``recording`` notes every operation of one call with its line, ``steps`` are the values that a right
and a mistaken computation pass through, and tell whether an operation's result is one of them,
``choice`` draws the conclusion, and ``finder`` asks all of this of a candidate.
"""

from .finder import LineFinder, telling

__all__ = ["LineFinder", "telling"]
