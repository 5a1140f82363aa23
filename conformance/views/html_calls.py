"""The smallest input of a failure as tables: what each call was given, and what it answered."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from . import counterexample, tensors
from .html_heat import WEIGHT_AXES, Heat, heat, largest_of, ratios
from .html_record import filled

Data = Mapping[str, Any]

_TOKENS: Final = ("batch", "token", "channel")
_HEADS: Final = ("batch", "head", "token", "channel")
_ANSWERS: Final[Mapping[int, tuple[str, ...]]] = {
    4: ("batch", "head", "query", "channel"),
    3: ("batch", "query", "channel"),
}
_MASKS: Final = ("keep", "drop", "keep_int", "bias")


@dataclass(frozen=True, kw_only=True)
class Call:
    """One call: how it is written, the tensors it was given and not told yet, and its answer."""

    title: str
    given: list[Heat]
    answered: list[Heat]
    refused: str


def calls(data: Data) -> list[Call]:
    """The calls of a counterexample; empty for an older record, which lists none."""
    whole = {**data, "calls": [_call(call) for call in data.get("calls") or ()]}
    several = len(whole["calls"]) > 1
    return [_told(whole, number, several=several) for number in range(len(whole["calls"]))]


def _call(data: Any) -> dict[str, Any]:
    return filled({"arguments": {}, "keywords": {}}, data)


def _told(data: Data, number: int, *, several: bool) -> Call:
    call = data["calls"][number]
    before = data["calls"][number - 1] if number else None
    shown = counterexample.given(call) if before is None else counterexample.changed(call, before)
    title = counterexample.signature(data, call) + counterexample.as_before(call, before, shown)
    given = [*_weights(data, number), *_tensors(shown)]
    refused = str((call.get("refused") or {}).get("message") or "")
    answered = list(_answer(call, several=several))
    label = f"call {number + 1}: " if several else ""
    return Call(title=f"{label}{title}", given=given, answered=answered, refused=refused)


def _tensors(shown: Data) -> Iterator[Heat]:
    for name, value in shown.items():
        if not tensors.is_table(value):
            continue
        yield _heat(name, value, axes=_axes(name, value))
        if "after" in value:
            yield _heat(f"{name} after the call", value["after"], axes=_axes(name, value))


def _axes(name: str, data: Data) -> tuple[str, ...]:
    rank = len(data["shape"])
    if name in _MASKS:
        return WEIGHT_AXES if rank == len(WEIGHT_AXES) else ()
    return {len(_HEADS): _HEADS, len(_TOKENS): _TOKENS}.get(rank, ())


def _weights(data: Data, number: int) -> Iterator[Heat]:
    """The weights of the layer that is called, where the call before had others."""
    layers = data.get("layers") or []
    call = data["calls"][number]
    own = _weights_of(call, layers)
    if number and own == _weights_of(data["calls"][number - 1], layers):
        return
    for role, matrix in (own or {}).items():
        yield _heat(f"weights.{role}", matrix, axes=("row", "column"))


def _weights_of(call: Data, layers: list[Any]) -> Any:
    number = call.get("layer")
    known = isinstance(number, int) and 0 <= number < len(layers)
    return counterexample.weights_of(call, layers) if known else None


def _answer(call: Data, *, several: bool) -> Iterator[Heat]:
    """What was answered; a single answer stands in the comparison already."""
    if not several:
        return
    for name, title in (("output", "answer"), ("right", "the right answer")):
        value = call.get(name)
        if tensors.is_table(value):
            yield _heat(title, value, axes=_ANSWERS.get(len(value["shape"]), ()))


def _heat(title: str, data: Data, *, axes: tuple[str, ...] = ()) -> Heat:
    """A tensor as a table; one whose values are not in the record by its shape."""
    found = heat(title, data, axes=axes)
    if found is not None:
        return found
    note = f"{tensors.shape(data)}: too large to be written out; a replay rebuilds it"
    return Heat(title=title, scale="values", grids=[], note=note)


def compared(data: Data, measured: Data) -> list[Heat]:
    """Expected, got, and error over bound; empty where no tensors were compared."""
    expected, got, bound = (data.get(name) for name in ("expected", "got", "bound"))
    if not (tensors.is_shown(expected) and tensors.is_shown(got)):
        return []
    axes = _compared_axes(measured, got)
    end = largest_of(expected, got)
    weights = axes == WEIGHT_AXES
    scale, what = ("weight", " weights") if weights else ("signed", "")
    found = [
        heat(f"{name}{what}", table, scale=scale, largest=end, axes=axes)
        for name, table in (("expected", expected), ("got", got))
    ]
    over = ratios(got, expected, bound, data.get("judged"))
    if over is not None:
        found.append(heat("error / bound", over, scale="ratio", axes=axes))
    return [one for one in found if one is not None]


def _compared_axes(measured: Data, got: Data) -> tuple[str, ...]:
    """The axes by the names that the worst element was told with."""
    named = WEIGHT_AXES if "key" in measured else _ANSWERS.get(len(got["shape"]), ())
    return named if len(named) == len(got["shape"]) else ()


def attention(data: Data, measured: Data) -> list[Heat]:
    """Expected and got attention weights of each call that has them.

    Empty where the weights are what was compared: they are shown there.
    """
    if "key" in measured:
        return []
    made = [_call(call) for call in data.get("calls") or ()]
    found = []
    for number, call in enumerate(made):
        prefix = f"call {number + 1}: " if len(made) > 1 else ""
        told = filled({}, call.get("attention"))
        pairs = (("expected", told.get("expected")), ("got", _got(call, told)))
        for title, value in pairs:
            if tensors.is_shown(value):
                shown = heat(f"{prefix}{title}", value, scale="weight", axes=WEIGHT_AXES)
                found.extend([shown] if shown is not None else [])
    return found


def _got(call: Data, told: Data) -> Any:
    """The weights that the candidate returned, or those that its answers tell."""
    return call["weights"] if tensors.is_shown(call.get("weights")) else told.get("got")
