"""A failure's calls and its check as lines of Python for a script without further files.

Tensors are literals, or are read from the files of a bundle.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from ...base.results import NOT_FINITE

Record = Mapping[str, Any]
COMPARED: Final = ("value", "finite")
# Kinds of violations where a call returned nothing.
_NO_ANSWER: Final = ("raised", "crashed", "hung")
ROLES: Final = ("q", "k", "v", "o", "q_bias", "k_bias", "v_bias", "o_bias")


def is_graph(data: Record) -> bool:
    """Whether the candidate is an ONNX graph."""
    return (data.get("access") or {}).get("graph") is not None


def is_adapted(data: Record) -> bool:
    """Whether the candidate is a module that this project calls and fills with weights."""
    return bool((data.get("access") or {}).get("adapted"))


def layers(data: Record) -> Sequence[Record]:
    """The layers to build; none for a graph, whose weights are in its file."""
    return () if is_graph(data) else data.get("layers", ())


def there(tensor: Record) -> bool:
    """Whether a tensor is written out, or lies in a file."""
    return "values" in tensor or "file" in tensor


def call_lines(data: Record) -> Iterator[str]:
    """The layers and the calls as code: tensors first, then the call."""
    for number, layer in enumerate(layers(data)):
        yield from (_module if is_adapted(data) else _layer)(number, layer)
    for number, call in enumerate(data["calls"]):
        yield from _module_call(number, call) if is_adapted(data) else _call(number, call, data)


def _call(number: int, call: Record, data: Record) -> Iterator[str]:
    names = []
    for name, tensor in call["arguments"].items():
        yield from _argument(f"{name}_{number}", tensor)
        names.append(f"{name}_{number}")
    keywords = []
    for name, value in call["keywords"].items():
        if isinstance(value, Mapping):
            yield f"{name}_{number} = {tensor_code(value)}"
            keywords.append(f'"{name}": {name}_{number}')
        else:
            keywords.append(f'"{name}": {literal(_tupled(value))}')
    forward = f"layer_{call['layer']}" if "layer" in call and layers(data) else "candidate"
    yield _call_code(forward, names, keywords, call)


def _call_code(
    forward: str, names: Iterable[str], keywords: Iterable[str], call: Record, back: str = ""
) -> str:
    more = ""
    recorded = call.get("recorded") or {}
    if recorded.get("leaves"):
        more += f", leaves={recorded['leaves']}"
    elif recorded:
        more += ", grad=True"
    arguments = f"[{', '.join(names)}], {{{', '.join(keywords)}}}"
    return f"calls.append(ask({forward}, {arguments}{more}{back}))"


def _module_call(number: int, call: Record) -> Iterator[str]:
    """The lines that call the user's own module with the recorded arguments."""
    made = call["module_call"]
    names, keywords = [], []
    for place, value in enumerate(made["arguments"]):
        code, name = _module_argument(value, f"argument_{number}_{place}")
        yield from code
        names.append(name)
    for word, value in made["keywords"].items():
        code, name = _module_argument(value, f"{word}_{number}")
        yield from code
        keywords.append(f'"{word}": {name}')
    back = f", back={'swapped' if made['swapped'] else 'first'}"
    yield _call_code(f"layer_{call.get('layer', 0)}", names, keywords, call, back)


def _module_argument(value: Any, name: str) -> tuple[list[str], str]:
    """The lines that make an argument, and its expression in the call."""
    if isinstance(value, Mapping):
        return [f"{name} = {tensor_code(value)}"], name
    return [], literal(value)


def _layer(number: int, layer: Record) -> Iterator[str]:
    yield f"geometry = SimpleNamespace(**{layer['geometry']!r})"
    yield "weights = SimpleNamespace("
    for role in ROLES:
        matrix = (layer["weights"] or {}).get(role)
        yield f"    {role}={'None' if matrix is None else tensor_code(matrix)},"
    yield ")"
    yield f"layer_{number} = build(candidate, geometry, weights)"


def _module(number: int, layer: Record) -> Iterator[str]:
    yield f"geometry = SimpleNamespace(**{layer['geometry']!r})"
    yield "state = {"
    for name, tensor in layer["state"].items():
        yield f"    {name!r}: {tensor_code(tensor)},"
    yield "}"
    yield f"layer_{number} = build_module(candidate, geometry, state)"


def _argument(name: str, tensor: Record) -> Iterator[str]:
    """The lines for one input; a tensor passed before is overwritten in its storage."""
    if "same_as" not in tensor:
        yield f"{name} = {tensor_code(tensor)}"
        return
    number, before = tensor["same_as"]
    yield f"{name} = {before}_{number}  # the same tensor object"
    yield f"refill({name}, {tensor_code(tensor)})"


def tensor_code(data: Record) -> str:
    """Code that makes a bitwise equal tensor; from its storage if the tensor has gaps."""
    storage = data.get("storage")
    if storage is None:
        return _plain(data)
    if isinstance(storage, list):
        storage = {"shape": [len(storage)], "dtype": data["dtype"], "values": storage}
    place = f"{tuple(data['shape'])}, {tuple(data['stride'])}, {data['offset']}"
    return f"strided({_plain(storage)}, {place})"


def _plain(data: Record) -> str:
    if "file" in data:
        return f"stored({data['file']!r}, {data['array']!r}, {data['dtype']!r})"
    return f"tensor({literal(data['values'])}, {data['dtype']!r}, {tuple(data['shape'])})"


def literal(value: Any) -> str:
    """Nested lists of numbers as code; inf and nan are names in the script."""
    if isinstance(value, list):
        return f"[{', '.join(map(literal, value))}]"
    if isinstance(value, tuple):
        inside = ", ".join(map(literal, value))
        return f"({inside},)" if len(value) == 1 else f"({inside})"
    if isinstance(value, str):
        return value if value in NOT_FINITE else repr(value)
    return repr(value)


def _tupled(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def check_lines(clause: Record, data: Record) -> Iterator[str]:
    """The check as code, which returns whether the failure is still present."""
    violation, kind = clause["violation"], clause["violation"]["kind"]
    if kind in COMPARED:
        yield from _comparison(data)
    elif kind in _NO_ANSWER:
        yield "return any_raised(calls)"
    elif kind == "not-raised":
        yield "return last_did_not_raise(calls)"
    elif kind == "mutated":
        yield "return something_changed(calls)"
    else:
        part = 1 if violation["message"].startswith("the weights") else 0
        yield f"return another_{kind}(calls, {violation['expected']!r}, part={part})"


def _comparison(data: Record) -> Iterator[str]:
    relation = data.get("relation")
    if relation is not None:
        yield f"expected = {_sum(relation['expected'], data['expected'], data)}"
        yield f"got = {_sum(relation['got'], data['got'], data)}"
        law = True
    elif data.get("by_golden"):
        yield from _against_golden(data)
        return
    else:
        of = data.get("expected_of")
        law = of is not None
        yield f"expected = {tensor_code(data['expected']) if of is None else _source(of, data)}"
        yield f"got = {_source(data['got_of'], data)}"
    yield f"bound = {tensor_code(data['bound'])}"
    judged = tensor_code(data["judged"]) if "judged" in data else "bound == bound"
    yield f"judged = {judged}"
    yield f"return disagree(expected, got, bound, judged, law={law})"


def _source(source: Record, data: Record) -> str:
    """An answer, its weights or a gradient, read from a call."""
    number = source["call"]
    if source["what"] == "gradient":
        upstream = tensor_code(data["calls"][number]["pulled"]["upstream"])
        return f"pulled(calls, {number}, {source['place']}, {upstream})"
    part = 1 if source["what"] == "weights" else 0
    return f"answer(calls, {number}{f', part={part}' if part else ''}{_rows(data, number)})"


def _rows(data: Record, number: int) -> str:
    """The rows of the queries in a packed answer."""
    rows = data["calls"][number].get("rows")
    return "" if rows is None else f", rows={tensor_code(rows)}"


def _against_golden(data: Record) -> Iterator[str]:
    """The comparison of every answer with the specified attention's answer."""
    yield "wrong = []"
    for number, call in enumerate(data["calls"]):
        if "golden" in call:
            right = call["golden"]
            tensors = (tensor_code(right[name]) for name in ("expected", "bound", "judged"))
            expected, bound, judged = tensors
            got = f"answer(calls, {number}{_rows(data, number)})"
            yield f"wrong.append(disagree({expected}, {got}, {bound}, {judged}, law=False))"
    yield "return any(wrong)"


def _sum(side: Sequence[Record], like: Record, data: Record) -> str:
    """One side of a law, made of the answers."""
    shape = list(like["shape"])
    parts = [
        f"answer(calls, {part['call']}"
        + (f", elements={part['elements']}, shape={shape}" if "elements" in part else "")
        + f"{_rows(data, part['call'])})"
        for part in side
    ]
    return " + ".join(parts)
