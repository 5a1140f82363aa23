"""What was found, as data: facts with their evidence, and the record that holds them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from ...base.results import plain
from ...session.report import GREEN

# What a written declaration is checked with.
CHECK_PROFILE: Final = "quick"
_MOST_FAILURES: Final = 8
_LONGEST: Final = 140
CERTAIN: Final = "certain"
LIKELY: Final = "likely"
UNDETERMINED: Final = "undetermined"


@dataclass(frozen=True, kw_only=True)
class Fact:
    """One thing that was asked, the answer in words and as a value, and what speaks for it.

    ``confidence`` is ``certain`` where an answer of the thing is within the bound of one reading
    and of no other, ``likely`` where probes support it without such a bound, ``undetermined`` where
    ``found`` says why nothing is known.
    """

    name: str
    found: str
    evidence: str
    value: Any = None
    confidence: str = CERTAIN

    def as_json(self) -> dict[str, Any]:
        """Plain data for the record."""
        record: dict[str, Any] = plain(
            {
                "fact": self.name,
                "found": self.found,
                "value": self.value,
                "evidence": self.evidence,
                "confidence": self.confidence,
            }
        )
        return record


@dataclass(kw_only=True)
class Findings:
    """The facts found so far, in order; a later one of a name replaces the earlier."""

    facts: dict[str, Fact] = field(default_factory=dict)

    def add(
        self, name: str, found: str, evidence: str, value: Any = None, confidence: str = CERTAIN
    ) -> None:
        """Take a fact down."""
        self.facts[name] = Fact(
            name=name, found=found, evidence=evidence, value=value, confidence=confidence
        )

    def undetermined(self, name: str, why: str) -> None:
        """Take down that, and why, a thing is not known."""
        self.add(name, f"undetermined ({why})", "", None, UNDETERMINED)

    def value(self, name: str) -> Any:
        """The value of a fact, None where there is none."""
        return self.facts[name].value if name in self.facts else None

    def as_json(self) -> list[dict[str, Any]]:
        """All facts as plain data."""
        return [fact.as_json() for fact in self.facts.values()]


def deviations_words(count: int) -> str:
    """How many probable mistakes there are, "" where there is none."""
    if not count:
        return ""
    if count == 1:
        return "1 deviation from the standard, probably a mistake"
    return f"{count} deviations from the standard, probably mistakes"


def check_lines(record: Mapping[str, Any]) -> list[str]:
    """What ``check`` says of the declaration, line by line; nothing where it was not asked."""
    checked = record.get("check")
    if checked is None:
        return []
    head = f"conformance check --profile {CHECK_PROFILE} says of this: {checked['verdict']}"
    if checked["verdict"] in GREEN:
        return [f"{head}, {checked['reason']}"]
    mistaken = any(one.get("mistaken") for one in record.get("deviations", ()))
    why = (
        "as the deviations above let expect, since the standard is promised"
        if mistaken and not record.get("as_observed")
        else "so this is what it does wrong, or what identify does not know of it"
    )
    lines = [f"{head} ({why})."]
    shown = checked["failed"][:_MOST_FAILURES]
    lines += [f"- {one['clause']}: {shortened(one['message'])}" for one in shown]
    more = len(checked["failed"]) - _MOST_FAILURES
    if more > 0:
        lines.append(f"- and {more} more")
    if not checked["failed"]:
        lines.append(f"- {shortened(checked['reason'])}")
    return lines


def shortened(message: str) -> str:
    """A message as one line that fits."""
    line = " ".join(message.split())
    return line if len(line) <= _LONGEST else f"{line[:_LONGEST]}…"
