"""What the clauses about ONNX graphs share."""

from __future__ import annotations

from ..candidate import Candidate


def is_graph(candidate: Candidate) -> str:
    """Why a candidate is no ONNX graph, or ""."""
    return "" if candidate.graph is not None else "it is no ONNX graph"
