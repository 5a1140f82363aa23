"""Probe flags other than causality: the effect of the other value on a plain call."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from .agreement import PointJudge
from .behaviour import repeats
from .caller import Caller, Refusal
from .deviations import change_words
from .plain_reading import PlainReading, Weights, observe, read_further, read_plain
from .record import placed
from .signature import CallParameter, Parameters

if TYPE_CHECKING:
    from .deviations import Investigation


Options = tuple[tuple[str, str], ...]
FLIPPED: Final = {"True": "False", "False": "True"}
# Meanings with separate probes and without effect on the output.
_PROBED_ELSEWHERE: Final = ("weights", "average", "gqa")
# Values that may mean "no cap".
_NO_CAP: Final = ("None", "0.0")


def plain_options(parameters: Parameters, needed: Options) -> list[Options]:
    """The options to try in a plain call, the likeliest first; all contain ``needed``.

    First with causality and dropout turned off, since a plain call has neither; then unchanged;
    then with single further switches off, and with all switches off.
    """
    preset = {name for name, _ in needed}
    entries = [
        entry for entry in parameters.entries if entry.by_keyword and entry.name not in preset
    ]
    first = needed + tuple(_surely_off(entries))
    off = {name for name, _ in first}
    flags = tuple(
        (entry.name, "False") for entry in entries if is_flag(entry) and entry.default == "True"
    )
    others = tuple(flag for flag in flags if flag[0] not in off)
    caps = [
        (entry.name, value)
        for entry in entries
        if entry.meaning == "softcap" and _is_number(entry.default)
        for value in _NO_CAP
    ]
    ways = [first, needed, *((*first, entry) for entry in (*others, *caps)), (*first, *others)]
    return list(dict.fromkeys(ways))


def is_flag(parameter: CallParameter) -> bool:
    """Whether a parameter is a boolean with an unknown effect on the output."""
    return parameter.default in FLIPPED and parameter.meaning not in _PROBED_ELSEWHERE


def flipped(parameter: CallParameter, options: Options) -> str:
    """The value of a flag that plain calls do not use."""
    return FLIPPED[dict(options).get(parameter.name, parameter.default)]


def without_causality(
    caller: Caller, read: PlainReading, parameters: Parameters
) -> tuple[Caller, PlainReading]:
    """A way of calling without causality, if one keyword alone turns causality off.

    Returns the given caller and reading if nothing turns causality off.
    """
    for parameter in parameters.entries if read.always is not None else ():
        value = _off_value(parameter, caller.convention.options)
        if value is None:
            continue
        options = _with(caller.convention.options, (parameter.name, value))
        called = caller.under(options=options)
        observed = observe(called)
        if isinstance(observed, Refusal):
            continue
        other = read_plain(Weights(called), observed, PointJudge(caller.kind, "float32"))
        if other is not None and other.always is None:
            return called, other
    return caller, read


def _off_value(parameter: CallParameter, options: Options) -> str | None:
    if not parameter.by_keyword:
        return None
    if is_flag(parameter):
        return flipped(parameter, options)
    return "False" if parameter.meaning == "causal" and not dict(options) else None


def _surely_off(entries: list[CallParameter]) -> list[tuple[str, str]]:
    causal = [
        (entry.name, "False")
        for entry in entries
        if (entry.meaning, entry.default) == ("causal", "True")
    ]
    rates = [entry for entry in entries if entry.meaning == "dropout" and _is_number(entry.default)]
    return [*causal, *((entry.name, "0.0") for entry in rates)]


def _is_number(source: str) -> bool:
    try:
        return float(source) != 0.0
    except ValueError:
        return False


def add_facts(case: Investigation, read: PlainReading) -> None:
    """Flip each flag alone, against the options of a plain call."""
    for parameter in case.parameters.entries:
        probed = parameter.meaning == "causal" or parameter.name == case.caller.convention.causal
        if probed or not parameter.by_keyword or not is_flag(parameter):
            continue
        options = case.caller.convention.options
        value = flipped(parameter, options)
        called = case.caller.under(options=_with(options, (parameter.name, value)))
        words = _effect(called, case, read)
        set_value = dict(options).get(parameter.name)
        plain_call = (
            f"; everything else holds with {parameter.name}={set_value}" if set_value else ""
        )
        case.findings.add(
            f"flag {parameter.name}",
            f"{placed(parameter)}: with {value} {words}{plain_call}",
            f"plain calls with {parameter.name}={value}",
            {"parameter": parameter.name, "value": value, "effect": words},
        )


def _with(options: Options, option: tuple[str, str]) -> Options:
    """The options with one entry added or replaced by name."""
    return (*(pair for pair in options if pair[0] != option[0]), option)


def _effect(called: Caller, case: Investigation, read: PlainReading) -> str:
    """The effect of a flag on plain answers, in words."""
    observed = observe(called)
    if isinstance(observed, Refusal):
        return f"it {observed.why}"
    if case.judge.fits(read.point, observed):
        return "plain answers stay as they are"
    if repeats(called) is False:
        return "answers vary from call to call"
    weights, judge = Weights(called), PointJudge(called.kind, "float32")
    other = read_plain(weights, observed, judge) or read_further(weights, observed, judge)
    if other is None:
        return "the answers are those of no reading of attention that is known"
    changes = read.point.differences(other.point)
    effects = [change_words({name: pair[1]}) for name, pair in changes.items()]
    effects += ["causal"] if other.always is not None and read.always is None else []
    return f"it computes {', '.join(effects)}" if effects else "nothing that it does always is done"
