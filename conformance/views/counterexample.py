"""A small counterexample as a person reads it: the calls, what was expected and the answer."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, TypeGuard

DIGITS: Final = 6
# Enough to distinguish any two numbers of float64.
MOST_DIGITS: Final = 17
_LARGEST_INTEGER: Final = 1e6
_LINE: Final = 48
MARK: Final = "*"

Table = Mapping[str, Any]


def is_table(data: Any) -> TypeGuard[Table]:
    """Tell whether data is a tensor of a report."""
    return isinstance(data, Mapping) and "shape" in data


def is_shown(data: Any) -> TypeGuard[Table]:
    """Tell whether a tensor is recorded with its values."""
    return is_table(data) and "values" in data


def number(value: Any, digits: int = DIGITS) -> str:
    """Format an element: integers exactly, other numbers with ``digits``, truth values as is."""
    if isinstance(value, (bool, str)):
        return str(value)
    value = float(value)
    if math.isfinite(value) and value == round(value) and abs(value) < _LARGEST_INTEGER:
        return str(round(value))
    return f"{value:.{digits}g}"


def tensor_lines(data: Table, marked: Sequence[bool] = (), digits: int = DIGITS) -> list[str]:
    """Return the values as nested lists, a line for each row; marked elements have a star.

    Elements and marks are in row-major order. Rows of one element share a line if it has room.
    """
    elements = flat(data["values"])
    marks = [*marked, *([False] * len(elements))] if any(marked) else []
    texts = [number(element, digits) for element in elements]
    if marks:
        texts = [text + (MARK if mark else " ") for text, mark in zip(texts, marks, strict=False)]
    width = max(map(len, texts), default=0)
    sizes = list(data["shape"])
    if sizes and sizes[-1] == 1:
        (whole, *more) = _nested([text.strip() for text in texts], sizes, lines=False)
        if not more and len(whole) <= _LINE:
            return [whole]
    return _nested([text.rjust(width) for text in texts], sizes)


def _nested(texts: list[str], shape: list[int], *, lines: bool = True) -> list[str]:
    """Nest texts in brackets, with a line for each row or all in one line."""
    if not shape:
        return texts
    each = math.prod(shape[1:])
    if len(shape) == 1 or not texts:
        return [f"[{', '.join(texts)}]"]
    parts = [texts[n * each : (n + 1) * each] for n in range(shape[0])]
    blocks = [_nested(part, shape[1:], lines=lines) for part in parts]
    if not lines:
        return [f"[{', '.join(block for (block,) in blocks)}]"]
    *before, last = blocks
    for block in before:
        block[-1] += ","
    last[-1] += "]"
    rows = [line for block in blocks for line in block]
    return [f"{' ' if number else '['}{line}" for number, line in enumerate(rows)]


def flat(values: Any) -> list[Any]:
    """The elements of nested lists in row-major order."""
    if not isinstance(values, list):
        return [values]
    return [element for entry in values for element in flat(entry)]


def shape(data: Table) -> str:
    """Return the shape of a tensor, with its dtype unless floating-point."""
    dtype = str(data.get("dtype", ""))
    return f"{list(data['shape'])}{'' if 'float' in dtype else f' {dtype}'}"


def beyond(
    got: Table, expected: Table, bound: Table, judged: Table | None, *, law: bool
) -> list[bool]:
    """Which elements of an answer exceed the bound.

    Under a law the expected values are an answer, too, and must be finite; otherwise elements whose
    expected value is not finite are not judged.
    """
    columns = [flat(data["values"]) for data in (got, expected, bound)]
    counts = flat(judged["values"]) if judged is not None else [True] * len(columns[0])
    return [
        bool(counts_here) and not _within(*map(float, triple), law=law)
        for counts_here, *triple in zip(counts, *columns, strict=True)
    ]


def _within(got: float, expected: float, bound: float, *, law: bool) -> bool:
    return abs(got - expected) <= bound if math.isfinite(expected) else not law


# Of all shown tensors together: more is not read, and the report holds them anyway.
_MOST_ELEMENTS: Final = 96
_COMPARED: Final = ("expected", "got", "bound")

Line = tuple[str, str]


def lines(data: Table) -> list[Line]:
    """Return labels and lines of a small counterexample; empty if too large to read.

    A later call shows only its new arguments. Further lines of a tensor have no label.
    """
    if not data.get("calls"):
        return []
    tables = list(_tables(data))
    elements = sum(len(flat(table["values"])) for table in tables if is_shown(table))
    if elements > _MOST_ELEMENTS or not all(map(is_shown, tables)):
        return []
    return [*_calls(data), *_compared(data)]


def block(data: Table) -> list[str]:
    """The lines of a counterexample as text whose second column is aligned."""
    pairs = lines(data)
    width = max((len(label) for label, _ in pairs), default=0)
    return [f"{label:<{width}}  {line}".rstrip() for label, line in pairs]


def put_notes_below(rows: list[str], width: int) -> list[str]:
    """The lines of a block; a note at the end of a row wider than ``width`` is a row of its own."""
    shown = []
    for row in rows:
        said, gap, note = row.rpartition("  (") if len(row) > width else (row, "", "")
        column = len(row) - len(row.partition("  ")[2].lstrip())
        shown += [said, f"{'':{column}}({note}"] if gap else [row]
    return shown


def _tables(data: Table) -> Iterator[Table]:
    """Yield every tensor to show, once."""
    for call, before in zip(data["calls"], [None, *data["calls"]], strict=False):
        yield from filter(is_table, new_arguments(call, before).values())
    for layer in data.get("layers", []):
        yield from (layer["weights"] or {}).values()
    yield from (data[name] for name in _COMPARED if is_table(data.get(name)))


def arguments(call: Table) -> dict[str, Any]:
    """Everything that a call takes, by name."""
    return {**call["arguments"], **call["keywords"]}


def new_arguments(call: Table, before: Table | None) -> dict[str, Any]:
    """Return the arguments of a call that differ from the call before."""
    earlier = {} if before is None else arguments(before)
    return {
        name: value
        for name, value in arguments(call).items()
        if name not in earlier or not _same(value, earlier[name])
    }


def _same(first: Any, second: Any) -> bool:
    if not is_table(first) or not is_table(second):
        return bool(first == second)
    names = ("shape", "dtype", "values", "stride", "offset")
    return all(first.get(name) == second.get(name) for name in names)


def _calls(data: Table) -> Iterator[Line]:
    calls, layers = data["calls"], data.get("layers", [])
    several = len(calls) > 1
    for number, call in enumerate(calls):
        before = calls[number - 1] if number else None
        shown = new_arguments(call, before)
        label = f"call {number + 1}" if several else "call"
        yield label, signature(data, call) + differences_from_before(call, before, shown)
        weights = weights_of(call, layers)
        if before is None or weights != weights_of(before, layers):
            for role, matrix in (weights or {}).items():
                yield from _tensor(f"weights.{role}", matrix)
        for name, value in shown.items():
            if is_table(value):
                yield from _tensor(name, value)
                if "after" in value:
                    yield from _tensor("  after it", value["after"])
        yield from _answered(call, several=several)


def signature(data: Table, call: Table) -> str:
    """The call as code, its tensors by their names."""
    keywords = []
    for name, value in call["keywords"].items():
        shown = number(value) if isinstance(value, float) else value
        keywords.append(f"{name}={name if is_table(value) else shown}")
    return f"{data.get('candidate', 'candidate')}({', '.join([*call['arguments'], *keywords])})"


def differences_from_before(call: Table, before: Table | None, shown: Table) -> str:
    """Describe the differences of a call from the call before, to follow its signature."""
    if before is None:
        return ""
    lost = [name for name in arguments(before) if name not in arguments(call)]
    other = [name for name, value in shown.items() if is_table(value)]
    # The calls whose tensors were overwritten for this one.
    rewritten = [value["same_as"][0] for value in call["arguments"].values() if "same_as" in value]
    again = not (shown or lost) and call.get("layer") == before.get("layer")
    return "".join(
        (
            ", the same again" if again else "",
            f", written into the tensors of call {min(rewritten) + 1}" if rewritten else "",
            f", without {' and '.join(lost)}" if lost else "",
            f", with another {' and '.join(other)}" if other else "",
        )
    )


def weights_of(call: Table, layers: list[Table]) -> Any:
    """The weights of the layer that is called, by role; None for a core."""
    return layers[call["layer"]]["weights"] if "layer" in call else None


def _answered(call: Table, *, several: bool) -> Iterator[Line]:
    if "refused" in call:
        yield "answer", str(call["refused"]["message"])
    elif several and is_shown(call.get("output")):
        right = is_shown(call.get("right"))
        note = "" if "right" not in call else "wrong" if right else "right"
        yield from _tensor("answer", call["output"], note=note)
        if right:
            yield from _tensor("right is", call["right"])


def _compared(data: Table) -> Iterator[Line]:
    """Yield the compared tensors; elements of the answer beyond the bound are marked."""
    if not all(is_shown(data.get(name)) for name in _COMPARED):
        return
    expected, got, bound = (data[name] for name in _COMPARED)
    law = bool(data.get("relation"))
    marked = beyond(got, expected, bound, data.get("judged"), law=law)
    digits = _telling_digits(got, expected, marked)
    if is_shown(data.get("upstream")):
        yield from _tensor("upstream", data["upstream"], note="the gradient of the answer")
    notes = filter(None, (gradient(data), origin(data)))
    yield from _tensor("expected", expected, note=", ".join(notes), digits=digits)
    yield from _tensor("got", got, marked=marked, note=f"{MARK} beyond the bound", digits=digits)
    yield from _tensor("bound", {**bound, "values": _rounded(bound["values"])})


def _telling_digits(got: Table, expected: Table, marked: Sequence[bool]) -> int:
    """Return the digits needed to distinguish wrong elements from the expected ones."""
    pairs = zip(flat(got["values"]), flat(expected["values"]), marked, strict=False)
    wrong = [(one, other) for one, other, mark in pairs if mark]
    return next(
        (
            digits
            for digits in range(DIGITS, MOST_DIGITS)
            if all(number(one, digits) != number(other, digits) for one, other in wrong)
        ),
        MOST_DIGITS,
    )


def _rounded(values: Any) -> Any:
    """Round a bound to two digits: it is no exact number."""
    if isinstance(values, list):
        return [_rounded(entry) for entry in values]
    return f"{float(values):.2g}"


def gradient(data: Table) -> str:
    """Return ``the gradient of key`` if gradients were compared; else ""."""
    return f"the gradient of {data['gradient']}" if data.get("gradient") else ""


def origin(data: Table) -> str:
    """Where the expected values are from, when they are an answer of the candidate's own."""
    relation = data.get("relation")
    if not relation:
        return ""
    parts = []
    for part in relation["expected"]:
        order = ", in another order" if "elements" in part else ""
        parts.append(f"the answer of call {part['call'] + 1}{order}")
    return " plus ".join(parts)


def _tensor(
    label: str,
    data: Table,
    *,
    marked: list[bool] | None = None,
    note: str = "",
    digits: int = DIGITS,
) -> Iterator[Line]:
    strides = f", strides {data['stride']}" if "stride" in data else ""
    rows = tensor_lines(data, marked or (), digits)
    rows[-1] += f"  {shape(data)}{strides}" + (f"  ({note})" if note else "")
    yield from zip([label, *[""] * (len(rows) - 1)], rows, strict=True)
