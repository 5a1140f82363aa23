"""An undeclared function with the parameters of a public one, judged as that documents itself."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from itertools import islice
from typing import Any, Final

from ..adapters.module import assuming
from ..base.record import Reading
from ..calls.calling import CandidateFailure
from ..clauses.registry import all_clauses
from ..clauses.subject import Subject
from ..declare.candidate import Candidate
from ..declare.decorators import core
from ..declare.signatures import SIGNATURES, signature_by_parameters
from ..errors import DeclarationError
from ..problems.edges import edges_in_turn
from ..problems.problem import Problem

_UNFITTING: Final = "shape.rejects-mismatch"
# So many problems show how the axes of its heads lie, and what its refusals do.
_PROBLEMS: Final = 16


def read_by_signature(function: Callable[..., Any], target: str) -> Candidate | None:
    """The function as the public one that it has the parameters of.

    None where there is none, or where its answers to calls without options are not those.
    """
    name = signature_by_parameters(function)
    if not name:
        return None
    promised = SIGNATURES[name].promises.get("arrays", "torch")
    for arrays in dict.fromkeys((promised, "torch")):
        promises: dict[str, Any] = {"signature": name, "arrays": arrays}
        try:
            candidate = core(**promises)(function)
        except DeclarationError:
            continue
        if _violated(candidate, "numerics.golden", _is_plain):
            continue
        if _violated(candidate, _UNFITTING):
            accepted = {_UNFITTING: "it leaves it to its caller that shapes fit"}
            candidate = core(**promises, expected_failures=accepted)(function)
        said = f"its parameters are those of {name}: taken at the word of {SIGNATURES[name].source}"
        read = dataclasses.replace(candidate, target=target, reading=Reading())
        return assuming(read, said)
    return None


def _is_plain(problem: Problem) -> bool:
    """Whether a call passes no option, and has several heads and keys to tell apart."""
    sizes = problem.geometry
    options = (problem.scale, problem.softcap, problem.window, problem.causal or None)
    several = min(sizes.num_heads, sizes.key_length, sizes.query_length) > 1
    return several and all(option is None for option in options)


def _violated(
    candidate: Candidate, slug: str, asks: Callable[[Problem], bool] = lambda _problem: True
) -> bool:
    """Whether some of the first problems of a clause violate it."""
    clause = next(one for one in all_clauses() if one.id == slug)
    subject = Subject(candidate, "float32")
    asked = filter(asks, edges_in_turn(candidate, clause.space, dtype="float32"))
    for drawn in islice(asked, _PROBLEMS):
        try:
            if clause.check(subject, clause.problem_for(subject, drawn)).violation is not None:
                return True
        except CandidateFailure:
            return True
    return False
