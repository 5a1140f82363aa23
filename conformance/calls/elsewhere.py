"""How calls hear of what became of a candidate in a process of its own."""

from __future__ import annotations

from ..base.results import Violation


class CandidateLost(Exception):  # noqa: N818 (the candidate's fault: it hung, or ended its process)
    """The candidate's process is gone; ``kind`` is ``hung`` or ``crashed``."""

    def __init__(self, message: str, *, kind: str = "crashed") -> None:
        super().__init__(message)
        self.kind = kind


class RaisedElsewhere(Exception):  # noqa: N818 (it is the candidate that raised)
    """The candidate raised in its process."""

    def __init__(self, violation: Violation) -> None:
        super().__init__(violation.message)
        self.violation = violation
