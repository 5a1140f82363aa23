"""Records with real failures: a core that reads its mask the wrong way round, and a right one."""

from __future__ import annotations

import functools
from typing import Any

from examples import CLAUSES, core, run_clause
from records import loaded
from torch import Tensor
from view_records import record

from conformance.base.results import ClauseResult
from conformance.declare.candidate import Candidate
from conformance.session.report import candidate_entry

SLUGS = ("mask.golden", "shape.output")
SENTENCES = {slug: clause.sentence for slug, clause in CLAUSES.items()}


def inverted(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    """A core that attends to what its mask hides."""
    if "keep" in options:
        options["keep"] = ~options["keep"]
    answer: Tensor = core()(query, key, value, **options)
    return answer


@functools.cache
def results(name: str) -> tuple[ClauseResult, ...]:
    """What some clauses say of a candidate, each failure with its smallest input."""
    candidates: dict[str, Candidate] = {
        "inverted": core(inverted, masks=["keep"], features=[]),
        "right": core(masks=["keep"], features=[]),
    }
    return tuple(run_clause(candidates[name], slug, examples=10, explain=True) for slug in SLUGS)


def entry(name: str, shown: str = "") -> dict[str, Any]:
    """The entry of one of these candidates."""
    loaded_candidate = loaded(shown or name, declaration={"masks": ["keep"], "causal": None})
    return candidate_entry(loaded_candidate, list(results(name)), SENTENCES)


@functools.cache
def _failing() -> dict[str, Any]:
    return record(entry("inverted"), entry("right"))


def failing() -> dict[str, Any]:
    """The record of a run over both cores."""
    return {**_failing()}
