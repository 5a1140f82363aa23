"""Judge an undeclared function by the public signature whose parameters it has."""

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

# The number of problems that show the order of a function's axes.
_PROBLEMS: Final = 16


def public_signature(function: Callable[..., Any]) -> tuple[str, Candidate] | None:
    """The matching public signature and the function as a candidate declared by that signature.

    None if no signature matches, or if answers to calls without options violate the documentation.
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
        if not _violated(candidate, "numerics.golden", _is_plain):
            return name, candidate
    return None


def read_by_signature(function: Callable[..., Any], target: str) -> Candidate | None:
    """An undeclared function, declared by its public signature; None if no signature matches."""
    found = public_signature(function)
    if found is None:
        return None
    name, candidate = found
    said = f"its parameters are those of {name}: taken at the word of {SIGNATURES[name].source}"
    return assuming(dataclasses.replace(candidate, target=target, reading=Reading()), said)


def _is_plain(problem: Problem) -> bool:
    sizes = problem.geometry
    options = (problem.scale, problem.softcap, problem.window, problem.causal or None)
    several = min(sizes.num_heads, sizes.key_length, sizes.query_length) > 1
    return several and all(option is None for option in options)


def _violated(candidate: Candidate, slug: str, asks: Callable[[Problem], bool]) -> bool:
    clause = next(one for one in all_clauses() if one.id == slug)
    subject = Subject(candidate, "float32")
    asked = filter(asks, edges_in_turn(candidate, clause.space, dtype="float32"))
    for problem in islice(asked, _PROBLEMS):
        try:
            if clause.check(subject, problem).violation is not None:
                return True
        except CandidateFailure:
            return True
    return False
