"""The page of a bundle for a person, and its script."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any, Final

from ...base.printable_text import printable
from ..scripts.code import is_graph
from ..scripts.writing import absolute, comment, filled, script_text, text_of, why_not

Record = Mapping[str, Any]
_MOST: Final = 16


def readme(clause: Record, candidate: Record, report: Record, *, again: str) -> str:
    """The text of README.md; ``again`` says why the script does not call the candidate, or ""."""
    parts = (
        [f"# {clause['id']} fails for {_plain(candidate['name'])}"],
        _requirement(clause),
        _failure(clause),
        _input(clause["counterexample"]),
        _seeing(clause, again),
        _files(clause),
        _surroundings(clause, report),
    )
    return "\n\n".join("\n".join(part) for part in parts) + "\n"


def _plain(text: Any) -> str:
    """A candidate's words on one line, without signs that Markdown knows."""
    kept = "".join(sign if sign not in "<>|`*_[]&\\#" else f"\\{sign}" for sign in str(text))
    return " ".join(printable(kept).split())


def _quoted(text: Any) -> list[str]:
    """A candidate's words as they are, in a block that shows them so."""
    lines = printable(str(text)).splitlines() or [""]
    return [f"    {line}" for line in lines]


def _requirement(clause: Record) -> list[str]:
    level = clause.get("level", "")
    return ["## What must hold", "", f"{_plain(clause.get('requirement', ''))} ({level})"]


def _failure(clause: Record) -> Iterator[str]:
    violation = clause["violation"]
    yield f"## What came instead: {violation['kind']}, in {clause.get('dtype')}"
    yield ""
    yield from _quoted(violation["message"])
    for diagnosis in clause.get("diagnosis") or ():
        yield ""
        yield f"Diagnosis: {_plain(diagnosis.get('name', ''))}. {_plain(diagnosis.get('text', ''))}"


def _input(data: Record) -> Iterator[str]:
    """The smallest input, its numbers where they are few."""
    yield "## The smallest input on which it was seen"
    yield ""
    problem = data.get("problem") or {}
    sizes = problem.get("geometry") or {}
    yield f"Sizes: {', '.join(f'{name} {size}' for name, size in sizes.items())}."
    yield ""
    yield "| call | argument | shape | dtype | values |"
    yield "| --- | --- | --- | --- | --- |"
    for number, call in enumerate(data.get("calls", ())[:_MOST], start=1):
        for name, value in {**call["arguments"], **call["keywords"]}.items():
            if isinstance(value, Mapping):
                yield f"| {number} | {_plain(name)} | {_sized(value)} |"
            else:
                yield f"| {number} | {_plain(name)} = {_plain(value)} | | | |"
    more = len(data.get("calls", ())) - _MOST
    if more > 0:
        yield f"| … | {more} more calls, in failure.json | | | |"


def _sized(tensor: Record) -> str:
    """Shape, dtype and, where they are few, the values of a tensor."""
    values = _rounded(tensor["values"]) if _is_small(tensor) else "in calls.npz"
    return f"{tensor['shape']} | {tensor['dtype']} | {values}"


def _is_small(tensor: Record) -> bool:
    return "values" in tensor and math.prod(tensor["shape"]) <= _MOST


def _rounded(values: Any) -> str:
    """Nested lists of numbers, six digits each."""
    if isinstance(values, list):
        return f"[{', '.join(map(_rounded, values))}]"
    is_number = isinstance(values, float)
    return f"{values:.6g}" if is_number else str(values)


def _seeing(clause: Record, again: str) -> Iterator[str]:
    access = clause["counterexample"].get("access") or {}
    needs = "numpy and onnxruntime" if access.get("graph") else "numpy and torch"
    yield "## Seeing it"
    yield ""
    if again:
        yield "    python show.py"
        yield ""
        yield (
            "shows what was recorded; it needs numpy alone, and exits with 1. The candidate is not "
            f"called again: {_plain(again)}."
        )
        return
    yield "    python show.py            # the candidate where it was"
    yield "    python show.py TARGET     # the candidate at another place: file.py:name"
    yield ""
    yield (
        f"shows what was recorded, then calls the candidate as recorded. It needs {needs} and "
        "the candidate, nothing else. Exit status: 1 while the failure is there, also where the "
        "candidate cannot be loaded; 0 once it answers rightly; 2 for a TARGET that cannot be "
        "loaded."
    )


def _files(clause: Record) -> Iterator[str]:
    yield "## Files"
    yield ""
    yield "| file | what |"
    yield "| --- | --- |"
    yield "| show.py | the script |"
    yield "| inputs.npz | the tensors of the problem, weights included |"
    yield "| calls.npz | the arguments of each call, what came back, what layers were built of |"
    yield "| compared.npz | expected, got and bound, element by element; what of it counts |"
    yield "| failure.json | all that is known, with the file and array of each tensor |"
    if (clause["counterexample"].get("access") or {}).get("graph"):
        yield "| *.onnx | the graph, with the files of its tensors |"
    yield "| manifest.json | the SHA-256 of each of them |"
    yield ""
    yield (
        "Arrays are read with numpy.load(…, allow_pickle=False). Those of bfloat16, which NumPy "
        "has not, hold its 16 bits as uint16."
    )


def _surroundings(clause: Record, report: Record) -> Iterator[str]:
    yield "## Where it was found"
    yield ""
    tool = report.get("tool") or {}
    facts = {
        "attention-conformance": tool.get("version"),
        "specification": tool.get("specification"),
    }
    facts |= dict(report.get("environment") or {})
    facts["clause checked on"] = clause.get("device", "cpu")
    for name, value in facts.items():
        yield f"- {_plain(name)}: {_plain(value)}"


LOST: Final = ("crashed", "hung")
_TITLES: Final = ("expected", "got", "bound", "judged")
_CALL_AGAIN: Final = """
try:
    candidate = load()
except Exception as error:
    leave(f"{TARGET} cannot be loaded here: {type(error).__name__}: {error}")
try:
    fails = still_fails(candidate)
except Exception as error:
    leave(f"{TARGET} cannot be called like this: {type(error).__name__}: {error}")
if fails:
    print("\\nIT STILL FAILS")
    sys.exit(1)
print("\\nit does not fail any more")
"""
_CALL_IN_PROCESS: Final = """
if sys.argv[-1] == ONLY_CALLS:
    try:
        candidate = load()
    except Exception as error:
        print(f"{type(error).__name__}: {error}")
        sys.exit(CANNOT)
    if not still_fails(candidate):
        print(DONE)
    sys.exit(0)
if not survives():
    print("\\nIT STILL FAILS")
    sys.exit(1)
print("\\nit does not fail any more")
"""


def bundle_script(
    clause: Record, target: str, *, graph: str = "", refused: str = "", limit: float = 30.0
) -> str:
    """The text of ``show.py``; ``graph`` is the name of the graph's file in the bundle.

    ``refused`` says why the candidate is not called again, "" where it is; ``limit`` is the time
    limit in seconds for a candidate that hung.
    """
    data = clause["counterexample"]
    recorded = filled(text_of("recorded.py.txt"), _shown(clause, data))
    if refused:
        return _alone(clause, recorded, refused)
    before = [recorded, f"if {_MISSING[is_graph(data)]}"]
    backend = text_of("numpy.py.txt" if is_graph(data) else "torch.py.txt")
    stored = text_of("stored_numpy.py.txt" if is_graph(data) else "stored_torch.py.txt")
    lost = clause["violation"]["kind"] in LOST
    if lost:
        before.append(filled(text_of("survives.py.txt"), {"LIMIT": repr(limit)}))
    return script_text(
        clause,
        _target(target, graph),
        end=_CALL_IN_PROCESS if lost else _CALL_AGAIN,
        before=before,
        backend=f"{backend}\n\n{stored}",
    )


_MISSING: Final = {
    False: 'importlib.util.find_spec("torch") is None:\n    leave("torch is not installed")',
    True: (
        'importlib.util.find_spec("onnxruntime") is None:\n'
        '    leave("onnxruntime is not installed")'
    ),
}


def why_not_again(clause: Record, target: str) -> str:
    """Why the candidate cannot be called again by the recorded calls alone, or ""."""
    if clause["violation"]["kind"] in LOST:
        stand_in = {**clause["violation"], "kind": "raised"}
        return why_not({**clause, "violation": stand_in}, target)
    return why_not(clause, target)


def shows_something(clause: Record) -> bool:
    """Whether files alone show a failure: by what was compared, or by calls."""
    data = clause["counterexample"]
    tables = [data.get(name) for name in _TITLES[:2]]
    if all(isinstance(table, Mapping) and "file" in table for table in tables):
        return True
    return any("output" in call or "refused" in call for call in data.get("calls", ()))


def _alone(clause: Record, recorded: str, refused: str) -> str:
    name = clause["counterexample"].get("candidate")
    parts = {
        "TITLE": comment(f"{clause['id']} fails for {name}: {clause['violation']['message']}"),
        "REQUIREMENT": comment(str(clause.get("requirement") or "")),
        "RECORDED": recorded.strip(),
        "REFUSED": repr(refused),
    }
    return filled(text_of("alone.py.txt"), parts)


def _target(target: str, graph: str) -> str:
    """Where the candidate is, as an expression that prefers the script's argument."""
    own = f"str(Path(__file__).resolve().parent / {graph!r})" if graph else repr(absolute(target))
    has_argument = 'len(sys.argv) > 1 and sys.argv[1] != "--only-calls"'
    return f"sys.argv[1] if {has_argument} else {own}"


def _shown(clause: Record, data: Record) -> dict[str, str]:
    """What the script shows without calling the candidate: a table from titles to arrays."""
    lines = [
        f"    {title!r}: ({entry['file']!r}, {entry['array']!r}, {entry['dtype']!r}),"
        for title, entry in _entries(data)
    ]
    message = printable(str(clause["violation"]["message"]))
    return {"MESSAGE": repr(message), "SHOWN": "\n".join(["{", *lines, "}"])}


def _entries(data: Record) -> Iterator[tuple[str, Record]]:
    """Arguments and answers of the calls, and what was compared."""
    for number, call in enumerate(data.get("calls", ())):
        named = {**call["arguments"], **call["keywords"], "output": call.get("output")}
        for name, entry in named.items():
            if isinstance(entry, Mapping) and "file" in entry:
                yield f"call {number + 1}, {name}", entry
    for title in _TITLES:
        entry = data.get(title)
        if isinstance(entry, Mapping) and "file" in entry:
            yield title, entry
