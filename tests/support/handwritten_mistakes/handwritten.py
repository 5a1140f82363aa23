"""How hand-written implementations are listed: each with the names that a diagnosis may give."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import conformance
from conformance.clauses.subject import Subject
from conformance.declare.candidate import Candidate
from conformance.diagnosis import diagnose

Function = Callable[..., Any]


@dataclass(frozen=True)
class Handwritten:
    """One implementation, and the names any of which is right; none for what has no name."""

    name: str
    candidate: Candidate
    right: tuple[str, ...]

    def found(self) -> list[str]:
        """The names of its diagnosis."""
        subject = Subject(self.candidate, self.candidate.declaration.dtypes[0])
        return [entry["name"] for entry in diagnose(subject)]


class Collection(list[Handwritten]):
    """Implementations in the order in which they are written down."""

    def core(self, *right: str, **promises: Any) -> Callable[[Function], Function]:
        """List the decorated attention function."""
        return self._lister(conformance.core, right, promises)

    def layer(self, *right: str, **promises: Any) -> Callable[[Function], Function]:
        """List the decorated builder ``(geometry, weights) -> forward``."""
        return self._lister(conformance.layer, right, promises)

    def _lister(
        self, declare: Any, right: tuple[str, ...], promises: dict[str, Any]
    ) -> Callable[[Function], Function]:
        def listed(function: Function) -> Function:
            name = function.__name__
            candidate = declare(name=name, **promises)(function)
            self.append(Handwritten(name, candidate, right))
            return function

        return listed
