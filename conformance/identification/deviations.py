"""Deviations from the standard: deliberate choices, and probable mistakes.

The declaration promises the standard in place of a probable mistake, and keeps the observation in
comments: a promise of the mistake would make the mistake conform.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final

from .._golden import golden
from ..declare.module_caches import Cache
from ..diagnosis.mistakes import (
    MISTAKES,
    DeclaredCall,
    NamedMistake,
    mistaken_conventions,
    named_mistakes,
)
from ..diagnosis.mistakes.named_mistake import asked_otherwise
from ..tolerance.model import SAME_FACTOR
from .agreement import Probed
from .convention import ScoreFunction, written
from .record import Findings
from .signature import CallParameter, Parameters

_BIASES: Final = {"q": "query_bias", "v": "value_bias", "o": "output_bias"}
# GPT-2 and BERT fill masked logits with -10000, a float16 number: a choice, no mistake.
_FILL_OF_OLD: Final = -1e4
# The clause of the mistakes with a wrong scale.
_SCALES: Final = "numerics.scale"
# Unavoidable choices are no deviations.
_UNAVOIDABLE: Final = ("causal_alignment", "empty_rows")


@dataclass(frozen=True, kw_only=True)
class Deviation:
    """One difference from the standard.

    ``observed`` is the wording of a declaration, ``text`` the meaning, ``fix`` the remedy.
    ``mistaken`` marks a probable mistake. ``clause`` names the failing clause if no field of a
    declaration can express the deviation, else "".
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
    """The effect of a causal flag.

    ``gives`` is the flag's causal value, as source. ``readings`` are the points that fit: several
    if lengths are always equal, none if ``why`` describes another effect. ``idle``: the flag
    changes no answer.
    """

    parameter: CallParameter
    gives: str
    readings: tuple[golden.Semantics, ...]
    why: str = ""
    evidence: str = ""
    idle: bool = False


@dataclass(kw_only=True)
class Investigation(Probed):
    """The results of probing an implementation so far.

    ``caller`` has every understood keyword, ``promises`` the arguments of the declaration,
    ``expected`` the expected failures, ``beyond`` the findings that no declaration can express.
    ``other_readings`` say how undeclared masks treat a hidden key, ``observed`` are deviations that
    no field of ``point`` holds, ``unchecked`` the understood but undeclared masks, ``unread`` the
    masks that are not understood. ``idle`` is a mask that hides nothing if no mask does,
    ``idle_flag`` a causal flag without effect. ``as_observed``: probable mistakes are promised,
    too. ``held`` are fields of ``point`` that count as mistakes if the catalogue has a mistake with
    their value. ``promises_idle``: an idle mask and an idle flag are promised to work as their
    names say. ``cache`` is a module's own cache, as far as it is found.
    """

    parameters: Parameters
    findings: Findings
    promises: dict[str, Any] = field(default_factory=dict)
    features: list[str] = field(default_factory=list)
    expected: list[tuple[str, str]] = field(default_factory=list)
    beyond: list[str] = field(default_factory=list)
    other_readings: list[golden.Semantics] = field(default_factory=list)
    observed: list[Deviation] = field(default_factory=list)
    unchecked: list[str] = field(default_factory=list)
    unread: list[str] = field(default_factory=list)
    idle: str = ""
    idle_flag: Causality | None = None
    as_observed: bool = False
    held: frozenset[str] = frozenset()
    promises_idle: bool = True
    cache: Cache | None = None


def without_effect(name: str, text: str, fix: str) -> Deviation:
    """The deviation of a parameter with the name of a mask that hides no key."""
    return Deviation(observed=f"{name} changes nothing", text=text, fix=fix, mistaken=True)


def deviations(case: Investigation) -> list[Deviation]:
    """Every difference from the standard, the probable mistakes first."""
    changed = golden.STANDARD.differences(case.point)
    mistakes = _mistakes(case)
    listed = [
        Deviation(
            observed=change_words(mistake.changes),
            text=mistake.sentence,
            fix=mistake.fix,
            mistaken=True,
        )
        for mistake in mistakes
    ]
    mistaken = {name for mistake in mistakes for name in mistake.changes}
    listed += case.observed
    for name, (_, value) in changed.items():
        if name in mistaken or name in _UNAVOIDABLE:
            continue
        named = next(
            (mistake for mistake in MISTAKES if dict(mistake.changes) == {name: value}), None
        )
        text = named.sentence if named else _field_words(name, value)
        fix = named.fix if named else ""
        unmeant = _unmeant(value)
        one = change_words({name: value})
        listed.append(
            Deviation(observed=one, text=unmeant or text, fix=fix, mistaken=bool(unmeant))
        )
    return sorted(listed, key=lambda one: not one.mistaken)


def _unmeant(value: Any) -> str:
    return value.mistake if isinstance(value, ScoreFunction) else ""


def promised(case: Investigation) -> golden.Semantics:
    """The point to declare: the standard in place of probable mistakes."""
    if case.as_observed:
        return case.point
    fields = {name for mistake in _mistakes(case) for name in mistake.changes}
    fields |= {"score_mod"} if _unmeant(case.point.score_mod) else set()
    return case.point.replace(**{name: getattr(golden.STANDARD, name) for name in fields})


def expected(case: Investigation) -> list[tuple[str, str]]:
    """The failures that the declaration expects; those of mistakes only if these are promised."""
    observed = [deviation for deviation in case.observed if deviation.clause and case.as_observed]
    return [*case.expected, *((deviation.clause, deviation.text) for deviation in observed)]


def _mistakes(case: Investigation) -> list[NamedMistake]:
    unused = {
        name
        for role, name in _BIASES.items()
        if role in case.caller.biases and not getattr(case.point, name)
    }
    lost = [
        mistake for mistake in MISTAKES if mistake.only_a_point and set(mistake.changes) <= unused
    ]
    changed = golden.STANDARD.differences(case.point)
    held = [
        mistake
        for mistake in MISTAKES
        if mistake.changes
        and {*mistake.changes} <= case.held
        and all(name in changed and changed[name][1] == v for name, v in mistake.changes.items())
    ]
    conventions = [
        mistake for mistake in mistaken_conventions(case.point) if not _is_fill_of_old(mistake)
    ]
    scales = _mistaken_scales(case)
    named = [*conventions, *scales, *held, *(mistake for mistake in lost if mistake.changes)]
    return list({mistake.name: mistake for mistake in named}.values())


def _mistaken_scales(case: Investigation) -> Iterator[NamedMistake]:
    """The mistakes that produce the point's scale, if the scale is a number by no rule.

    None for a power of two times the standard, as people choose it (Tian et al. 2024, VAR: 1/4):
    one head size cannot tell the factor from a mistaken size.
    """
    if not isinstance(case.point.scale, float):
        return
    inputs, changes = case.caller.draw(), {"scale": case.point.scale}
    if case.point.scale > 0.0:
        exponent = math.log2(case.point.scale * inputs.geometry.head_size**0.5)
        if abs(exponent - round(exponent)) <= SAME_FACTOR:
            return
    call = DeclaredCall(inputs=inputs, semantics=golden.STANDARD)
    for mistake in named_mistakes():
        if mistake.primary != _SCALES or not mistake.where(inputs):
            continue
        scale = asked_otherwise(call, mistake.edits).inputs.scale
        room = SAME_FACTOR * abs(case.point.scale)
        if scale not in (None, 1.0) and abs(scale - case.point.scale) <= room:
            yield replace(mistake, changes=changes)


def _is_fill_of_old(mistake: NamedMistake) -> bool:
    """Whether a mistake is a finite mask fill that published models were trained with."""
    fill = mistake.changes.get("mask_fill")
    return fill is not None and fill <= _FILL_OF_OLD


def _field_words(name: str, value: Any) -> str:
    if isinstance(value, ScoreFunction):
        return value.words
    return f"{name.replace('_', ' ')} is {value!r}"


def change_words(changes: Any) -> str:
    """Fields of the semantics with their values, as a declaration writes them."""
    return ", ".join(f"{name}={_value_words(value)}" for name, value in changes.items())


def _value_words(value: Any) -> str:
    if isinstance(value, ScoreFunction):
        return value.expression
    return written(value) if isinstance(value, float) else repr(value)


_NOT_SEEN: Final = "the answers do not depend on it"


def leave_out_unseen(case: Investigation) -> None:
    """Mark axes, scale and softmax as undetermined if no answer depends on them."""
    inputs = case.caller.draw()
    if not inputs.is_layer and not case.sees(inputs, inputs.with_tokens(value=-inputs.value)):
        case.findings.undetermined("axes", "the answers do not depend on the values")
    for name, changes in (("scale", {"scale": 0.25}), ("softmax", {"softmax_axis": "query"})):
        if not case.sees(inputs, **changes):
            case.findings.undetermined(name, _NOT_SEEN)


def leave_out_unseen_groups(case: Investigation) -> None:
    """Mark the order of key/value heads as undetermined if no answer depends on the order."""
    inputs = case.caller.draw({"num_heads": 6, "num_kv_heads": 2})
    if not any(case.sees(inputs, group_order=order) for order in ("repeat", "tile")):
        case.findings.undetermined("groups", _NOT_SEEN)
