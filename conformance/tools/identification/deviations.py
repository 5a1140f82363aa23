"""Where what was found differs from the standard: what others choose, and what only mistakes do.

The declaration promises the standard in place of a probable mistake, and keeps what was observed in
comments: a promise of it would turn the mistake into something that conforms.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Final

from ..._golden import golden
from ...diagnosis.mistakes import MISTAKES, NamedMistake, mistaken_conventions
from .agreement import Judge
from .box import Box
from .record import Findings
from .signature import Parameter, Parameters

_BIASES: Final = {"q": "query_bias", "v": "value_bias", "o": "output_bias"}
# Choices that every implementation has to make: no deviation.
_ANYONES: Final = ("causal_alignment", "empty_rows")


@dataclass(frozen=True, kw_only=True)
class Deviation:
    """One difference from the standard.

    ``observed`` is what a declaration of it would say, ``text`` what it means and ``fix`` what to
    do. ``mistaken`` says that nobody chooses it on purpose. ``clause`` is the clause that fails for
    it where no field of a declaration can say it, else "".
    """

    observed: str
    text: str
    fix: str
    mistaken: bool
    clause: str = ""

    def as_json(self) -> dict[str, Any]:
        """Plain data for the record."""
        return asdict(self)


@dataclass(frozen=True, kw_only=True)
class Causality:
    """What the flag does.

    ``gives`` is its value that is causal, as source. ``readings`` are the points that fit, several
    where no lengths tell them apart. ``idle`` says that answers are those without the flag.
    """

    parameter: Parameter
    gives: str
    readings: tuple[golden.Semantics, ...]
    why: str = ""
    evidence: str = ""
    idle: bool = False

    @property
    def works(self) -> bool:
        """Whether the flag makes attention causal in a known way."""
        return bool(self.readings)

    @property
    def alignment(self) -> str:
        """The alignment of the first reading."""
        return self.readings[0].causal_alignment


@dataclass(kw_only=True)
class Case:
    """What is known of a thing while it is probed: its box grows with every keyword understood.

    ``promises`` are the arguments of the declaration, ``expected`` the failures to be expected
    under it, ``beyond`` what no declaration can say, ``other_readings`` what masks that are
    left out of the declaration do to a hidden key. ``observed`` are deviations that no field of
    ``point`` holds; ``unchecked`` are masks that are understood and in no promise, ``idle`` is one
    that hides nothing where none does, ``idle_flag`` such a causal flag; ``as_observed`` asks for
    a declaration that promises probable mistakes, too.
    """

    box: Box
    parameters: Parameters
    judge: Judge
    point: golden.Semantics
    found: Findings
    promises: dict[str, Any] = field(default_factory=dict)
    features: list[str] = field(default_factory=list)
    expected: list[tuple[str, str]] = field(default_factory=list)
    beyond: list[str] = field(default_factory=list)
    other_readings: list[golden.Semantics] = field(default_factory=list)
    observed: list[Deviation] = field(default_factory=list)
    unchecked: list[str] = field(default_factory=list)
    idle: str = ""
    idle_flag: Causality | None = None
    as_observed: bool = False


def deviations(case: Case) -> list[Deviation]:
    """Every difference, the probable mistakes first."""
    changed = golden.STANDARD.differences(case.point)
    mistakes = _mistakes(case)
    found = [
        Deviation(observed=_said(one.changes), text=one.sentence, fix=one.fix, mistaken=True)
        for one in mistakes
    ]
    known = {name for one in mistakes for name in one.changes}
    found += case.observed
    for name, (_, value) in changed.items():
        if name in known or name in _ANYONES:
            continue
        named = next((one for one in MISTAKES if dict(one.changes) == {name: value}), None)
        text = named.sentence if named else f"{name.replace('_', ' ')} is {value!r}"
        fix = named.fix if named else ""
        found.append(Deviation(observed=_said({name: value}), text=text, fix=fix, mistaken=False))
    return found


def promised(case: Case) -> golden.Semantics:
    """The point that is declared: the standard in place of what only mistakes do."""
    if case.as_observed:
        return case.point
    fields = {name for one in _mistakes(case) for name in one.changes}
    return case.point.replace(**{name: getattr(golden.STANDARD, name) for name in fields})


def expected(case: Case) -> list[tuple[str, str]]:
    """The failures that the declaration expects: those of mistakes only where they are promised."""
    told = [(one.clause, one.text) for one in case.observed if one.clause and case.as_observed]
    return [*case.expected, *told]


def _mistakes(case: Case) -> list[NamedMistake]:
    """What only mistakes do, at the point that was found."""
    unused = {
        name
        for role, name in _BIASES.items()
        if role in case.box.biases and not getattr(case.point, name)
    }
    lost = [one for one in MISTAKES if one.only_a_point and set(one.changes) <= unused]
    return [*mistaken_conventions(case.point), *(one for one in lost if one.changes)]


def _said(changes: Any) -> str:
    return ", ".join(
        f"{name}={value:.9g}" if isinstance(value, float) else f"{name}={value!r}"
        for name, value in changes.items()
    )
