"""Keywords that do something unless they are turned off: the calls that are plain because of them.

A parameter that is left out has its default, and a default may be causality, a cap, dropout or a
normalisation. Each way of turning such keywords off is a way to call.
"""

from __future__ import annotations

from typing import Final

from .agreement import Judge
from .box import Box, Refusal
from .plain import Plain, observe, plain
from .signature import Parameter, Parameters

Options = tuple[tuple[str, str], ...]
_FLIPPED: Final = {"True": "False", "False": "True"}
# What these do is asked of them by name, and is not seen in the output.
_ASKED_ELSEWHERE: Final = ("weights", "average", "gqa")
# Values that may mean "no cap".
_NO_CAP: Final = ("None", "0.0")


def plain_options(parameters: Parameters, needed: Options) -> list[Options]:
    """What to hand over in a plain call, the likeliest first; ``needed`` is part of each.

    Causality and dropout that are on by default are turned off at once, since nobody calls them
    plain; then nothing is; then one switch after the other, and all of them.
    """
    given = {name for name, _ in needed}
    entries = [one for one in parameters.entries if one.by_keyword and one.name not in given]
    first = needed + tuple(_surely_off(entries))
    done = {name for name, _ in first}
    flags = tuple((one.name, "False") for one in entries if is_flag(one) and one.default == "True")
    others = tuple(flag for flag in flags if flag[0] not in done)
    caps = [
        (one.name, value)
        for one in entries
        if one.meaning == "softcap" and _is_number(one.default)
        for value in _NO_CAP
    ]
    ways = [first, needed, *((*first, one) for one in (*others, *caps)), (*first, *others)]
    return list(dict.fromkeys(ways))


def is_flag(parameter: Parameter) -> bool:
    """Whether it is a boolean whose effect on the output is to be found."""
    return parameter.default in _FLIPPED and parameter.meaning not in _ASKED_ELSEWHERE


def flipped(parameter: Parameter, options: Options) -> str:
    """The other value of a flag than the one of a plain call."""
    return _FLIPPED[dict(options).get(parameter.name, parameter.default)]


def without_causality(box: Box, read: Plain, parameters: Parameters) -> tuple[Box, Plain]:
    """The way of calling in which nothing is causal, where one keyword alone makes it so.

    Returns the same box and reading where nothing turns causality off.
    """
    for parameter in parameters.entries if read.always is not None else ():
        value = _off_value(parameter, box.convention.options)
        if value is None:
            continue
        called = box.under(options=(*_without(box, parameter), (parameter.name, value)))
        observed = observe(called)
        if isinstance(observed, Refusal):
            continue
        other = plain(called, observed, Judge(box.kind, "float32"))
        if other is not None and other.always is None:
            return called, other
    return box, read


def _off_value(parameter: Parameter, options: Options) -> str | None:
    if not parameter.by_keyword:
        return None
    if is_flag(parameter):
        return flipped(parameter, options)
    return "False" if parameter.meaning == "causal" and not dict(options) else None


def _without(box: Box, parameter: Parameter) -> Options:
    return tuple(one for one in box.convention.options if one[0] != parameter.name)


def _surely_off(entries: list[Parameter]) -> list[tuple[str, str]]:
    causal = [(one.name, "False") for one in entries if _says(one, "causal", "True")]
    rates = [one for one in entries if one.meaning == "dropout" and _is_number(one.default)]
    return [*causal, *((one.name, "0.0") for one in rates)]


def _says(parameter: Parameter, meaning: str, default: str) -> bool:
    return parameter.meaning == meaning and parameter.default == default


def _is_number(source: str) -> bool:
    """Whether a default is a number other than 0."""
    try:
        return float(source) != 0.0
    except ValueError:
        return False
