"""A small counterexample as a person reads it: the calls, what was expected, what came."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, TypeGuard

_DIGITS: Final = 6
_LARGEST_INTEGER: Final = 1e6
_LINE: Final = 48
MARK: Final = "*"

Table = Mapping[str, Any]


def is_table(data: Any) -> TypeGuard[Table]:
    """Whether some data is a tensor as the report holds it."""
    return isinstance(data, Mapping) and "shape" in data


def is_shown(data: Any) -> TypeGuard[Table]:
    """Whether a tensor is there with its values."""
    return is_table(data) and "values" in data


def number(value: Any) -> str:
    """An element: integers as integers, others with six digits, truth values as they are."""
    if isinstance(value, (bool, str)):
        return str(value)
    value = float(value)
    if math.isfinite(value) and value == round(value) and abs(value) < _LARGEST_INTEGER:
        return str(round(value))
    return f"{value:.{_DIGITS}g}"


def tensor_lines(data: Table, marked: Sequence[bool] = ()) -> list[str]:
    """The values as nested lists, a line for each row; marked elements (row-major) have a star.

    Rows of one element stand in one line where there is room for them.
    """
    elements = flat(data["values"])
    marks = [*marked, *([False] * len(elements))] if any(marked) else []
    texts = [number(element) for element in elements]
    if marks:
        texts = [text + (MARK if mark else " ") for text, mark in zip(texts, marks, strict=False)]
    width = max(map(len, texts), default=0)
    sizes = list(data["shape"])
    if sizes and sizes[-1] == 1:
        (whole, *more) = _nested([text.strip() for text in texts], sizes, apart=False)
        if not more and len(whole) <= _LINE:
            return [whole]
    return _nested([text.rjust(width) for text in texts], sizes)


def _nested(texts: list[str], shape: list[int], *, apart: bool = True) -> list[str]:
    """Texts in nested brackets; each row in a line of its own if they are to be ``apart``."""
    if not shape:
        return texts
    each = math.prod(shape[1:])
    if len(shape) == 1 or not texts:
        return [f"[{', '.join(texts)}]"]
    parts = [texts[n * each : (n + 1) * each] for n in range(shape[0])]
    blocks = [_nested(part, shape[1:], apart=apart) for part in parts]
    if not apart:
        return [f"[{', '.join(block for (block,) in blocks)}]"]
    found: list[str] = []
    for place, block in enumerate(blocks):
        opened = ["[" if place == 0 and row == 0 else " " for row in range(len(block))]
        closed = "]" if place == len(blocks) - 1 else ","
        block[-1] += closed
        found.extend(sign + line for sign, line in zip(opened, block, strict=True))
    return found


def flat(values: Any) -> list[Any]:
    """The elements of nested lists in row-major order."""
    if not isinstance(values, list):
        return [values]
    return [element for entry in values for element in flat(entry)]


def shape(data: Table) -> str:
    """The shape of a tensor, with its dtype where it holds no floating-point numbers."""
    dtype = str(data.get("dtype", ""))
    return f"{list(data['shape'])}{'' if 'float' in dtype else f' {dtype}'}"


def beyond(
    got: Table, expected: Table, bound: Table, judged: Table | None, *, law: bool
) -> list[bool]:
    """Which elements of an answer are further off than the bound, or not finite where they must.

    Under a law the expected values are an answer, too, and must be finite; else nothing is judged
    where they are not.
    """
    columns = [flat(data["values"]) for data in (got, expected, bound)]
    counts = flat(judged["values"]) if judged is not None else [True] * len(columns[0])
    return [
        bool(counted) and not _within(*map(float, triple), law=law)
        for counted, *triple in zip(counts, *columns, strict=True)
    ]


def _within(got: float, expected: float, bound: float, *, law: bool) -> bool:
    if not math.isfinite(expected):
        return not law
    return abs(got - expected) <= bound


# Of all tensors that are shown together: more is not read, and the report holds it anyway.
_MOST_ELEMENTS: Final = 96
_COMPARED: Final = ("expected", "got", "bound")

Data = Mapping[str, Any]
Line = tuple[str, str]


def lines(data: Data) -> list[Line]:
    """Pairs of a label and a line; a later call shows what the one before it did not have.

    Further lines of a tensor have no label. Empty when large.
    """
    if not data.get("calls") or not _is_small(data):
        return []
    return [*_calls(data), *_compared(data)]


def block(data: Data) -> list[str]:
    """The same as lines of text whose second column is aligned."""
    found = lines(data)
    width = max((len(label) for label, _ in found), default=0)
    return [f"{label:<{width}}  {line}".rstrip() for label, line in found]


def _is_small(data: Data) -> bool:
    """Whether all of it is written out, and little enough to read."""
    tables = list(_tables(data))
    return all(map(is_shown, tables)) and _elements(tables) <= _MOST_ELEMENTS


def _elements(tables: list[Data]) -> int:
    return sum(len(flat(table["values"])) for table in tables)


def _tables(data: Data) -> Iterator[Data]:
    """Every tensor that would be shown, once."""
    for number, call in enumerate(data["calls"]):
        shown = changed(call, data["calls"][number - 1]) if number else given(call)
        yield from filter(is_table, shown.values())
    for layer in data.get("layers", []):
        yield from (layer["weights"] or {}).values()
    yield from (data[name] for name in _COMPARED if is_table(data.get(name)))


def given(call: Data) -> dict[str, Any]:
    """Everything that a call was given, by name."""
    return {**call["arguments"], **call["keywords"]}


def changed(call: Data, first: Data) -> dict[str, Any]:
    """What a later call was given that the first was not."""
    before = given(first)
    return {
        name: value
        for name, value in given(call).items()
        if name not in before or not _same(value, before[name])
    }


def _same(one: Any, other: Any) -> bool:
    if not is_table(one) or not is_table(other):
        return bool(one == other)
    names = ("shape", "dtype", "values", "stride", "offset")
    return all(one.get(name) == other.get(name) for name in names)


def _calls(data: Data) -> Iterator[Line]:
    calls, layers = data["calls"], data.get("layers", [])
    several = len(calls) > 1
    for number, call in enumerate(calls):
        label = f"call {number + 1}" if several else "call"
        first = calls[number - 1] if number else None
        shown = given(call) if first is None else changed(call, first)
        yield label, signature(data, call) + as_before(call, first, shown)
        yield from _layer(call, layers, first)
        for name, value in shown.items():
            if is_table(value):
                yield from _tensor(name, value)
                if "after" in value:
                    yield from _tensor("  after it", value["after"])
        yield from _answered(call, several=several)


def signature(data: Data, call: Data) -> str:
    """The call as code, its tensors by their names."""
    keywords = [
        f"{name}={name if is_table(value) else _plain(value)}"
        for name, value in call["keywords"].items()
    ]
    return f"{data.get('candidate', 'candidate')}({', '.join([*call['arguments'], *keywords])})"


def _plain(value: Any) -> str:
    return number(value) if isinstance(value, float) else str(value)


def as_before(call: Data, first: Data | None, shown: Data) -> str:
    """How a call differs from the one before it, to follow its signature."""
    if first is None:
        return ""
    other_tensors = [name for name, value in shown.items() if is_table(value)]
    lost = [name for name in given(first) if name not in given(call)]
    other = call.get("layer") != first.get("layer")
    moved = _moved(call)
    told = ", the same again" if not (shown or lost or other) else ""
    told += f", written into the tensors of call {moved}" if moved else ""
    told += f", without {' and '.join(lost)}" if lost else ""
    return told + (f", with another {' and '.join(other_tensors)}" if other_tensors else "")


def _moved(call: Data) -> int:
    """The number of the call whose tensors were overwritten for this one; 0 for none."""
    same = [value["same_as"][0] for value in call["arguments"].values() if "same_as" in value]
    return min(same) + 1 if same else 0


def _layer(call: Data, layers: list[Data], first: Data | None) -> Iterator[Line]:
    """The weights of the layer that is called, where they are not those of the first call."""
    if "layer" not in call or (
        first is not None and weights_of(call, layers) == weights_of(first, layers)
    ):
        return
    for role, matrix in (weights_of(call, layers) or {}).items():
        yield from _tensor(f"weights.{role}", matrix)


def weights_of(call: Data, layers: list[Data]) -> Any:
    """The weights of the layer that is called, by role; None for a core."""
    return layers[call["layer"]]["weights"] if "layer" in call else None


def _answered(call: Data, *, several: bool) -> Iterator[Line]:
    if "refused" in call:
        yield "answer", str(call["refused"]["message"])
    elif several and is_shown(call.get("output")):
        right = is_shown(call.get("right"))
        note = "" if "right" not in call else "wrong" if right else "right"
        yield from _tensor("answer", call["output"], note=note)
        if right:
            yield from _tensor("right is", call["right"])


def _compared(data: Data) -> Iterator[Line]:
    """What was compared; elements of the answer beyond the bound are marked."""
    if not all(is_shown(data.get(name)) for name in _COMPARED):
        return
    expected, got, bound = (data[name] for name in _COMPARED)
    law = bool(data.get("relation"))
    marked = beyond(got, expected, bound, data.get("judged"), law=law)
    yield from _tensor("expected", expected, note=origin(data))
    yield from _tensor("got", got, marked=marked, note=f"{MARK} beyond the bound")
    yield from _tensor("bound", {**bound, "values": _rounded(bound["values"])})


def _rounded(values: Any) -> Any:
    """A bound with two digits: it is no exact number."""
    if isinstance(values, list):
        return [_rounded(entry) for entry in values]
    return f"{float(values):.2g}"


def origin(data: Data) -> str:
    """Where the expected values are from, when they are an answer of the candidate's own."""
    relation = data.get("relation")
    if not relation:
        return ""
    parts = []
    for part in relation["expected"]:
        seen = ", in another order" if "elements" in part else ""
        parts.append(f"the answer of call {part['call'] + 1}{seen}")
    return " plus ".join(parts)


def _tensor(
    label: str, data: Data, *, marked: list[bool] | None = None, note: str = ""
) -> Iterator[Line]:
    told = f"  ({note})" if note else ""
    gaps = f", strides {data['stride']}" if "stride" in data else ""
    first, *rest = tensor_lines(data, marked or ())
    yield label, f"{first}  {shape(data)}{gaps}{told}" if not rest else first
    for row in rest[:-1]:
        yield "", row
    if rest:
        yield "", f"{rest[-1]}  {shape(data)}{gaps}{told}"
