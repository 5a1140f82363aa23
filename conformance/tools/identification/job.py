"""The job of ``conformance identify`` in the worker: from an implementation to its record."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Final

import torch
from torch import Tensor

from ..._golden import golden
from ...base.results import plain
from ...calls.calling import CandidateFailure, guarded
from ...errors import UsageError
from ...tolerance.positions import position_bound
from . import callers
from .agreement import Judge, Sample
from .caller import Caller, Observation, Refusal
from .contradictions import contradictions
from .deviations import Investigation, deviations
from .implementation import Implementation
from .investigation import behave, investigate
from .plain_reading import (
    SCALES,
    PlainReading,
    nearest_number,
    observe,
    read_as,
    read_plain,
    round_numbers,
    with_alignment,
)
from .record import Findings, deviations_words, kind_words
from .signature import Parameters, read_parameters
from .switches import without_causality
from .writing import declaration_text, positions_text

# Caps in use are 20, 30 and 50; beyond the last one ordinary logits show none.
_ALIGNMENTS: Final = ("bottom-right", "top-left")
_GRID: Final = tuple(10.0 ** (step / 4.0) for step in range(-4, 13))


def capped(observed: Sequence[Observation], judge: Judge) -> PlainReading | None:
    """The reading with a cap that holds on every probe, fitted on the first; None without one."""
    readings = (_fitted(observed, judge, always) for always in (None, *_ALIGNMENTS))
    return next((reading for reading in readings if reading is not None), None)


def _fitted(
    observed: Sequence[Observation], judge: Judge, always: str | None
) -> PlainReading | None:
    """The scale that comes nearest with any cap, then its cap, as a number that people write."""
    samples = [read_as(observation, always) for observation in observed]
    points = [with_alignment(golden.STANDARD.replace(scale=rule), always) for rule in SCALES]

    def distance(point: golden.Semantics, cap: float) -> float:
        return judge.distance(point, [_with_cap(samples[0], cap)])

    nearest = min(points, key=lambda point: min(distance(point, cap) for cap in _GRID))
    for cap in round_numbers(nearest_number(_GRID, partial(distance, nearest))):
        capped_samples = [_with_cap(sample, cap) for sample in samples]
        if judge.fits(nearest, capped_samples):
            return PlainReading(
                point=nearest,
                always=always,
                margin=max(judge.margin(nearest, sample) for sample in capped_samples),
                tried=len(points),
                fitted=True,
                cap=cap,
            )
    return None


def _with_cap(sample: Sample, cap: float) -> Sample:
    return Sample(sample.inputs.replace(softcap=cap), sample.output, sample.rows)


_WIDTHS: Final = (8, 6, 16, 32, 64, 128, 256, 512, 24, 12, 10, 100)
_LENGTH: Final = 5
_LONGEST: Final = 1 << 16


def find_positions(function: Callable[..., Any], findings: Findings) -> tuple[int, list[int]] | str:
    """The longest length and the widths it takes, or why it is no known position encoding."""
    answers = {width: _added(function, _LENGTH, width) for width in _WIDTHS}
    taken = {width: added for width, added in answers.items() if added is not None}
    if not taken:
        return (
            "it takes one input and brings no projections that can be seen, and it does not add "
            "the same numbers to any input as a position encoding does: name a module, or a "
            "function of query, key and value"
        )
    width, added = next(iter(taken.items()))
    expected = golden.sinusoidal_positions(_LENGTH, width)
    if not _is(added, expected):
        return "it adds the same numbers to any input, which are no sinusoidal encoding"
    longest = _longest(function, width)
    findings.add(
        "kind",
        "position encoding, sinusoidal: sines in the even channels, cosines in the odd ones",
        f"what is added to zeros and to random tokens is the golden table at width {width}",
        {"kind": "positions", "position": "sinusoidal"},
    )
    findings.add(
        "sizes",
        f"widths {', '.join(map(str, sorted(taken)))} of those tried, up to {longest} "
        "positions" + (" at least" if longest == _LONGEST else ""),
        "longer inputs are refused, or not given the table",
        {"widths": sorted(taken), "max_length": longest},
    )
    return longest, sorted(taken)


def _added(function: Callable[..., Any], length: int, width: int) -> Tensor | None:
    """The table that is added to tokens; None where it is not the same for all of them."""
    tokens = torch.randn(2, length, width, generator=torch.Generator().manual_seed(0))
    answers = []
    for inputs in (torch.zeros_like(tokens), tokens):
        try:
            answer = guarded(function, (inputs.clone(),), {})
        except CandidateFailure:
            return None
        if not isinstance(answer, Tensor) or answer.shape != tokens.shape:
            return None
        answers.append(answer.detach().double())
    table = answers[0]
    sums = table + tokens.double()
    # The table is read off the zeros and added to the tokens: each rounds once.
    rounding = position_bound(tokens, tokens.dtype) + position_bound(table, tokens.dtype)
    if not bool(((answers[1] - sums).abs() <= rounding).all()):
        return None
    same = torch.equal(table[0], table[1]) and bool(table.abs().max() > 0)
    return table[0] if same else None


def _is(added: Tensor, expected: Tensor) -> bool:
    bound = position_bound(torch.zeros_like(expected), torch.float32)
    return bool(((added - expected).abs() <= bound).all())


def _longest(function: Callable[..., Any], width: int) -> int:
    """The largest length that is answered with the table, by doubling and bisection."""
    good, bad = _LENGTH, 2 * _LENGTH
    while bad <= _LONGEST and _right(function, bad, width):
        good, bad = bad, 2 * bad
    if bad > _LONGEST:
        return _LONGEST
    while bad - good > 1:
        middle = (good + bad) // 2
        if _right(function, middle, width):
            good = middle
        else:
            bad = middle
    return good


def _right(function: Callable[..., Any], length: int, width: int) -> bool:
    added = _added(function, length, width)
    return added is not None and _is(added, golden.sinusoidal_positions(length, width))


JOB: Final = "conformance.tools.identification.job:identify"
# Ways of calling that are kept for the nearest reading, when none is golden.
_MOST_UNREAD: Final = 12
# The first of them in which a cap is looked for.
_MOST_CAPPED: Final = 3

Tell = Callable[[str, str], None]


def identify(implementation: Implementation, as_observed: Any, tell: Tell) -> dict[str, Any]:
    """The record of one implementation; ``tell`` begins a stage with a time limit of its own.

    With ``as_observed`` the declaration promises probable mistakes, too.
    """
    started = time.perf_counter()
    tell("probing", "how it is called")
    record: dict[str, Any] = {
        "target": implementation.target,
        "name": implementation.name,
        "form": implementation.form,
        "identified": False,
        "reason": "",
        "facts": [],
        "declaration": None,
    }
    findings = Findings()
    try:
        reason = _identify(implementation, findings, record, tell, as_observed=bool(as_observed))
    except UsageError as error:
        reason = str(error)
    record |= {
        "facts": findings.as_json(),
        "reason": reason,
        "identified": not reason,
        "seconds": round(time.perf_counter() - started, 3),
    }
    result: dict[str, Any] = plain(record)
    return result


def _identify(
    implementation: Implementation,
    findings: Findings,
    record: dict[str, Any],
    tell: Tell,
    *,
    as_observed: bool,
) -> str:
    """Fill findings and record; returns why nothing could be identified, or ""."""
    if _takes_one(implementation):
        return _positions(implementation, findings, record)
    callers = _opened(implementation)
    if implementation.declared is not None and not implementation.declared.weights_known:
        return _without_weights(callers, findings)
    opened = _first_golden(callers, implementation.parameters)
    if isinstance(opened, str):
        return opened
    caller, read = opened
    judge = Judge(caller.kind, "float32", always_causal=read.always is not None, cap=read.cap)
    case = Investigation(
        caller=caller,
        parameters=_parameters(caller),
        judge=judge,
        point=read.point,
        findings=findings,
        as_observed=as_observed,
    )
    investigate(case, read, lambda what: tell("probing", what))
    tell("probing", "the declaration")
    changed = golden.STANDARD.differences(case.point)
    record["semantics"] = {name: pair[1] for name, pair in changed.items()}
    differing = deviations(case)
    record["deviations"] = [deviation.as_json() for deviation in differing]
    record["mistaken"] = deviations_words(sum(deviation.mistaken for deviation in differing))
    if not case.beyond:
        record["declaration"] = declaration_text(implementation, case)
    record["beyond"] = case.beyond
    if implementation.declared is not None:
        tell("probing", "what is declared")
        record["contradictions"] = contradictions(implementation.declared)
    return ""


def _takes_one(implementation: Implementation) -> bool:
    """Whether it is a function of one input, which has no projections."""
    if implementation.form != "function" or not implementation.parameters.entries:
        return False
    return callers.read_inputs(implementation.parameters, implementation.name)[0] == "self"


def _positions(implementation: Implementation, findings: Findings, record: dict[str, Any]) -> str:
    """A function of one input can be a position encoding."""
    encoding = find_positions(implementation.value, findings)
    if isinstance(encoding, str):
        return encoding
    longest, widths = encoding
    record["semantics"], record["beyond"] = {}, []
    if len(widths) > 1:
        record["declaration"] = positions_text(implementation, longest)
    else:
        limit = (
            f"it takes the width {widths[0]} alone, and a declared encoding takes any even width"
        )
        record["beyond"] = [limit]
    return ""


def _opened(implementation: Implementation) -> Iterator[Caller]:
    """The callers of an implementation."""
    if implementation.form == "module":
        reading = callers.understood(implementation.value, implementation.name)
        if not isinstance(reading, callers.Understood):
            raise reading
        return callers.module_callers(reading)
    if implementation.form == "builder":
        return callers.builder_callers(implementation)
    return callers.function_callers(implementation)


def _without_weights(callers: Iterator[Caller], findings: Findings) -> str:
    """Add what calls alone show of a layer with unknown weights; returns why no more is known."""
    for caller in callers:
        if caller.answer(caller.draw()) is None:
            continue
        findings.add(
            "kind",
            kind_words(caller.convention),
            "an answer of the declared shape",
            {"kind": "layer", "inputs": caller.convention.inputs},
        )
        behave(caller, findings)
        break
    return "its weights are unknown, so there is no golden answer to compare with"


def _first_golden(
    callers: Iterator[Caller], parameters: Parameters
) -> tuple[Caller, PlainReading] | str:
    """The first way of calling whose answers a reading explains, or why there is none."""
    refusals: list[Refusal] = []
    unread: list[tuple[Caller, list[Observation]]] = []
    for caller in callers:
        observed = observe(caller)
        if isinstance(observed, Refusal):
            if caller.convention.output == "answer":
                refusals.append(observed)
            continue
        if not _shaped(observed):
            shown = list(observed[0].output.shape)
            refusals.append(Refusal("type", f"returned a tensor of shape {shown}"))
        read = read_plain(caller, observed, Judge(caller.kind, "float32"))
        if read is not None:
            return without_causality(caller, read, _parameters(caller))
        if _shaped(observed):
            unread.append((caller, observed))
            if len(unread) >= _MOST_UNREAD:
                break
    if unread:
        return _first_capped(unread) or _unread(*unread[0])
    if not refusals:
        return "it takes neither query, key and value nor any inputs that attention has"
    tables = " and ".join(table.name for table in parameters.meaning("positions"))
    needs = (
        f"; it may need {tables}, tables of positions, which identify does not make: wrap it in a "
        "function or module that fills them in"
    )
    reason = f"no way of calling it gives an answer: it {_commonest(refusals)}"
    return reason + (needs if tables else "")


def _first_capped(
    unread: list[tuple[Caller, list[Observation]]],
) -> tuple[Caller, PlainReading] | None:
    """The first way of calling whose answers a cap on the logits explains."""
    for caller, observed in unread[:_MOST_CAPPED]:
        read = capped(observed, Judge(caller.kind, "float32"))
        if read is not None:
            return caller, read
    return None


def _parameters(caller: Caller) -> Parameters:
    """The parameters of what is called."""
    return read_parameters(caller.prepare(caller.draw()))


def _shaped(observed: list[Observation]) -> bool:
    return all(
        tuple(observation.output.shape) == observation.inputs.output_shape
        for observation in observed
    )


def _unread(caller: Caller, observed: list[Observation]) -> str:
    nan = all(bool(observation.output.isnan().any()) for observation in observed)
    what = "holds NaN" if nan else "is that of no reading of attention that is known"
    return f"its answer {what} (called with {caller.convention.layout.words})"


def _commonest(refusals: list[Refusal]) -> str:
    """The most frequent refusal; a returned value says more than an exception."""
    answered = [refusal.why for refusal in refusals if refusal.kind == "type"]
    reasons = answered or [refusal.why for refusal in refusals]
    return max(dict.fromkeys(reasons), key=reasons.count)
