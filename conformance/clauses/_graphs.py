"""What the clauses about ONNX graphs share."""

from __future__ import annotations

from ..declare.candidate import Candidate


def is_graph(candidate: Candidate) -> str:
    """As an ONNX graph.

    Gives the reason why a candidate is none, or "".
    """
    return "" if candidate.graph is not None else "it is no ONNX graph"
