"""The counts of a clause's examples and the resulting status; in a shard, a trail of examples.

A shard cannot judge a clause: only all shards together know whether an example binds and which
fails first. :mod:`conformance.session.merging` counts the trails as a single run would.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from ..base.profile import WHOLE, Shard
from ..base.results import Status

if TYPE_CHECKING:
    from ..clauses.registry import Finding

BINDING: Final = "b"
REFUSED: Final = "r"
INAPPLICABLE: Final = "i"
NOTHING: Final = "."


@dataclass(frozen=True, kw_only=True)
class Terms:
    """The facts of a clause and its candidate that decide how examples are counted.

    ``subtle`` clauses without a binding example get no further examples and are excused. A
    candidate whose declared precision hides the difference is excused as well (``excused``).
    """

    counterfactual: str = ""
    subtle: bool = False
    excused: bool = False


@dataclass
class Tally:
    """The counts of the examples of one clause so far.

    ``planned``: examples run if none fails; ``remembered``: examples of a database, run first.
    ``main``: examples a single machine would run; ``margins``: rising margins with example numbers.
    """

    terms: Terms = field(default_factory=Terms)
    shard: Shard = WHOLE
    examples: int = 0
    binding: int = 0
    refused: int = 0
    inapplicable: int = 0
    reason: str = ""
    margin: float | None = None
    planned: int = 0
    main: int = 0
    remembered: int = 0
    failed: bool = False
    signs: str = ""
    margins: list[tuple[int, float]] = field(default_factory=list)

    def add(self, finding: Finding) -> None:
        """Count one example."""
        if self.shard.count > 1:
            self.signs += sign(finding)
        self.examples += 1
        self.binding += finding.binding
        self.refused += finding.refused
        self.inapplicable += bool(finding.inapplicable)
        self.reason = self.reason or finding.inapplicable
        if finding.margin is not None and (self.margin is None or finding.margin > self.margin):
            self.margin = max(0.0, finding.margin)
            self.margins.append((self.examples - 1, self.margin))

    @property
    def is_decided(self) -> bool:
        """Whether the result of the clause needs no further example."""
        return bool(self.terms.subtle or self.binding or self.refused or self.inapplicable)

    @property
    def numbers(self) -> list[int]:
        """The numbers of the main examples that this shard has tried."""
        count = max(0, self.examples - self.remembered)
        numbers = (self.shard.position(number) for number in range(count))
        return [number for number in numbers if number < self.main]

    def outcome(self) -> tuple[Status, str]:
        """Status and reason of a clause none of whose examples failed."""
        if self.refused and self.refused == self.examples:
            return "not-applicable", "it refuses rows without keys, about which it promises nothing"
        if self.inapplicable and self.binding == 0:
            return "not-applicable", self.reason
        if self.binding:
            return "passed", ""
        case = self.terms.counterfactual or "the case it speaks of"
        if self.terms.excused:
            reason = f"at the declared precision no example could show it ({case})"
            return "not-applicable", reason
        return "untestable", f"none of {self.examples} examples could have shown it ({case})"

    def counted(self) -> dict[str, Any]:
        """The counts that the supervisor reports if this process ends now."""
        return {
            "examples": self.examples,
            "binding": self.binding,
            "margin": self.margin,
            "planned": self.planned or None,
            "trail": self.trail(),
        }

    def trail(self) -> dict[str, Any] | None:
        """Return the examples as plain data for a shard; None for a whole run."""
        if self.shard.count == 1:
            return None
        return {
            "signs": self.signs,
            "margins": [[number, margin] for number, margin in self.margins],
            "main": self.main,
            "remembered": self.remembered,
            "failed": self.failed,
            "reason": self.reason,
            "counterfactual": self.terms.counterfactual,
            "subtle": self.terms.subtle,
            "excused": self.terms.excused,
        }


def sign(finding: Finding) -> str:
    """Return one letter for the outcome of an example."""
    if finding.binding:
        return BINDING
    if finding.refused:
        return REFUSED
    return INAPPLICABLE if finding.inapplicable else NOTHING
