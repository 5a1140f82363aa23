"""Writes a failure as a Python file that needs torch and the candidate, and nothing of ours.

That of a graph needs onnxruntime, too.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from .errors import UsageError

if TYPE_CHECKING:
    from .replay import Case

Record = Mapping[str, Any]
# What these clauses do beside their calls (load a state dict, move a module) is in no call.
_MORE_THAN_CALLS: Final = ("state.state-dict", "state.follows-to", "state.eval-deterministic")
_COMPARED: Final = ("value", "finite")
_SHOWN: Final = (*_COMPARED, "raised", "not-raised", "shape", "dtype", "mutated")


def single(found: Sequence[Case], path: str) -> list[Case]:
    """The one failure to write, in a file that can be written; raises UsageError.

    Of a clause that failed in several dtypes it is the first.
    """
    if len({(case.candidate["name"], case.clause["id"]) for case in found}) != 1:
        named = ", ".join(f"{case.candidate['name']}/{case.clause['id']}" for case in found[:4])
        more = " …" if len(found) > len(("one", "two", "three", "four")) else ""
        msg = f"--emit-script writes one failure, not {len(found)}: name one of {named}{more}"
        raise UsageError(msg)
    if path != "-":
        from .report import check_writable  # noqa: PLC0415 (an option that few give)

        check_writable(Path(path), "--emit-script")
    return [found[0]]


def write_script(clause: Record, target: str, path: str) -> None:
    """Write the script of a failure to a file or, for ``-``, to standard output."""
    text = script(clause, target)
    if path == "-":
        sys.stdout.write(text)
    else:
        Path(path).write_text(text, encoding="utf-8")


def script(clause: Record, target: str) -> str:
    """The text of the script; raises UsageError for a failure that calls alone do not show."""
    data = clause.get("counterexample") or {}
    refused = why_not(clause)
    graph = (data.get("access") or {}).get("graph")
    if not refused and ":" not in target and graph is None:
        refused = f"{target} is a registered name; give its file or module with --target"
    if refused:
        msg = f"no script can be written for {clause['id']}: {refused}"
        raise UsageError(msg)
    frame = _text("script_frame.py.txt")
    parts = {
        "TITLE": _comment(f"{clause['id']} fails for {data['candidate']}: {_message(clause)}"),
        "REQUIREMENT": _comment(str(clause.get("requirement") or "")),
        "GRAPH": "" if graph is None else _graph(graph),
        "TARGET": repr(_absolute(target)),
        "DEVICE": repr(_device(data)),
        "NAME": repr(data["candidate"]),
        "CALLS": "\n".join(f"    {line}".rstrip() for line in _calls(data)),
        "CHECK": "\n".join(f"    {line}".rstrip() for line in _check(clause, data)),
    }
    for name, text in parts.items():
        frame = frame.replace(f"@{name}@", text)
    return frame


def _device(data: Record) -> str:
    """Where the candidate was called."""
    return str((data.get("problem") or {}).get("device") or "cpu")


def _text(name: str) -> str:
    return resources.files(__package__).joinpath(name).read_text("utf-8")


def _graph(graph: Record) -> str:
    """The code that runs a graph, with the roles of its inputs and outputs."""
    parts = {
        "ROLES": repr({name: graph[name] for name in ("inputs", "outputs", "order")}),
        "KIND": repr(graph["kind"]),
        "BATCHED": repr(graph["batched"]),
        "NUM_HEADS": repr(graph["num_heads"]),
    }
    text = _text("script_graph.py.txt")
    for name, value in parts.items():
        text = text.replace(f"@{name}@", value)
    return text.strip()


def why_not(clause: Record) -> str:
    """Why a failure cannot be shown by calls alone, or ""."""
    data = clause.get("counterexample") or {}
    kind = clause["violation"]["kind"]
    access = data.get("access") or {}
    compared, adapted = kind in _COMPARED, access.get("adapted")
    layout = access.get("layout", "BHSD")
    shown = all("values" in tensor for tensor in _every_tensor(data))
    reasons = {
        "there are no calls of the candidate to show (it died, hung, or did not repeat it)": not (
            data.get("calls")
        ),
        "it does more with the module than calling it": clause["id"] in _MORE_THAN_CALLS,
        "its module is called through conformance.module: declare it with conformance.layer": (
            adapted
        ),
        "it writes into a tensor of the caller": clause["id"].startswith("out."),
        "it is called through torch.compile": access.get("compiled", False),
        "it takes arrays, not tensors": access.get("arrays", "torch") != "torch",
        f"its layout is {layout}, and what is compared are heads [B, H, L, D]": (
            compared and layout != "BHSD"
        ),
        "it needs tensors of more than 64 elements": not shown,
        "what it judges is not one answer, element by element": (
            compared and not _judges_answers(data)
        ),
        f"a failure of kind {kind} does not show in calls alone": kind not in _SHOWN,
    }
    return next((reason for reason, holds in reasons.items() if holds), "")


def _judges_answers(data: Record) -> bool:
    """Whether what was compared with a bound are answers, as they came or rearranged."""
    if "bound" not in data:
        return False
    last = data["calls"][-1] if data.get("calls") else {}
    answers = [last.get(name, {}).get("values") for name in ("output", "weights")]
    return "relation" in data or data["got"].get("values") in answers


def _every_tensor(data: Record) -> Iterator[Record]:
    for call in data.get("calls", ()):
        every = [*call["arguments"].values(), *call["keywords"].values()]
        yield from (value for value in every if isinstance(value, Mapping))
    for layer in _layers(data):
        yield from (layer["weights"] or {}).values()


def _layers(data: Record) -> Sequence[Record]:
    """The layers to build; a graph is one already, weights included."""
    is_graph = (data.get("access") or {}).get("graph") is not None
    return () if is_graph else data.get("layers", ())


def _message(clause: Record) -> str:
    return str(clause["violation"]["message"])


def _comment(text: str) -> str:
    """Text that cannot end the docstring it stands in."""
    plain = text.replace("\\", "/").replace('"', "'")
    return " ".join(plain.split())


def _absolute(target: str) -> str:
    """A target that means the same in another folder."""
    where, colon, name = target.rpartition(":")
    path = Path(where if colon else target)
    if not path.exists():
        return target
    return f"{path.resolve()}{colon}{name}" if colon else str(path.resolve())


def _calls(data: Record) -> Iterator[str]:
    """The calls as code: tensors first, then the call."""
    place = "" if _device(data) == "cpu" else ".to(DEVICE)"
    for number, layer in enumerate(_layers(data)):
        yield from _layer(number, layer, place)
    for number, call in enumerate(data["calls"]):
        names = []
        for name, tensor in call["arguments"].items():
            yield from _argument(f"{name}_{number}", tensor, place)
            names.append(f"{name}_{number}")
        keywords = []
        for name, value in call["keywords"].items():
            if isinstance(value, Mapping):
                yield f"{name}_{number} = {_tensor(value, place)}"
                keywords.append(f'"{name}": {name}_{number}')
            else:
                keywords.append(f'"{name}": {_literal(_tupled(value))}')
        forward = f"layer_{call['layer']}" if "layer" in call and _layers(data) else "candidate"
        yield f"calls.append(ask({forward}, [{', '.join(names)}], {{{', '.join(keywords)}}}))"


def _layer(number: int, layer: Record, place: str) -> Iterator[str]:
    yield f"geometry = SimpleNamespace(**{layer['geometry']!r})"
    yield "weights = SimpleNamespace("
    roles = ("q", "k", "v", "o", "q_bias", "k_bias", "v_bias", "o_bias")
    for role in roles:
        matrix = (layer["weights"] or {}).get(role)
        yield f"    {role}={'None' if matrix is None else _tensor(matrix, place)},"
    yield ")"
    yield f"layer_{number} = build(candidate, geometry, weights)"


def _argument(name: str, tensor: Record, place: str) -> Iterator[str]:
    """One input; what was handed over before is written into the same storage again."""
    if "same_as" not in tensor:
        yield f"{name} = {_tensor(tensor, place)}"
        return
    number, before = tensor["same_as"]
    yield f"{name} = {before}_{number}  # the same tensor object"
    yield f"{name}.copy_({_tensor(tensor, place)})"


def _tensor(data: Record, place: str = "") -> str:
    """A tensor as code that makes the same bits; one with gaps out of its storage.

    ``place`` brings the storage to its device.
    """
    dtype = f"torch.{data['dtype']}"
    if "storage" in data:
        layout = f"{tuple(data['shape'])}, {tuple(data['stride'])}, {data['offset']}"
        return (
            f"torch.tensor({_literal(data['storage'])}, dtype={dtype}){place}.as_strided({layout})"
        )
    shape = data["shape"]
    made = f"torch.tensor({_literal(data['values'])}, dtype={dtype}){place}"
    return made if shape and 0 not in shape else f"{made}.reshape({tuple(shape)})"


def _literal(value: Any) -> str:
    """Nested lists of numbers as code; inf and nan are names in the script."""
    if isinstance(value, list):
        return f"[{', '.join(map(_literal, value))}]"
    if isinstance(value, tuple):
        return f"({', '.join(map(_literal, value))})"
    return value if isinstance(value, str) else repr(value)


def _tupled(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _check(clause: Record, data: Record) -> Iterator[str]:
    """What decides, as code that returns whether the failure is still there."""
    violation, kind = clause["violation"], clause["violation"]["kind"]
    if kind in _COMPARED:
        yield from _comparison(data)
    elif kind == "raised":
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
    if relation is None:
        part = int(_is_weights(data))
        yield f"expected = {_tensor(data['expected'])}"
        yield f"got = seen(calls, {len(data['calls']) - 1}, part={part})"
    else:
        yield f"expected = {_sum(relation['expected'], data['expected'])}"
        yield f"got = {_sum(relation['got'], data['got'])}"
    yield f"bound = {_tensor(data['bound'])}"
    judged = _tensor(data["judged"]) if "judged" in data else "torch.ones_like(bound, dtype=bool)"
    yield f"judged = {judged}"
    yield f"return disagree(expected, got, bound, judged, law={relation is not None})"


def _is_weights(data: Record) -> bool:
    """Whether it was the returned weights that were compared."""
    weights = data["calls"][-1].get("weights")
    return weights is not None and weights.get("values") == data["got"].get("values")


def _sum(side: Sequence[Record], like: Record) -> str:
    """One side of a law, made of the answers."""
    shape = list(like["shape"])
    parts = [
        f"seen(calls, {part['call']}"
        + (f", elements={part['elements']}, shape={shape})" if "elements" in part else ")")
        for part in side
    ]
    return " + ".join(parts)
