"""What becomes of a graph that gives no answer."""

from __future__ import annotations


class GraphRefused(Exception):  # noqa: N818 (the graph's fault: the runtime said no)
    """The runtime refused to open or to run the graph; the child lives on."""


class GraphLost(Exception):  # noqa: N818 (the graph's fault: it hung, or killed its process)
    """The child that ran the graph is gone; ``kind`` is ``hung`` or ``crashed``.

    The next run starts a new child.
    """

    def __init__(self, message: str, *, kind: str) -> None:
        super().__init__(message)
        self.kind = kind
