"""Candidates side by side as one self-contained page, in the style of the page of a run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from . import html_margins, html_matrix
from .comparison import Compared, circumstances, compared, conventions, not_asked, sources
from .html import header
from .html_heat import ratio_class
from .html_template import rendered
from .html_words import complete

Record = Mapping[str, Any]

# Candidates that are told side by side in sentences and with plots; of more only signs and numbers.
MOST_TOLD: Final = 6


def render_html(record: Record) -> str:
    """The page; every text of the record is escaped."""
    whole = complete(record)
    clauses = compared(whole)
    return rendered(
        "comparison.html.jinja",
        **header(whole),
        clauses=clauses,
        not_asked=not_asked(clauses),
        different=[clause for clause in clauses if clause.differs],
        conventions=conventions(whole),
        circumstances=circumstances(whole),
        sources=sources(whole),
        matrix=html_matrix.matrix(whole, {}),
        axis=html_margins.axis(whole),
        margins=_by_margin(clauses),
        told=len(whole["candidates"]) <= MOST_TOLD,
        ratio_class=ratio_class,
    )


def _by_margin(clauses: list[Compared]) -> list[Compared]:
    """The clauses that compare numbers, the largest margin first."""
    found = [(clause.worst, clause) for clause in clauses]
    numbers = [(margin, clause) for margin, clause in found if margin is not None]
    ranked = sorted(numbers, key=lambda pair: (pair[0] == pair[0], -pair[0]))
    return [clause for _, clause in ranked]
