"""Finds the line of a user's function that makes a mistake, proven by computed values.

``recording`` notes every operation of one call with its line, ``steps`` holds the values of a right
and a mistaken computation, and ``finder`` compares them and draws the conclusion.
"""

from .finder import LineFinder, telling

__all__ = ["LineFinder", "telling"]
