"""Pictures of what binds: a problem of a clause, and what its counterfactual would change."""

from __future__ import annotations

from .evidence import PICTURED, Evidence, described, evidence
from .svg import Panel, draw

__all__ = ["PICTURED", "Evidence", "Panel", "described", "draw", "evidence", "picture"]


def picture(slug: str) -> str:
    """The picture of a clause as SVG; the same for the same clause and golden.

    Raises LookupError for a clause of which no problem of a picture's size binds.
    """
    return described(evidence(slug))
