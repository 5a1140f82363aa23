"""The page of a bundle for a person, and its script."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from importlib import resources
from typing import Any, Final

import jinja2

from ...base.printable_text import printable
from ..scripts.code import is_graph
from ..scripts.writing import absolute, comment, filled, script_text, text_of, why_not

Record = Mapping[str, Any]
_MOST: Final = 16


def readme(clause: Record, candidate: Record, report: Record, *, again: str) -> str:
    """The text of README.md; ``again`` says why the script does not call the candidate, or ""."""
    pages = jinja2.Environment(
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,  # noqa: S701 (Markdown, not HTML: the filters take its signs away)
    )
    pages.filters.update(plain=_plain, lines=_lines, sized=_sized)
    data = clause["counterexample"]
    tool = report.get("tool") or {}
    facts = {
        "attention-conformance": tool.get("version"),
        "specification": tool.get("specification"),
        **(report.get("environment") or {}),
        "clause checked on": clause.get("device", "cpu"),
    }
    page = resources.files(__package__).joinpath("readme.md.jinja").read_text("utf-8")
    return pages.from_string(page).render(
        clause=clause,
        candidate=candidate,
        sizes=(data.get("problem") or {}).get("geometry") or {},
        calls=data.get("calls", ()),
        most=_MOST,
        again=again,
        graph=(data.get("access") or {}).get("graph"),
        facts=facts,
    )


def _plain(text: Any) -> str:
    """A candidate's words on one line, without signs that Markdown knows."""
    kept = "".join(sign if sign not in "<>|`*_[]&\\#" else f"\\{sign}" for sign in str(text))
    return " ".join(printable(kept).split())


def _lines(text: Any) -> list[str]:
    """A candidate's words for a verbatim block: without marks of Markdown escaped."""
    return printable(str(text)).splitlines() or [""]


def _sized(tensor: Record) -> str:
    """Shape, dtype and, where they are few, the values of a tensor."""
    small = "values" in tensor and math.prod(tensor["shape"]) <= _MOST
    values = _rounded(tensor["values"]) if small else "in calls.npz"
    return f"{tensor['shape']} | {tensor['dtype']} | {values}"


def _rounded(values: Any) -> str:
    if isinstance(values, list):
        return f"[{', '.join(map(_rounded, values))}]"
    is_number = isinstance(values, float)
    return f"{values:.6g}" if is_number else str(values)


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
