"""Deviations from the standard: choices that people make, and what only mistakes do.

The declaration promises the standard in place of a probable mistake, and keeps the observation in
comments: a promise of it would turn the mistake into something that conforms.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Final

from ..._golden import golden
from ...diagnosis.mistakes import MISTAKES, NamedMistake, mistaken_conventions
from .agreement import Judge
from .caller import Caller
from .record import Findings
from .signature import CallParameter, Parameters

_BIASES: Final = {"q": "query_bias", "v": "value_bias", "o": "output_bias"}
# Choices that every implementation has to make: no deviation.
_ANYONES: Final = ("causal_alignment", "empty_rows")


@dataclass(frozen=True, kw_only=True)
class Deviation:
    """One difference from the standard.

    ``observed`` is what a declaration of it would say, ``text`` what it means and ``fix`` what to
    do. ``mistaken`` says that nobody chooses it on purpose. ``clause`` is the clause that fails
    for it where no field of a declaration can say it, else "".
    """

    observed: str
    text: str
    fix: str
    mistaken: bool
    clause: str = ""

    def as_json(self) -> dict[str, Any]:
        """PlainReading data for the record."""
        return asdict(self)


@dataclass(frozen=True, kw_only=True)
class Causality:
    """What a causal flag does.

    ``gives`` is its value that is causal, as source. ``readings`` are the points that fit: several
    where lengths are always equal, none where ``why`` says what happens instead. ``idle`` says that
    answers are those without the flag.
    """

    parameter: CallParameter
    gives: str
    readings: tuple[golden.Semantics, ...]
    why: str = ""
    evidence: str = ""
    idle: bool = False


@dataclass(kw_only=True)
class Investigation:
    """The results of probing an implementation so far.

    ``caller`` has every keyword that is understood, ``promises`` the arguments of the declaration,
    ``expected`` the failures to expect under it, ``beyond`` what no declaration can say.
    ``other_readings`` are what masks that are left out of the declaration do to a hidden key,
    ``observed`` deviations that no field of ``point`` holds, ``unchecked`` masks that are
    understood and in no promise. ``idle`` is a mask that hides nothing where none does,
    ``idle_flag`` such a causal flag. With ``as_observed`` probable mistakes are promised, too.
    """

    caller: Caller
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


def without_effect(name: str, text: str, fix: str) -> Deviation:
    """A parameter that looks like it hides keys and hides none."""
    return Deviation(observed=f"{name} changes nothing", text=text, fix=fix, mistaken=True)


def deviations(case: Investigation) -> list[Deviation]:
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


def promised(case: Investigation) -> golden.Semantics:
    """The point that is declared: the standard in place of what only mistakes do."""
    if case.as_observed:
        return case.point
    fields = {name for one in _mistakes(case) for name in one.changes}
    return case.point.replace(**{name: getattr(golden.STANDARD, name) for name in fields})


def expected(case: Investigation) -> list[tuple[str, str]]:
    """The failures that the declaration expects: those of mistakes only where they are promised."""
    observed = [one for one in case.observed if one.clause and case.as_observed]
    return [*case.expected, *((one.clause, one.text) for one in observed)]


def _mistakes(case: Investigation) -> list[NamedMistake]:
    """The mistakes of the catalogue at the point that fits."""
    unused = {
        name
        for role, name in _BIASES.items()
        if role in case.caller.biases and not getattr(case.point, name)
    }
    lost = [one for one in MISTAKES if one.only_a_point and set(one.changes) <= unused]
    return [*mistaken_conventions(case.point), *(one for one in lost if one.changes)]


def _said(changes: Any) -> str:
    return ", ".join(
        f"{name}={value:.9g}" if isinstance(value, float) else f"{name}={value!r}"
        for name, value in changes.items()
    )
