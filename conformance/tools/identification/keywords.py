"""Keywords that carry a number: scale, softcap, window; and heads that share keys and values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from ..._golden import golden
from ...problems.inputs import Inputs
from .agreement import Judge, Sample, live_sample
from .caller import Caller, Observation
from .signature import CallParameter

_SCALE: Final = 0.37
_SOFTCAP: Final = 1.5
_WINDOW: Final = (2, 1)
_WIDTH: Final = 3
_SHARED: Final = {"num_heads": 6, "num_kv_heads": 2}
# What an integer window may mean: keys before, keys after (-1: all), and causality.
_WIDTH_READINGS: Final = (
    (_WIDTH - 1, 0, False),
    (_WIDTH, 0, False),
    (_WIDTH - 1, _WIDTH - 1, False),
    (_WIDTH, _WIDTH, False),
    (_WIDTH // 2, _WIDTH // 2, False),
    (_WIDTH - 1, -1, False),
    (_WIDTH, -1, False),
)
_UNKNOWN: Final = "a number given there acts in no way that is known"


@dataclass(frozen=True)
class NumberKeyword:
    """What a keyword does with a number.

    ``give`` is the number that it takes, as an expression of the harness's keyword; "" where the
    effect cannot be declared.
    """

    give: str
    words: str
    understood: bool = False


def find_scale(
    caller: Caller, parameter: CallParameter, point: golden.Semantics, judge: Judge
) -> NumberKeyword:
    """Whether the number is the scale, divides by it, or multiplies what is there."""
    inputs = caller.draw(seed=7).replace(scale=_SCALE)
    first = caller.convention.inputs_names[0]
    for give, words in (
        ("scale", "the dot products are multiplied by it, instead of by the rule's scale"),
        ("1 / scale", "the dot products are divided by it"),
        (f"scale * {first}.shape[-1] ** 0.5", "it comes on top of 1/sqrt(head size)"),
    ):
        answer = caller.under(scale=(parameter.name, give)).answer(inputs)
        if _fits_and_acts(judge, point, inputs, answer, scale=None):
            return NumberKeyword(give, words)
    refused = caller.answer(inputs.replace(scale=None)) is None
    return NumberKeyword("", "calls fail" if refused else _UNKNOWN)


def _fits_and_acts(
    judge: Judge,
    point: golden.Semantics,
    inputs: Inputs,
    answer: Observation | None,
    **absent: None,
) -> bool:
    """Whether an answer fits the problem with an option, and does not fit the one without it."""
    if answer is None:
        return False
    plain = inputs.replace(causal=False, **absent)
    own, other = (live_sample(read, answer.output, point) for read in (inputs, plain))
    return judge.fits(point, [own]) and not judge.fits(point, [other])


def find_softcap(
    caller: Caller, parameter: CallParameter, point: golden.Semantics, judge: Judge
) -> NumberKeyword:
    """Whether the number caps the logits: c * tanh(logits / c)."""
    inputs = caller.draw(seed=8).replace(softcap=_SOFTCAP)
    answer = caller.under(softcap=parameter.name).answer(inputs)
    if _fits_and_acts(judge, point, inputs, answer, softcap=None):
        return NumberKeyword("softcap", "logits become c * tanh(logits / c)")
    return NumberKeyword("", _UNKNOWN)


def find_window(
    caller: Caller, parameter: CallParameter, point: golden.Semantics, judge: Judge
) -> tuple[NumberKeyword, golden.Semantics]:
    """Whether a pair is a window (left, right) around each query, or an integer is one."""
    plain = caller.draw(seed=9)
    inputs = plain.replace(window=_WINDOW)
    answer = caller.under(window=parameter.name).answer(inputs)
    for alignment in (point.causal_alignment, "bottom-right", "top-left"):
        reading = point.replace(causal_alignment=alignment)
        if _fits_and_acts(judge, reading, inputs, answer, window=None):
            words = f"(left, right) keys around a query's own position, aligned {alignment}"
            return NumberKeyword("window", words), reading
    width = (parameter.name, str(_WIDTH))
    answer = caller.under(options=(*caller.convention.options, width)).answer(plain)
    for left, right, causal in _WIDTH_READINGS:
        inputs = plain.replace(window=(left, right), causal=causal)
        for alignment in ("bottom-right", "top-left"):
            reading = point.replace(causal_alignment=alignment)
            if _fits_and_acts(judge, reading, inputs, answer, window=None):
                words = (
                    f"an integer: {_WIDTH} shows {left} keys before and {right} after a "
                    f"query's own, aligned {alignment}; no pair is taken, so it is not declared"
                )
                return NumberKeyword("", words, understood=True), point
    return NumberKeyword("", "acts in no way that is known"), point


@dataclass(frozen=True)
class Groups:
    """Whether fewer key/value heads are taken: by which order, and with which option."""

    order: str | None
    option: tuple[tuple[str, str], ...] = ()
    why: str = ""


def find_groups(
    caller: Caller, parameters: list[CallParameter], point: golden.Semantics, judge: Judge
) -> Groups:
    """Six query heads on two key/value heads."""
    inputs = caller.draw(_SHARED, seed=10)
    sizes = inputs.geometry
    if sizes.num_heads == sizes.num_kv_heads:
        return Groups(None, why="its sizes tie the heads together")
    options: list[tuple[tuple[str, str], ...]] = [()]
    if caller.kind == "core":
        options += [
            ((parameter.name, "{query}.shape[1] != key.shape[1]"),) for parameter in parameters
        ]
    refusal = "an answer of another shape"
    for option in options:
        answer = caller.under(options=(*caller.convention.options, *option)).call(inputs)
        if not isinstance(answer, Observation):
            refusal = answer.why
            continue
        for order in ("repeat", "tile"):
            if judge.fits(point.replace(group_order=order), [Sample(inputs, answer.output)]):
                return Groups(order, option)
        refusal = "an answer that is neither of the two orders"
    return Groups(None, why=refusal)
