"""What the worker does for ``conformance identify``: opens the thing, asks it, writes it down."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any, Final

from ...base.results import plain as as_data
from ...errors import UsageError
from . import modules, opening
from .agreement import Judge
from .box import Box, Observation, Refusal
from .capping import capped
from .contradictions import contradictions
from .deviations import deviations
from .investigation import Case, behave, investigate
from .plain import Plain, observe, plain
from .positions import find_positions
from .record import Findings, deviations_words
from .signature import Parameters, read_parameters
from .switches import without_causality
from .thing import Thing
from .wording import kind_words
from .writing import declaration_text, positions_text

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
        reading = modules.understood(thing.value, thing.name)
        if not isinstance(reading, modules.Understood):
            raise reading
        return modules.module_boxes(reading)
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
