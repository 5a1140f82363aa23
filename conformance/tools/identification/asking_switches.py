"""The facts about flags that are no causality: what their other value does to a plain call."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .agreement import Judge, Seen
from .behaviour import repeats
from .box import Box, Refusal
from .plain import Plain, observe, plain
from .switches import flipped, is_flag
from .wording import placed

if TYPE_CHECKING:
    from .investigation import Case


def ask(case: Case, read: Plain) -> None:
    """Flip each flag alone, against the options of a plain call."""
    for parameter in case.parameters.entries:
        asked = parameter.meaning == "causal" or parameter.name == case.box.convention.causal
        if asked or not parameter.by_keyword or not is_flag(parameter):
            continue
        options = case.box.convention.options
        value = flipped(parameter, options)
        called = case.box.under(options=_with(options, (parameter.name, value)))
        words = _effect(called, case, read)
        given = dict(options).get(parameter.name)
        plain_call = f"; everything else holds with {parameter.name}={given}" if given else ""
        case.found.add(
            f"flag {parameter.name}",
            f"{placed(parameter)}: with {value} {words}{plain_call}",
            f"plain calls with {parameter.name}={value}",
            {"parameter": parameter.name, "value": value, "effect": words},
        )


def _with(
    options: tuple[tuple[str, str], ...], one: tuple[str, str]
) -> tuple[tuple[str, str], ...]:
    return (*(pair for pair in options if pair[0] != one[0]), one)


def _effect(called: Box, case: Case, read: Plain) -> str:
    """What the answers are then, in words."""
    observed = observe(called)
    if isinstance(observed, Refusal):
        return f"it {observed.why}"
    if case.judge.fits(read.point, [Seen(one.inputs, one.output) for one in observed]):
        return "plain answers stay as they are"
    if repeats(called) is False:
        return "answers vary from call to call"
    other = plain(called, observed, Judge(called.kind, "float32"))
    if other is None:
        return "the answers are those of no reading of attention that is known"
    changes = read.point.differences(other.point)
    said = [f"{name}={pair[1]!r}" for name, pair in changes.items()]
    said += ["causal"] if other.always is not None and read.always is None else []
    return f"it computes {', '.join(said)}" if said else "nothing that it does always is done"
