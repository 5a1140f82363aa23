"""Probe every property of an implementation in order, and collect facts and promises.

Probed here: numeric keywords (scale, softcap, window) and heads with shared keys.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, Final

from torch import Tensor

from .._golden import golden
from ..problems.inputs import Inputs
from . import causality, mask_facts, switches
from .behaviour import (
    accepted_mismatches,
    changed_inputs,
    empty_batch,
    find_dtypes,
    find_weights,
    learned_besides,
    order_matters,
    repeats,
)
from .caller import Caller, ProbeAnswer
from .deviations import Investigation, leave_out_unseen, leave_out_unseen_groups
from .plain_reading import PlainReading
from .points import function_in
from .record import (
    LIKELY,
    SCALE_WORDS,
    Findings,
    biases_words,
    head_order_words,
    inputs_words,
    kind_words,
    parameters_words,
    placed,
    prepared_words,
    rivals,
    scale_number,
)
from .signature import CallParameter
from .switches import is_flag

_SCALE: Final = 0.37
_SOFTCAP: Final = 1.5
_WINDOW: Final = (2, 1)
_WIDTH: Final = 3
_SHARED: Final = {"num_heads": 6, "num_kv_heads": 2}
# Readings of an integer window: keys before, keys after (-1: all), and causality.
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
    """The effect of a numeric keyword.

    ``give`` is the number to pass, an expression of the harness's keyword; "" if no declaration can
    express the effect.
    """

    give: str
    words: str
    understood: bool = False


def find_scale(case: Investigation, parameter: CallParameter) -> NumberKeyword:
    """Whether the number is the scale, divides by it, or multiplies the rule's scale."""
    inputs = case.caller.draw(seed=7).replace(scale=_SCALE)
    first = case.caller.convention.inputs_names[0]
    for give, words in (
        ("scale", "the dot products are multiplied by it, instead of by the rule's scale"),
        ("1 / scale", "the dot products are divided by it"),
        (f"scale * {first}.shape[-1] ** 0.5", "it comes on top of 1/sqrt(head size)"),
    ):
        answer = case.caller.under(scale=(parameter.name, give)).answer(inputs)
        if _fits_and_acts(case, answer, scale=None):
            return NumberKeyword(give, words)
    refused = case.caller.answer(inputs.replace(scale=None)) is None
    return NumberKeyword("", "calls fail" if refused else _UNKNOWN)


def _fits_and_acts(case: Investigation, answer: ProbeAnswer | None, **absent: None) -> bool:
    """Whether an answer fits the problem with an option, but not the problem without the option."""
    if answer is None:
        return False
    plain = answer.read_as(causal=False, **absent)
    return case.fits(answer.live(case.point)) and not case.fits(plain.live(case.point))


def find_softcap(case: Investigation, parameter: CallParameter) -> NumberKeyword:
    """Whether the number caps the logits: c * tanh(logits / c)."""
    inputs = case.caller.draw(seed=8).replace(softcap=_SOFTCAP)
    answer = case.caller.under(softcap=parameter.name).answer(inputs)
    if _fits_and_acts(case, answer, softcap=None):
        return NumberKeyword("softcap", "logits become c * tanh(logits / c)")
    return NumberKeyword("", _UNKNOWN)


def find_window(
    case: Investigation, parameter: CallParameter
) -> tuple[NumberKeyword, golden.Semantics]:
    """Read a window parameter: a pair (left, right) around each query, or an integer."""
    plain = case.caller.draw(seed=9)
    inputs = plain.replace(window=_WINDOW)
    answer = case.caller.under(window=parameter.name).answer(inputs)
    for alignment in (case.point.causal_alignment, "bottom-right", "top-left"):
        reading = case.point.replace(causal_alignment=alignment)
        if _fits_and_acts(replace(case, point=reading), answer, window=None):
            words = f"(left, right) keys around a query's own position, aligned {alignment}"
            return NumberKeyword("window", words), reading
    width = (parameter.name, str(_WIDTH))
    answer = case.caller.under(options=(*case.caller.convention.options, width)).answer(plain)
    for left, right, causal in _WIDTH_READINGS:
        shown = None if answer is None else answer.read_as(window=(left, right), causal=causal)
        for alignment in ("bottom-right", "top-left"):
            reading = case.point.replace(causal_alignment=alignment)
            if _fits_and_acts(replace(case, point=reading), shown, window=None):
                words = (
                    f"an integer: {_WIDTH} shows {left} keys before and {right} after a "
                    f"query's own, aligned {alignment}; no pair is taken, so it is not declared"
                )
                return NumberKeyword("", words, understood=True), case.point
    return NumberKeyword("", "acts in no way that is known"), case.point


@dataclass(frozen=True)
class Groups:
    """Support for fewer key/value heads: the head order, and the required option."""

    order: str | None
    option: tuple[tuple[str, str], ...] = ()
    why: str = ""


def find_groups(case: Investigation) -> Groups:
    """Probe with six query heads on two key/value heads."""
    inputs = case.caller.draw(_SHARED, seed=10)
    sizes = inputs.geometry
    if sizes.num_heads == sizes.num_kv_heads:
        return Groups(None, why="its sizes tie the heads together")
    options: list[tuple[tuple[str, str], ...]] = [()]
    if case.caller.kind == "core":
        options += [
            ((parameter.name, "{query}.shape[1] != key.shape[1]"),)
            for parameter in case.parameters.meaning("gqa")
        ]
    refusal = "an answer of another shape"
    for option in options:
        answer = case.caller.under(options=(*case.caller.convention.options, *option)).call(inputs)
        if not isinstance(answer, ProbeAnswer):
            refusal = answer.why
            continue
        for order in ("repeat", "tile"):
            if case.fits(answer, group_order=order):
                return Groups(order, option)
        refusal = "an answer that is neither of the two orders"
    return Groups(None, why=refusal)


Tell = Callable[[str], None]


def investigate(case: Investigation, plain: PlainReading, tell: Tell) -> None:
    """Add every fact of an implementation with understood plain answers."""
    tell("computation")
    _computation(case, plain)
    for what, step in _STEPS:
        tell(what)
        step(case)
    tell("flags")
    switches.add_facts(case, plain)
    _always(case, plain)
    mask_facts.promise_idle_mask(case)
    causality.promise_idle_flag(case)


def _always(case: Investigation, plain: PlainReading) -> None:
    """Add the facts that no keyword turns off."""
    function = function_in(plain.point)
    if function is not None:
        value: dict[str, Any] = {"parameter": None, "expression": function.expression}
        if function.cap is not None:
            value |= {"works": False, "always": True, "cap": function.cap}
        case.findings.add(
            "scores" if function.cap is None else "softcap",
            f"always: {function.words}; no keyword turns it off",
            rivals(plain),
            value,
        )
    if plain.always is not None:
        square = case.caller.convention.inputs == "self"
        where = "" if square else f", aligned {plain.always}"
        case.findings.add(
            "causal",
            f"always{where}; no flag turns it off",
            "a call without mask and flag is golden only under causality",
            {"flag": None, "alignment": None if square else plain.always, "always": True},
        )
        case.promises |= {"causal": plain.always, "always_causal": True}
        mask_facts.promise_causal_fill(case)


def _computation(case: Investigation, plain: PlainReading) -> None:
    caller, point = case.caller, plain.point
    parameters, findings = case.parameters, case.findings
    shape = caller.convention
    first = caller.draw()
    sizes = first.geometry
    findings.add(
        "kind",
        kind_words(shape),
        f"an answer of shape {list(first.output_shape)} to sizes that all differ",
        {"kind": caller.kind, "inputs": shape.inputs, "batched": shape.layout.batched},
    )
    findings.add(
        "inputs", inputs_words(shape, parameters), parameters_words(parameters), shape.inputs
    )
    fitting = "the first order whose answers " + ("are so" if plain.made else "are golden")
    findings.add("axes", shape.layout.words, fitting, shape.layout.name)
    evidence = rivals(plain)
    number = scale_number(point, sizes)
    findings.add(
        "scale",
        SCALE_WORDS.get(
            str(point.scale), f"the number {number:.6g}" if number else "0: all keys weigh the same"
        )
        + (f" times {point.scale_factor:.6g}" if point.scale_factor != 1 else "")
        + (
            f" ({number:.6g} at head size {sizes.head_size})"
            if isinstance(point.scale, str)
            else ""
        ),
        evidence,
        {"rule": point.scale, "factor": point.scale_factor, "number": number},
    )
    findings.add("softmax", f"over the {point.softmax_axis} axis", evidence, point.softmax_axis)
    leave_out_unseen(case)
    for name, words, value in prepared_words(point):
        findings.add(name, words, evidence, value)
    if caller.kind == "layer":
        findings.add(
            "heads",
            head_order_words(point, sizes),
            evidence,
            {"split": point.head_split, "merge": point.head_merge, "count": sizes.num_heads},
        )
        findings.add("biases", biases_words(caller, point), evidence, _biases(caller, point))
        _learned(case)
    changed = other_readings(point, plain.others)
    if changed:
        findings.add(
            "alternatives",
            f"with these sizes {changed} gives the same answers",
            "all are within bound of every probe",
            changed,
            LIKELY,
        )
    ties = dict(caller.sizes.changes)
    if ties and not all(value.isdigit() for value in ties.values()):
        findings.add(
            "sizes",
            ", ".join(f"{name} = {value.replace('g.', '')}" for name, value in ties.items()),
            "other sizes are refused or answered in another shape",
            ties,
        )


def other_readings(point: golden.Semantics, others: Iterable[golden.Semantics]) -> str:
    """The differences of the alternative readings from the reported reading, in words."""
    return "; or ".join(
        ", ".join(f"{name}={values[1]!r}" for name, values in point.differences(other).items())
        for other in others
    )


def _learned(case: Investigation) -> None:
    """Add the learned parameters besides projections: findings hold for their present values."""
    names = learned_besides(case.caller)
    if names:
        case.findings.add(
            "learned besides",
            f"{', '.join(names)}: what is said holds for their present values",
            "the answer changes with each of them",
            names,
        )


def _biases(caller: Caller, point: golden.Semantics) -> dict[str, bool]:
    words = {"q": "query", "k": "key", "v": "value", "o": "output"}
    return {
        word: role in caller.biases and bool(getattr(point, f"{word}_bias"))
        for role, word in words.items()
    }


def _numbers(case: Investigation) -> None:
    for parameter in _by_keyword(case, "scale"):
        number = find_scale(case, parameter)
        evidence = "scale=0.37 against the golden with that scale"
        value = {"gives": number.give}
        if _add_number(case, "scale keyword", parameter, number, (evidence, value)):
            case.caller = case.caller.under(scale=(parameter.name, number.give))
            case.features.append("scale")
    for parameter in _by_keyword(case, "softcap"):
        number = find_softcap(case, parameter)
        evidence = "a cap of 1.5 against the golden with that cap"
        if _add_number(case, "softcap", parameter, number, (evidence, None)):
            case.caller = case.caller.under(softcap=parameter.name)
            case.features.append("softcap")
    for parameter in _by_keyword(case, "window"):
        number, reading = find_window(case, parameter)
        evidence = "four queries on six keys against the golden with that window"
        if _add_number(case, "window", parameter, number, (evidence, None)):
            case.caller = case.caller.under(window=parameter.name)
            case.point = reading
            case.features.append("window")


def _add_number(
    case: Investigation,
    name: str,
    parameter: CallParameter,
    number: NumberKeyword,
    shown: tuple[str, dict[str, Any] | None],
) -> bool:
    """Add the fact of a keyword and return whether the keyword works.

    A guessed keyword without a known effect is no fact: the function may just ignore it.
    """
    evidence, value = shown
    works = bool(number.give)
    if works or not parameter.guessed or number.understood:
        words = f"{placed(parameter)}: {number.words}"
        value = {"works": works} if value is None else value
        case.findings.add(name, words, evidence, {"parameter": parameter.name, **value})
    return works


def _by_keyword(case: Investigation, meaning: str) -> list[CallParameter]:
    named = case.parameters.meaning(meaning)
    return [parameter for parameter in named if parameter.by_keyword and not is_flag(parameter)]


def _groups(case: Investigation) -> None:
    groups = find_groups(case)
    words = {
        "repeat": "yes: query head h reads key/value head h // group (repeated)",
        "tile": "yes: query head h reads key/value head h modulo their number (tiled)",
    }
    if groups.order is None:
        case.findings.add(
            "groups", f"not supported ({groups.why})", "6 heads on 2 key/value heads", None
        )
        return
    option = "".join(f" with {name}=True" for name, _ in groups.option)
    case.findings.add(
        "groups", words[groups.order] + option, "6 heads on 2 key/value heads", groups.order
    )
    leave_out_unseen_groups(case)
    options = (*case.caller.convention.options, *groups.option)
    case.caller = case.caller.under(options=options)
    case.point = case.point.replace(group_order=groups.order)
    case.features.append("gqa")


def _weights(case: Investigation) -> None:
    if case.judge.made:
        case.findings.undetermined("weights", "no golden weights are known beyond a declaration")
        return
    weights = find_weights(case, case.parameters)
    if weights is None:
        named = case.parameters.meaning("weights")
        requested = [entry.name for entry in named if not entry.guessed]
        why = f"none that are attention's ({', '.join(requested)} tried)" if requested else "none"
        case.findings.add("weights", why, "a call that asks for them", None)
        return
    how = "averaged over the heads" if weights.averaged else "one table a head"
    case.findings.add(
        "weights",
        f"{how} ({weights.words})",
        "a value returned besides the output, against the golden weights",
        {"averaged": weights.averaged},
    )
    if not weights.averaged:
        case.caller = case.caller.under(
            weights=weights.options,
            output_beside=weights.output,
            returned_weights=weights.weights,
        )
        case.features.append("weights")


def _dtypes(case: Investigation) -> None:
    results = find_dtypes(case)
    right = [result.dtype for result in results if result.right]
    wrong = [f"{result.dtype}: {result.why}" for result in results if not result.right]
    case.findings.add(
        "dtypes",
        ", ".join(right) + (f"; not {'; not '.join(wrong)}" if wrong else ""),
        "within the bound of each dtype, plain and with each mask form",
        {result.dtype: result.right for result in results},
    )
    case.promises["dtypes"] = right or ["float32"]


def _behaviour(case: Investigation) -> None:
    caller, findings = case.caller, case.findings
    behave(caller, findings, lambda inputs: case.judge.bound(case.point, inputs))
    _dropout(case, same=bool(findings.value("deterministic")))
    changed = changed_inputs(caller)
    words = f"changes {', '.join(changed)} in place" if changed else "left as they are"
    findings.add("inputs after a call", words, "compared with copies", changed)
    _mismatches(case)
    batch = empty_batch(caller)
    if batch is not None:
        findings.add("empty batch", batch, "a batch of 0", batch == "answers")


def behave(
    caller: Caller, findings: Findings, bound_of: Callable[[Inputs], Tensor] | None = None
) -> None:
    """Add whether the order of tokens matters, and whether a call repeats; needs no golden."""
    order = order_matters(caller, bound_of)
    if order is None:
        findings.undetermined("position", "a call with the tokens in another order failed")
    else:
        words = "the order of the tokens matters" if order else "none: the order does not matter"
        findings.add("position", words, "keys and values in another order", order)
    same = repeats(caller)
    again = {True: "yes: two calls agree bit for bit", False: "no: two calls differ"}
    if same is None:
        findings.undetermined("deterministic", "a call failed")
    else:
        findings.add("deterministic", again[same], "the same inputs twice", same)


def _mismatches(case: Investigation) -> None:
    accepted = accepted_mismatches(case.caller)
    case.findings.add(
        "shapes that do not fit",
        f"accepted: {', '.join(accepted)}" if accepted else "refused",
        "fewer values than keys, a key of another size, a mask for one key fewer",
        accepted,
    )
    if accepted:
        reason = f"shapes that do not fit are accepted: {', '.join(accepted)}"
        case.expected.append(("shape.rejects-mismatch", reason))


def _dropout(case: Investigation, *, same: bool) -> None:
    parameters = case.parameters.meaning("dropout")
    if case.caller.kind == "layer" and all(parameter.guessed for parameter in parameters):
        words = "none in eval" if same else "answers vary in eval mode"
        case.findings.add("dropout", words, "two calls in eval mode", not same)
        return
    for parameter in parameters:
        if parameter.by_keyword:
            _add_dropout(case, parameter)


def _add_dropout(case: Investigation, parameter: CallParameter) -> None:
    """Add the effect of a dropout rate, or of a dropout module if a rate is refused."""
    shown = "0.5"
    drops = _drops(case, parameter, shown)
    if drops is None and not parameter.guessed:
        shown = "torch.nn.Dropout(0.5)"
        drops = _drops(case, parameter, shown)
        raises = "0.5 raises"
        words = {
            None: f"{raises}, and so does a module, {shown}",
            True: f"a module: {shown} drops weights at random, and {raises}",
            False: f"a module: {shown} changes nothing, and {raises}",
        }[drops]
    else:
        words = "drops weights at random" if drops else "changes nothing"
    if drops or not parameter.guessed:
        evidence = f"{parameter.name}={shown}, twice"
        case.findings.add("dropout", f"{placed(parameter)}: {words}", evidence, bool(drops))


def _drops(case: Investigation, parameter: CallParameter, value: str) -> bool | None:
    """Whether answers vary with a value of a parameter; None if the value is refused."""
    options = (*case.caller.convention.options, (parameter.name, value))
    same = repeats(case.caller.under(options=options))
    return None if same is None else not same


_STEPS: Final = (
    ("heads that share keys", _groups),
    ("masks", mask_facts.add_facts),
    ("causality", causality.add_facts),
    ("scale, softcap and window", _numbers),
    ("returned weights", _weights),
    ("dtypes", _dtypes),
    ("behaviour", _behaviour),
)
