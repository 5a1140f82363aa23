"""What is raised where weights cannot be read from a graph."""

from __future__ import annotations


class UnreadableError(Exception):
    """The structure is not one that weights can be read from; the message says why."""
