"""Keywords that carry a number: scale, softcap, window; and heads that share keys and values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from ..._golden import golden
from ...problems.inputs import Inputs
from .agreement import Judge, Seen
from .box import Box, Observation
from .signature import Parameter

_SCALE: Final = 0.37
_SOFTCAP: Final = 1.5
_WINDOW: Final = (2, 1)
_WIDTH: Final = 3
_SHARED: Final = {"num_heads": 6, "num_kv_heads": 2}


@dataclass(frozen=True)
class Number:
    """What a keyword does with a number: an expression of ours, or why it is not understood."""

    parameter: Parameter
    give: str
    words: str


def find_scale(box: Box, parameter: Parameter, point: golden.Semantics, judge: Judge) -> Number:
    """Whether the number is the scale, divides by it, or multiplies what is there."""
    inputs = box.draw(seed=7).replace(scale=_SCALE)
    first = box.convention.inputs_names[0]
    for give, words in (
        ("scale", "the dot products are multiplied by it, instead of by the rule's scale"),
        ("1 / scale", "the dot products are divided by it"),
        (f"scale * {first}.shape[-1] ** 0.5", "it comes on top of 1/sqrt(head size)"),
    ):
        answer = box.under(scale=(parameter.name, give)).answers(inputs)
        if answer is not None and _fits_and_acts(judge, point, inputs, answer, scale=None):
            return Number(parameter, give, words)
    return Number(parameter, "", _unread(box, inputs.replace(scale=None)))


def _unread(box: Box, plain: Inputs) -> str:
    refused = box.answers(plain) is None
    return "calls fail" if refused else "a number given there acts in no way that is known"


def _fits_and_acts(
    judge: Judge,
    point: golden.Semantics,
    inputs: Inputs,
    answer: Observation,
    **absent: None,
) -> bool:
    """Whether an answer is that of an option, and is not as well the answer without it."""
    plain = inputs.replace(causal=False, **absent)
    return judge.fits(point, [_judged(inputs, answer, point)]) and not judge.fits(
        point, [_judged(plain, answer, point)]
    )


def find_softcap(box: Box, parameter: Parameter, point: golden.Semantics, judge: Judge) -> Number:
    """Whether the number caps the logits: c * tanh(logits / c)."""
    inputs = box.draw(seed=8).replace(softcap=_SOFTCAP)
    answer = box.under(softcap=parameter.name).answers(inputs)
    if answer is not None and _fits_and_acts(judge, point, inputs, answer, softcap=None):
        return Number(parameter, "softcap", "logits become c * tanh(logits / c)")
    return Number(parameter, "", "a number given there acts in no way that is known")


def find_window(
    box: Box, parameter: Parameter, point: golden.Semantics, judge: Judge
) -> tuple[Number, golden.Semantics]:
    """Whether a pair is a window (left, right) around each query, or an integer is one."""
    inputs = box.draw(seed=9).replace(window=_WINDOW)
    answer = box.under(window=parameter.name).answers(inputs)
    for alignment in (point.causal_alignment, "bottom-right", "top-left"):
        reading = point.replace(causal_alignment=alignment)
        if answer is not None and _fits_and_acts(judge, reading, inputs, answer, window=None):
            words = f"(left, right) keys around a query's own position, aligned {alignment}"
            return Number(parameter, "window", words), reading
    width = (parameter.name, str(_WIDTH))
    plain = box.draw(seed=9)
    one = box.under(options=(*box.convention.options, width)).answers(plain)
    if one is not None:
        for left, right, causal in _WIDTH_READINGS:
            read = plain.replace(window=(left, right), causal=causal)
            for alignment in ("bottom-right", "top-left"):
                reading = point.replace(causal_alignment=alignment)
                if _fits_and_acts(judge, reading, read, one, window=None):
                    words = (
                        f"an integer: {_WIDTH} shows {left} keys before and {right} after a "
                        f"query's own, aligned {alignment}; no pair is taken, so it is not declared"
                    )
                    return Number(parameter, "", words), point
    return Number(parameter, "", "acts in no way that is known"), point


_WIDTH_READINGS: Final = (
    (_WIDTH - 1, 0, False),
    (_WIDTH, 0, False),
    (_WIDTH - 1, _WIDTH - 1, False),
    (_WIDTH, _WIDTH, False),
    (_WIDTH // 2, _WIDTH // 2, False),
    (_WIDTH - 1, -1, False),
    (_WIDTH, -1, False),
)


def _judged(inputs: Inputs, answer: Observation, point: golden.Semantics) -> Seen:
    some = inputs.allowed(point).any(dim=-1)
    rows = some.all(dim=1).unsqueeze(-1) if inputs.is_layer else some.unsqueeze(-1)
    return Seen(inputs, answer.output, rows)


@dataclass(frozen=True)
class Groups:
    """Whether fewer key/value heads are taken: by which order, and with which option."""

    order: str | None
    option: tuple[tuple[str, str], ...] = ()
    why: str = ""


def find_groups(
    box: Box, parameters: list[Parameter], point: golden.Semantics, judge: Judge
) -> Groups:
    """Six query heads on two key/value heads."""
    inputs = box.draw(_SHARED, seed=10)
    sizes = inputs.geometry
    if sizes.num_heads == sizes.num_kv_heads:
        return Groups(None, why="its sizes tie the heads together")
    options: list[tuple[tuple[str, str], ...]] = [()]
    if box.kind == "core":
        options += [((p.name, "{query}.shape[1] != key.shape[1]"),) for p in parameters]
    refusal = "an answer of another shape"
    for option in options:
        called = box.under(options=(*box.convention.options, *option))
        answer = called.ask(inputs)
        if not isinstance(answer, Observation):
            refusal = answer.why
            continue
        for order in ("repeat", "tile"):
            if judge.fits(point.replace(group_order=order), [Seen(inputs, answer.output)]):
                return Groups(order, option)
        refusal = "an answer that is neither of the two orders"
    return Groups(None, why=refusal)
