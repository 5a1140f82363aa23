"""The job of ``conformance identify`` in the worker: from an implementation to its record."""

from __future__ import annotations

import contextlib
import dataclasses
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import torch
from torch import Tensor

from .._golden import golden
from ..adapters.projection_search import ModuleRequest
from ..base.results import plain
from ..calls import torch_state
from ..calls.calling import CandidateFailure, before_each_call, guarded
from ..calls.integrity import watching_calls
from ..declare.signatures import SIGNATURES
from ..diagnosis.mistaken_answer import limited_by
from ..errors import UsageError
from ..targets.declaring import how_to_pass
from ..targets.resolving import object_of
from ..tolerance.model import SAME_READ
from ..tolerance.positions import position_bound
from . import callers
from .agreement import PointJudge
from .behaviour import learned_besides
from .by_signature import public_signature
from .caches import find_cache
from .caller import FREE, Caller, ProbeAnswer, Refusal
from .contradictions import contradictions
from .deviations import Investigation, deviations
from .implementation import Implementation, read_attentions
from .investigation import behave, investigate
from .plain_reading import (
    PlainReading,
    Weights,
    observe,
    read_further,
    read_mistaken,
    read_plain,
)
from .record import Findings, deviations_words, kind_words
from .signature import Parameters, read_parameters
from .statements import Beyond, read_beyond, read_places, reading_of, what_is_certain
from .switches import without_causality
from .writing import convention_of, declaration_text, model_text, positions_text, signature_text

# Processor seconds for the search for a named mistake behind unread answers.
SECONDS_TO_NAME: Final = 6.0
_WIDTHS: Final = (8, 6, 16, 32, 64, 128, 256, 512, 24, 12, 10, 100)
_LENGTH: Final = 5
_LONGEST: Final = 1 << 16


def find_positions(function: Callable[..., Any], findings: Findings) -> tuple[int, list[int]] | str:
    """The longest length and the accepted widths of a position encoding, or a refusal in words."""
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
    """The table added to tokens ``[2, L, width]``; None if the table depends on tokens or items."""
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
    # The table is read off the zeros and added to the tokens: two roundings.
    rounding = position_bound(tokens, tokens.dtype) + position_bound(table, tokens.dtype)
    if not bool(((answers[1] - sums).abs() <= rounding).all()):
        return None
    same = torch.equal(table[0], table[1]) and bool(table.abs().max() > 0)
    return table[0] if same else None


def _is(added: Tensor, expected: Tensor) -> bool:
    bound = position_bound(torch.zeros_like(expected), torch.float32)
    return bool(((added - expected).abs() <= bound).all())


def _longest(function: Callable[..., Any], width: int) -> int:
    """The largest length with the right table, found by doubling and bisection."""
    good, bad = _LENGTH, 2 * _LENGTH
    while bad <= _LONGEST and _right(function, bad, width):
        good, bad = bad, 2 * bad
    if bad > _LONGEST:
        if _right(function, _LONGEST, width):
            return _LONGEST
        bad = _LONGEST
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


# The largest number of ways of calling to keep for the nearest reading, if none is golden.
_MOST_UNREAD: Final = 6


class OutOfTimeError(Exception):
    """The time to find a name for answers is up."""


@contextlib.contextmanager
def while_time_to_name() -> Iterator[None]:
    """Limit a search for a name to ``SECONDS_TO_NAME`` processor seconds: raises OutOfTimeError."""
    ends = time.process_time() + SECONDS_TO_NAME

    def in_time() -> None:
        if time.process_time() > ends:
            raise OutOfTimeError

    with before_each_call(in_time), limited_by(in_time):
        yield


Tell = Callable[[str, str], None]


@torch_state.one_thread()
@watching_calls()
def identify(implementation: Implementation, as_observed: Any, tell: Tell) -> dict[str, Any]:
    """The record of one implementation; ``tell`` begins a stage with a time limit of its own.

    ``as_observed``: the declaration promises probable mistakes, too.
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
        if implementation.form in ("graph", "model"):
            tell("probing", "its attentions")
            reason = read_attentions(implementation.value, implementation.target, record)
            if implementation.form == "model" and not reason:
                record["declaration"] = model_text(implementation)
        else:
            reason = _identify(
                implementation, findings, record, tell, as_observed=bool(as_observed)
            )
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
    """Fill findings and record; return why nothing could be identified, or ""."""
    if _takes_one(implementation):
        return _positions(implementation, findings, record)
    known = None
    if implementation.form == "function" and implementation.declared is None:
        known = public_signature(implementation.value)
    if known is not None:
        name, declared = known
        findings.add(
            "signature",
            f"that of {name}, which {SIGNATURES[name].source} documents",
            "the names of all its parameters, and the answers to calls without options",
            name,
        )
        arrays = declared.declaration.arrays
        record["declaration"] = signature_text(implementation, name, arrays)
    case = read_case(implementation, findings, record, tell, as_observed=as_observed)
    if not isinstance(case, Investigation):
        return "" if known is not None else case if isinstance(case, str) else case.text
    if implementation.form == "module":
        tell("probing", "its cache")
        find_cache(implementation, case, convention_of(case))
    tell("probing", "the declaration")
    changed = golden.STANDARD.differences(case.point)
    record["semantics"] = {name: pair[1] for name, pair in changed.items()}
    differing = deviations(case)
    record["deviations"] = [deviation.as_json() for deviation in differing]
    record["mistaken"] = deviations_words(sum(deviation.mistaken for deviation in differing))
    if not case.beyond and known is None:
        record["declaration"] = declaration_text(implementation, case)
    record["beyond"] = case.beyond
    if implementation.declared is not None:
        tell("probing", "what is declared")
        record["contradictions"] = contradictions(implementation.declared)
    return ""


def read_case(
    implementation: Implementation,
    findings: Findings,
    record: dict[str, Any],
    tell: Tell,
    *,
    as_observed: bool = False,
    states: bool = True,
) -> Investigation | Beyond | str:
    """The findings of all probes, or why nothing could be identified.

    Statements without an identification go into ``record``. Without ``states``, answers explained
    by a bias by place yield only the statement of the bias.
    """
    callers = _opened(implementation)
    if implementation.declared is not None and not implementation.declared.weights_known:
        return _without_weights(callers, findings)
    opened = _first_golden(callers, implementation.parameters)
    length = _wanted_length(opened) if isinstance(opened, str) else None
    if length is not None:  # perhaps only this length is accepted, as by a fixed window
        pinned = (caller.at_length(length) for caller in _opened(implementation))
        again = _first_golden(pinned, implementation.parameters)
        opened = opened if isinstance(again, str) else again
    if isinstance(opened, str):
        return opened
    if isinstance(opened, Unread) and not states:
        named = _named(opened) if implementation.form == "function" else None
        if named is None:
            return opened.beyond or _unread(opened, "")
        opened = named
    if isinstance(opened, Unread):
        stated = _stated(opened, record, tell)
        if isinstance(stated, str):
            return stated
        opened = stated
    caller, read = opened
    judge = PointJudge(
        caller.kind, "float32", always_causal=read.always is not None, made=read.made
    )
    case = Investigation(
        caller=caller,
        parameters=_parameters(caller),
        judge=judge,
        point=read.point,
        findings=findings,
        as_observed=as_observed,
        promises_idle=states,
    )
    if read.made:
        case.beyond.append(f"{read.words}, which no declaration can say")
    investigate(case, read, lambda what: tell("probing", what))
    return case


def _takes_one(implementation: Implementation) -> bool:
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
    if implementation.form == "module":
        request = implementation.request or ModuleRequest(shown=implementation.name)
        reading = callers.understood(implementation.value, request)
        if not isinstance(reading, callers.Understood):
            target = implementation.target
            raise UsageError(how_to_pass(reading, object_of(target), target)) from reading
        return callers.module_callers(reading)
    if implementation.form == "builder":
        return callers.builder_callers(implementation)
    return callers.function_callers(implementation)


def _without_weights(callers: Iterator[Caller], findings: Findings) -> str:
    """Add findings from calls of a layer with unknown weights; return why no more is known."""
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
) -> tuple[Caller, PlainReading] | str | Unread:
    """The first way of calling whose answers a reading explains, or why no way succeeds."""
    refusals: list[Refusal] = []
    unread: list[Unread] = []
    for way in callers:
        if len(unread) >= _MOST_UNREAD or any(one.rules_out(way) for one in unread[-1:]):
            break
        caller, observed = way, observe(way)
        if isinstance(observed, Refusal):
            refusals.append(observed)
            caller = way.taking_output()
            observed = observed if caller is way else observe(caller)
        if isinstance(observed, Refusal) or _hides_all(caller, observed):
            continue
        weights = Weights(caller)
        read = read_plain(weights, observed, PointJudge(caller.kind, "float32"))
        if read is not None:
            return without_causality(caller, read, _parameters(caller))
        if _shaped(observed):
            unread.append(Unread(weights, observed))
        else:
            shown = list(observed[0].output.shape)
            refusals.append(Refusal("type", f"returned a tensor of shape {shown}"))
    return _first_further(unread) if unread else _refused(refusals, parameters)


def _hides_all(caller: Caller, observed: list[ProbeAnswer]) -> bool:
    """Whether a mask made for the call hides every key: all rows are equal, or hold NaN."""
    made = any("{query}.new_" in source for _, source in caller.convention.options)
    outputs = [observation.output for observation in observed]
    return made and all(bool(one.isnan().any()) or _has_equal_rows(one) for one in outputs)


def _has_equal_rows(output: Tensor) -> bool:
    if not output.numel():
        return True
    apart = (output - output[..., :1, :]).abs().max()
    return bool(apart <= SAME_READ * output.abs().max())


# Torch's message for a module's own tensor with a size different from the input's.
_OTHER_SIZE: Final = re.compile(r"tensor a \((\d+)\) must match the size of tensor b \((\d+)\)")


def _wanted_length(refused: str) -> int | None:
    """The number of tokens that a refusal asks for, unless ambiguous."""
    found = _OTHER_SIZE.search(refused)
    sizes = [int(size) for size in found.groups()] if found else []
    given = {FREE.query_length, FREE.key_length}
    others = [size for size in sizes if size not in given and size > 1]
    return others[0] if len(others) == 1 else None


def _refused(refusals: list[Refusal], parameters: Parameters) -> str:
    if not refusals:
        return "it takes neither query, key and value nor any inputs that attention has"
    tables = " and ".join(table.name for table in parameters.meaning("positions"))
    needs = (
        f"; it may need {tables}, positions of a kind that identify does not make: wrap it in a "
        "function or module that fills them in"
    )
    reason = f"no way of calling it gives an answer: it {_commonest(refusals)}"
    return reason + (needs if tables else "")


@dataclass(frozen=True)
class Unread:
    """Answers that no simple point explains; ``others`` come from calls with explained values."""

    weights: Weights
    observed: list[ProbeAnswer]
    others: tuple[Unread, ...] = ()

    @property
    def caller(self) -> Caller:
        """The way of calling behind the answers."""
        return self.weights.caller

    @property
    def judge(self) -> PointJudge:
        """A judge to compare the answers with points."""
        return PointJudge(self.caller.kind, "float32")

    @cached_property
    def beyond(self) -> Beyond | None:
        """The bias by place that explains the answers, or None."""
        return read_places(self.weights, self.observed, self.judge)

    def is_explained(self) -> bool:
        """Whether a bias by place explains the answers."""
        return self.beyond is not None

    @property
    def settles_axes(self) -> bool:
        """Whether values were read: then inputs, sizes and axes are understood."""
        return bool(self.weights.readings)

    def rules_out(self, other: Caller) -> bool:
        """Whether a way of calling with other inputs, axes or sizes cannot be understood better."""
        one, two = self.caller.convention, other.convention
        same = (one.inputs, one.layout) == (two.inputs, two.layout)
        return self.settles_axes and not (same and self.caller.sizes == other.sizes)


def _first_further(unread: list[Unread]) -> tuple[Caller, PlainReading] | Unread:
    """The first legible way of calling with a further explanation, else the best way to state.

    Explanations are, in order: a further point, a bias by place, a catalogued mistake. Legible:
    values were read.
    """
    legible = [one for one in unread if one.settles_axes]
    for one in legible:
        read = read_further(one.weights, one.observed, one.judge, one.is_explained)
        if read is not None:
            return one.caller, read
        if one.beyond is not None:
            return one
    for one in legible or unread[:1]:
        read = read_mistaken(one.weights, one.observed, one.judge)
        if read is not None:
            return one.caller, read
    others = () if unread[0].settles_axes else tuple(legible[:1])
    return dataclasses.replace(unread[0], others=others) if others else unread[0]


def _stated(
    unread: Unread, record: dict[str, Any], tell: Tell
) -> tuple[Caller, PlainReading] | str:
    """The nearest point with an acted-out statement, or why no declaration fits.

    Tried first: the first way of calling; then the way with values that were read.
    """
    tell("probing", "what no declaration says")
    judge = unread.judge
    beyond = unread.beyond or read_beyond(unread.weights, unread.observed, judge)
    other = next((one for one in unread.others if one.caller is not unread.caller), None)
    if not beyond.statements and other is not None:
        tell("probing", "what no declaration says")
        unread, beyond = other, read_beyond(other.weights, other.observed, judge)
    certain = bool(beyond.statements or unread.settles_axes)
    near = beyond.nearest.as_json() if certain else None
    record |= {"statements": beyond.as_json(), "nearest": near}
    stated = reading_of(beyond, unread.observed, judge)
    return _unread(unread, beyond.text) if stated is None else (unread.caller, stated)


def _named(unread: Unread) -> tuple[Caller, PlainReading] | None:
    """The nearest point with catalogued mistakes that explain the answers, if found in time."""
    try:
        with while_time_to_name():
            beyond = read_beyond(unread.weights, unread.observed, unread.judge)
    except OutOfTimeError:
        return None
    read = reading_of(beyond, unread.observed, unread.judge)
    return None if read is None else (unread.caller, read)


def _parameters(caller: Caller) -> Parameters:
    """The parameters of the called object; a parameter filled with a made mask counts as a mask."""
    inputs = caller.draw()
    read = read_parameters(caller.prepare(inputs.geometry, inputs.weights))
    made = {name for name, source in caller.convention.options if "{query}.new_" in source}
    entries = (
        dataclasses.replace(entry, meaning="mask") if entry.name in made else entry
        for entry in read.entries
    )
    return dataclasses.replace(read, entries=tuple(entries))


def _shaped(observed: list[ProbeAnswer]) -> bool:
    return all(
        tuple(observation.output.shape) == observation.inputs.output_shape
        for observation in observed
    )


def _unread(unread: Unread, said: str) -> str:
    """The reason why no declaration fits, with the certain facts about the answers."""
    called = f"(called with {unread.caller.convention.layout.words})"
    if said:
        return f"no declaration says what it computes {called}: {said}"
    nan = all(bool(observation.output.isnan().any()) for observation in unread.observed)
    what = "holds NaN" if nan else "is that of no reading of attention that is known"
    known = what_is_certain(unread.weights)
    names = ", ".join(learned_besides(unread.caller))
    return (
        f"its answer {what} {called}"
        + (f"; {known}" if known else "")
        + (f"; besides its projections it has learned {names}" if names else "")
    )


# Beginnings of exceptions that every arrangement of inputs would raise.
_FAULTS: Final = (
    "raised NameError",
    "raised ImportError",
    "raised ModuleNotFoundError",
    "raised AttributeError: module ",
)


def _commonest(refusals: list[Refusal]) -> str:
    """The most frequent refusal.

    Returned values say more than exceptions, and faults of the code more than shapes.
    """
    answered = [refusal.why for refusal in refusals if refusal.kind == "type"]
    faults = [refusal.why for refusal in refusals if refusal.why.startswith(_FAULTS)]
    reasons = answered or faults or [refusal.why for refusal in refusals]
    return max(dict.fromkeys(reasons), key=reasons.count)
