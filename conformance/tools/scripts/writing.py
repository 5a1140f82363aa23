"""Writes a failure as a Python file that needs torch and the candidate, but no harness.

The file for a graph needs onnxruntime and numpy instead of torch.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ...base.files import check_writable, write_text
from ...base.record import COMPILED_SUFFIXES
from ...declare.head_layouts import HEAD_LAYOUTS
from ...errors import UsageError
from ...targets.target_strings import split_site
from .code import COMPARED, call_lines, check_lines, is_adapted, is_graph, layers, there

if TYPE_CHECKING:
    from ..replay import FailedClause


Record = Mapping[str, Any]


def with_sources(data: dict[str, Any]) -> dict[str, Any]:
    """The description of a failure with the sources of the compared tensors.

    ``got_of`` names the judged answer, weights or gradient. ``expected_of`` names the other side of
    the comparison if the candidate computed it as well. ``by_golden`` says instead that some answer
    is beyond its own bound. All three are absent if the source is unknown.
    """
    if "relation" in data:
        return data
    got = _source(data, data.get("got"))
    if got is not None and "bound" in data:
        if not data.get("law"):
            return {**data, "got_of": got}
        expected = _source(data, data.get("expected"), other_than=got)
        if expected is not None and expected["what"] == got["what"] == "gradient":
            return {**data, "got_of": got, "expected_of": expected}
    beyond = any(call.get("beyond") for call in data.get("calls", ()))
    return {**data, "by_golden": True} if beyond else data


def _source(data: Record, judged: Any, other_than: Record | None = None) -> dict[str, Any] | None:
    """The last answer that holds the judged tensor."""
    if not isinstance(judged, Mapping):
        return None
    elements = content(judged)
    sources = [
        source
        for source, tensor in _answers(data)
        if elements is not None and content(tensor) == elements and source != other_than
    ]
    return sources[-1] if sources else None


def _answers(data: Record) -> Iterator[tuple[dict[str, Any], Record]]:
    last = len(data.get("calls", ())) - 1
    for number, call in enumerate(data.get("calls", ())):
        pulled = (call.get("pulled") or {}).get("found") or {}
        for place, leaf in enumerate(pulled):
            yield {"call": number, "what": "gradient", "place": place}, pulled[leaf]
        if number == last:
            for what in ("output", "weights"):
                if what in call:
                    yield {"call": number, "what": what}, call[what]


def content(tensor: Record) -> Any:
    """The values of a tensor, or their digest; None without either."""
    return tensor.get("values", tensor.get("digest"))


# These clauses do more than calls: they load a state dict or move a module.
_MORE_THAN_CALLS: Final = ("state.state-dict", "state.follows-to", "state.eval-deterministic")
_SHOWN: Final = (*COMPARED, "raised", "not-raised", "shape", "dtype", "mutated")
# Without and with the facts about calls that only a bundle has.
_ADAPTED: Final = (
    "its module is called through conformance.module: 'conformance bundle' shows that",
    "its module is called through conformance.module, by a call= that does more than call it",
)
_END: Final = """
if still_fails(load()):
    print("\\nIT STILL FAILS")
    sys.exit(1)
print("\\nit does not fail any more")
"""


def single(
    failures: Sequence[FailedClause], path: str = "-", option: str = "--emit-script"
) -> list[FailedClause]:
    """The one failure to write, in a file that can be written; raises UsageError.

    Of a clause that failed in several dtypes the first failure is taken.
    """
    if len({(case.candidate["name"], case.clause["id"]) for case in failures}) != 1:
        named = ", ".join(f"{case.candidate['name']}/{case.clause['id']}" for case in failures[:4])
        more = " …" if len(failures) > len(("one", "two", "three", "four")) else ""
        one = f"as in REPORT.json#{named.partition(',')[0]}"
        msg = f"{option} writes one failure, not {len(failures)}: name one of {named}{more}, {one}"
        raise UsageError(msg)
    if path != "-":
        check_writable(Path(path), option)
    return [failures[0]]


def write_script(clause: Record, target: str, path: str) -> None:
    """Write the script of a failure to a file or, for ``-``, to standard output."""
    text = script(clause, target)
    if path == "-":
        sys.stdout.write(text)
    else:
        write_text(text, Path(path))


def script(clause: Record, target: str) -> str:
    """The text of the script; raises UsageError for a failure that calls alone do not show."""
    refused = why_not(clause, target)
    if refused:
        msg = f"no script can be written for {clause['id']}: {refused}"
        raise UsageError(msg)
    return script_text(clause, repr(absolute(target)), end=_END)


def script_text(
    clause: Record,
    target: str,
    *,
    end: str,
    before: Sequence[str] = (),
    backend: str = "",
) -> str:
    """The text of a script: the frame, its parts, the calls and the check.

    ``target`` is an expression; ``before`` are further parts that come first, ``backend`` stands
    in place of the import of torch or numpy.
    """
    data = with_sources(dict(clause.get("counterexample") or {}))
    pieces = [*before, backend or _backend(data), *_parts(data)]
    name = str(data.get("candidate"))
    calls = list(call_lines(data))
    check = list(check_lines(clause, data))
    parts = {
        "TITLE": comment(f"{clause['id']} fails for {name}: {clause['violation']['message']}"),
        "REQUIREMENT": comment(str(clause.get("requirement") or "")),
        "NEEDS": "numpy, onnxruntime and the graph" if is_graph(data) else _needs(data),
        "PARTS": "\n\n".join(part.strip() + "\n" for part in pieces).strip(),
        "TARGET": target,
        "DEVICE": repr(_device(data)),
        "AXES": repr(HEAD_LAYOUTS[(data.get("access") or {}).get("layout", "BHSD")].axes),
        "NAME": repr(_eager_name(name)),
        "CALLS": "\n".join(f"    {line}".rstrip() for line in calls),
        "CHECK": "\n".join(f"    {line}".rstrip() for line in check),
        "END": end.strip(),
    }
    return filled(text_of("frame.py.txt"), parts)


def filled(text: str, parts: Mapping[str, str]) -> str:
    """A text with its places ``@NAME@`` filled in one pass: a part's own marks stay as they are."""
    pieces = text.split("@")
    return "".join(
        parts.get(piece, f"@{piece}@") if number % 2 else piece
        for number, piece in enumerate(pieces)
    )


def _needs(data: Record) -> str:
    kind = str((data.get("access") or {}).get("arrays", "torch"))
    return "torch and the candidate" if kind == "torch" else f"torch, {kind} and the candidate"


def _backend(data: Record) -> str:
    return text_of("numpy.py.txt" if is_graph(data) else "torch.py.txt")


def _parts(data: Record) -> Iterator[str]:
    access = data.get("access") or {}
    if is_graph(data):
        yield _graph(access["graph"])
        return
    arrays = access.get("arrays", "torch")
    yield filled(text_of("python.py.txt"), _wrapped(data))
    if arrays != "torch":
        names = {"KIND": {"numpy": "NumPy", "jax": "JAX"}[arrays], "KIND_NAME": repr(arrays)}
        yield filled(text_of("arrays.py.txt"), {**names, "KIND": f"{names['KIND']}'s"})
    if is_adapted(data):
        arguments = repr(access.get("construction") or {})
        yield filled(text_of("module.py.txt"), {"ARGUMENTS": arguments})
    if any("pulled" in call for call in data.get("calls", ())):
        yield text_of("gradients.py.txt")


def _wrapped(data: Record) -> dict[str, str]:
    """The code around the candidate where the script loads it, and around a built layer."""
    access = data.get("access") or {}
    is_layer = access.get("kind") == "layer"
    candidate = "candidate" if is_layer or is_adapted(data) else "placed(candidate)"
    layer = "layer"
    if access.get("compiled"):
        dynamic = str(data.get("candidate")).endswith(COMPILED_SUFFIXES[True])
        wrap = f"torch.compile({{}}, dynamic={True if dynamic else None})"
    elif access.get("arrays", "torch") != "torch":
        wrap = "of_arrays({})"
        if is_layer:
            candidate = "lambda geometry, weights: candidate(geometry, array_weights(weights))"
    else:
        wrap = "{}"
    if is_layer:
        layer = wrap.format(layer)
    else:
        candidate = wrap.format(candidate)
    return {"CANDIDATE": candidate, "LAYER": layer}


def _eager_name(name: str) -> str:
    """The name under which a candidate is declared: a compiled form has it with a suffix."""
    for suffix in COMPILED_SUFFIXES.values():
        name = name.removesuffix(suffix)
    return name


def _device(data: Record) -> str:
    return str((data.get("problem") or {}).get("device") or "cpu")


def text_of(name: str) -> str:
    """A part of a script, as it lies next to this module."""
    return resources.files(__package__).joinpath("script_parts", name).read_text("utf-8")


def _graph(graph: Record) -> str:
    """The code that runs a graph, with the roles of the graph's inputs and outputs."""
    parts = {
        "ROLES": repr({name: graph[name] for name in ("inputs", "outputs", "order")}),
        "KIND": repr(graph["kind"]),
        "BATCHED": repr(graph["batched"]),
        "NUM_HEADS": repr(graph["num_heads"]),
    }
    return filled(text_of("graph.py.txt"), parts)


def why_not(clause: Record, target: str = ":") -> str:
    """Why a failure cannot be shown by calls alone, or ""."""
    data = with_sources(dict(clause.get("counterexample") or {}))
    kind = clause["violation"]["kind"]
    access = data.get("access") or {}
    compared = kind in COMPARED
    graph_on = _device(data) != "cpu" and is_graph(data)
    reasons = {
        "its ranks are started by the harness": access.get("ranks", False),
        "there are no calls of the candidate to show (it died, hung, or did not repeat it)": not (
            data.get("calls")
        ),
        "it does more with the module than calling it": clause["id"] in _MORE_THAN_CALLS,
        _ADAPTED[access.get("construction") is not None]: is_adapted(data)
        and not _has_module_calls(data),
        "its module is called through conformance.module and torch.compile": (
            is_adapted(data) and access.get("compiled", False)
        ),
        "it judges what lies around a tensor of the caller": (
            clause["id"].startswith("out.") and kind == "mutated"
        ),
        "a graph is called on the CPU alone": graph_on,
        "gradients of JAX's arrays are no calls of torch": access.get("arrays") == "jax"
        and any("pulled" in call for call in data["calls"]),
        "it needs tensors of more than 64 elements": not all(map(there, _every_tensor(data))),
        "what it judges is not one answer, element by element": (
            compared and not _judges_answers(data)
        ),
        f"a failure of kind {kind} does not show in calls alone": kind not in _SHOWN,
        "an attention of a whole model is cut out of it first": split_site(target)[1] is not None,
        f"{target} is a registered name; give its file or module with --target": (
            ":" not in target and not is_graph(data)
        ),
    }
    return next((reason for reason, holds in reasons.items() if holds), "")


def _has_module_calls(data: Record) -> bool:
    """Whether every call of the user's module is recorded, and every state."""
    calls = data.get("calls", ())
    return all("module_call" in call for call in calls) and all(
        "state" in layer for layer in data.get("layers", ())
    )


def _judges_answers(data: Record) -> bool:
    """Whether answers were compared with a bound, as returned or rearranged."""
    return any(name in data for name in ("relation", "got_of", "by_golden"))


def _every_tensor(data: Record) -> Iterator[Record]:
    for call in data.get("calls", ()):
        every = [*call["arguments"].values(), *call["keywords"].values()]
        if is_adapted(data) and "module_call" in call:
            made = call["module_call"]
            every = [*made["arguments"], *made["keywords"].values()]
        yield from (value for value in every if isinstance(value, Mapping))
    for layer in layers(data):
        yield from (layer.get("state") or layer["weights"] or {}).values()


def comment(text: str) -> str:
    """Text that cannot end its docstring."""
    plain = text.replace("\\", "/").replace('"', "'")
    return " ".join(plain.split())


def absolute(target: str) -> str:
    """The target with an absolute path, for a script in another folder."""
    where, colon, name = target.rpartition(":")
    path = Path(where if colon else target)
    if not path.exists():
        return target
    return f"{path.resolve()}{colon}{name}" if colon else str(path.resolve())
