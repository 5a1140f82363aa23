"""What the worker does for ``conformance identify``: opens the thing, asks it, writes it down."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Final

import torch
from torch import Tensor

from ..._golden import golden
from ...base.results import plain as as_data
from ...calls.calling import CandidateFailure, guarded
from ...errors import UsageError
from ...tolerance.positions import position_bound
from . import opening
from .agreement import Judge, Seen
from .box import Box, Observation, Refusal
from .contradictions import contradictions
from .deviations import Case, deviations
from .investigation import behave, investigate
from .plain import (
    SCALES,
    Plain,
    nearest_number,
    observe,
    plain,
    read_as,
    round_numbers,
    with_alignment,
)
from .record import Findings, deviations_words, kind_words
from .signature import Parameters, read_parameters
from .switches import without_causality
from .thing import Thing
from .writing import declaration_text, positions_text

# Caps in use are 20, 30 and 50; beyond the last one ordinary logits show none.
_ALIGNMENTS: Final = ("bottom-right", "top-left")
_GRID: Final = tuple(10.0 ** (step / 4.0) for step in range(-4, 13))


def capped(observed: Sequence[Observation], judge: Judge) -> Plain | None:
    """The reading with a cap that holds on every probe, fitted on the first; None without one."""
    readings = (_fitted(observed, judge, always) for always in (None, *_ALIGNMENTS))
    return next((one for one in readings if one is not None), None)


def _fitted(observed: Sequence[Observation], judge: Judge, always: str | None) -> Plain | None:
    """The scale that comes nearest with any cap, then its cap, as a number that people write."""
    seen = [read_as(one, always) for one in observed]
    points = [with_alignment(golden.STANDARD.replace(scale=rule), always) for rule in SCALES]

    def apart(point: golden.Semantics, cap: float) -> float:
        return judge.distance(point, [_with_cap(seen[0], cap)])

    nearest = min(points, key=lambda point: min(apart(point, cap) for cap in _GRID))
    for cap in round_numbers(nearest_number(_GRID, partial(apart, nearest))):
        read = [_with_cap(one, cap) for one in seen]
        if judge.fits(nearest, read):
            margin = max(judge.margin(nearest, one) for one in read)
            return Plain(
                point=nearest,
                always=always,
                others=(),
                margin=margin,
                tried=len(points),
                fitted=True,
                cap=cap,
            )
    return None


def _with_cap(one: Seen, cap: float) -> Seen:
    return Seen(one.inputs.replace(softcap=cap), one.output, one.rows)


_WIDTHS: Final = (8, 6, 16, 32, 64, 128, 256, 512, 24, 12, 10, 100)
_LENGTH: Final = 5
_LONGEST: Final = 1 << 16


def find_positions(function: Callable[..., Any], found: Findings) -> tuple[int, list[int]] | str:
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
    found.add(
        "kind",
        "position encoding, sinusoidal: sines in the even channels, cosines in the odd ones",
        f"what is added to zeros and to random tokens is the golden table at width {width}",
        {"kind": "positions", "position": "sinusoidal"},
    )
    found.add(
        "sizes",
        f"widths {', '.join(str(one) for one in sorted(taken))} of those tried, up to {longest} "
        "positions" + (" at least" if longest == _LONGEST else ""),
        "longer inputs are refused, or not given the table",
        {"widths": sorted(taken), "max_length": longest},
    )
    return longest, sorted(taken)


def _added(function: Callable[..., Any], length: int, width: int) -> Tensor | None:
    """What is added to tokens, when it is the same for all of them."""
    tokens = torch.randn(2, length, width, generator=torch.Generator().manual_seed(0))
    answers = []
    for given in (torch.zeros_like(tokens), tokens):
        try:
            answer = guarded(function, (given.clone(),), {})
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


def identify(thing: Thing, as_observed: Any, tell: Tell) -> dict[str, Any]:
    """The record of one thing; each stage is told, so that it has a time limit of its own.

    ``as_observed`` is true where the declaration is to promise probable mistakes, too.
    """
    started = time.perf_counter()
    tell("probing", "how it is called")
    record: dict[str, Any] = {
        "target": thing.target,
        "name": thing.name,
        "form": thing.form,
        "identified": False,
        "reason": "",
        "facts": [],
        "declaration": None,
    }
    found = Findings()
    try:
        reason = _identify(thing, found, record, tell, as_observed=bool(as_observed))
    except UsageError as error:
        reason = str(error)
    record["facts"] = found.as_json()
    record["reason"] = reason
    record["identified"] = not reason
    record["seconds"] = round(time.perf_counter() - started, 3)
    result: dict[str, Any] = as_data(record)
    return result


def _identify(
    thing: Thing, found: Findings, record: dict[str, Any], tell: Tell, *, as_observed: bool
) -> str:
    """Fill findings and record; returns why nothing could be identified, or ""."""
    if _takes_one(thing):
        return _positions(thing, found, record)
    boxes = _opened(thing)
    if thing.declared is not None and not thing.declared.weights_known:
        return _without_weights(boxes, found)
    opened = _first_golden(boxes, thing.parameters)
    if isinstance(opened, str):
        return opened
    box, read = opened
    judge = Judge(box.kind, "float32", always_causal=read.always is not None, cap=read.cap)
    case = Case(
        box=box,
        parameters=_parameters(box),
        judge=judge,
        point=read.point,
        found=found,
        as_observed=as_observed,
    )
    investigate(case, read, lambda what: tell("probing", what))
    tell("probing", "the declaration")
    record["semantics"] = {name: pair[1] for name, pair in opening_differences(case).items()}
    differing = deviations(case)
    record["deviations"] = [one.as_json() for one in differing]
    record["mistaken"] = deviations_words(sum(one.mistaken for one in differing))
    if not case.beyond:
        record["declaration"] = declaration_text(thing, case)
    record["beyond"] = case.beyond
    if thing.declared is not None:
        tell("probing", "what is declared")
        record["contradictions"] = contradictions(thing.declared)
    return ""


def opening_differences(case: Case) -> dict[str, Any]:
    """Where the point found differs from the specification."""
    from ..._golden import golden  # noqa: PLC0415 (one use)

    return golden.STANDARD.differences(case.point)


def _takes_one(thing: Thing) -> bool:
    """Whether it is a function of one input: no projections are in sight."""
    if thing.form != "function" or not thing.parameters.entries:
        return False
    return opening.read_inputs(thing.parameters, thing.name)[0] == "self"


def _positions(thing: Thing, found: Findings, record: dict[str, Any]) -> str:
    """A function of one input can be a position encoding."""
    encoding = find_positions(thing.value, found)
    if isinstance(encoding, str):
        return encoding
    longest, widths = encoding
    record["semantics"], record["beyond"] = {}, []
    if len(widths) > 1:
        record["declaration"] = positions_text(thing, longest)
    else:
        one = f"it takes the width {widths[0]} alone, and a declared encoding takes any even width"
        record["beyond"] = [one]
    return ""


def _opened(thing: Thing) -> Iterator[Box]:
    """The boxes of a thing."""
    if thing.form == "module":
        reading = opening.understood(thing.value, thing.name)
        if not isinstance(reading, opening.Understood):
            raise reading
        return opening.module_boxes(reading)
    if thing.form == "builder":
        return opening.builder_boxes(thing)
    return opening.function_boxes(thing)


def _without_weights(boxes: Iterator[Box], found: Findings) -> str:
    """What calls alone tell of a layer whose projections nobody can see."""
    for box in boxes:
        if box.answers(box.draw()) is None:
            continue
        found.add(
            "kind",
            kind_words(box.convention),
            "an answer of the declared shape",
            {"kind": "layer", "inputs": box.convention.inputs},
        )
        behave(box, found)
        break
    return "its weights are told to nobody, so no golden answer exists to compare with"


def _first_golden(boxes: Iterator[Box], parameters: Parameters) -> tuple[Box, Plain] | str:
    """The first way of calling whose answers a reading explains, or why there is none."""
    refusals: list[Refusal] = []
    unread: list[tuple[Box, list[Observation]]] = []
    for box in boxes:
        observed = observe(box)
        if isinstance(observed, Refusal):
            if box.convention.output == "answer":
                refusals.append(observed)
            continue
        if not _shaped(observed):
            shown = list(observed[0].output.shape)
            refusals.append(Refusal("type", f"returned a tensor of shape {shown}"))
        read = plain(box, observed, Judge(box.kind, "float32"))
        if read is not None:
            return without_causality(box, read, _parameters(box))
        if _shaped(observed):
            unread.append((box, observed))
            if len(unread) >= _MOST_UNREAD:
                break
    if unread:
        return _first_capped(unread) or _unread(*unread[0])
    if not refusals:
        return "it takes neither query, key and value nor any inputs that attention has"
    tables = " and ".join(one.name for one in parameters.meaning("positions"))
    needs = (
        f"; it may need {tables}, tables of positions, which identify does not make: wrap it in a "
        "function or module that fills them in"
    )
    said = f"no way of calling it gives an answer: it {_commonest(refusals)}"
    return said + (needs if tables else "")


def _first_capped(unread: list[tuple[Box, list[Observation]]]) -> tuple[Box, Plain] | None:
    """The first way of calling whose answers a cap on the logits explains."""
    for box, observed in unread[:_MOST_CAPPED]:
        read = capped(observed, Judge(box.kind, "float32"))
        if read is not None:
            return box, read
    return None


def _parameters(box: Box) -> Parameters:
    """The parameters of what is called."""
    return read_parameters(box.prepare(box.draw()))


def _shaped(observed: list[Observation]) -> bool:
    return all(tuple(one.output.shape) == one.inputs.output_shape for one in observed)


def _unread(box: Box, observed: list[Observation]) -> str:
    nan = all(bool(one.output.isnan().any()) for one in observed)
    what = "holds NaN" if nan else "is that of no reading of attention that is known"
    return f"its answer {what} (called with {box.convention.layout.words})"


def _commonest(refusals: list[Refusal]) -> str:
    """What is said most often; what came back says more than what was raised."""
    answered = [refusal.why for refusal in refusals if refusal.kind == "type"]
    said = answered or [refusal.why for refusal in refusals]
    return max(dict.fromkeys(said), key=said.count)
