"""The sentences and counts that several views share."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from ..base.texts import printable

_SIZES: Final = {
    "batch": "batch",
    "num_heads": "heads",
    "num_kv_heads": "key/value heads",
    "query_length": "queries",
    "key_length": "keys",
    "head_size": "head size",
    "value_head_size": "value head size",
}
# How many calls are shown of the way to an exception.
_FRAMES: Final = 4
_OPTIONS: Final = ("causal", "scale", "softcap", "window", "sinks", "dropout")
_COUNTED: Final = ("covered", "combinations", "strength")
# How many values of different parameters a combination has.
_OF: Final = {1: "values", 2: "pairs", 3: "triples"}


def counterexample(data: Mapping[str, Any]) -> str:
    """One line: how big a failing problem is and what is in it. The report holds the rest."""
    problem = data.get("problem")
    problem = problem if isinstance(problem, Mapping) else data
    geometry = problem.get("geometry")
    parts = [_sizes(geometry)] if isinstance(geometry, Mapping) else []
    plain = bool(problem.get("overrides"))
    if "values" in problem and not plain:
        parts.append(f"values {problem['values']}")
    if problem.get("mask"):
        parts.append(_mask(problem["mask"]))
    for name in _OPTIONS:
        value = problem.get(name)
        if value not in (None, False):
            parts.append(name if value is True else f"{name} {value}")
    parts.extend(_asked(problem))
    rebuilt = ("dtype",) if plain else ("dtype", "seed")
    parts.extend(f"{name} {problem[name]}" for name in rebuilt if name in problem)
    return ", ".join(parts)


def _asked(problem: Mapping[str, Any]) -> Iterator[str]:
    """What else the call asks for, and how its tensors lie in memory, where that is special."""
    if problem.get("return_weights"):
        yield "weights returned"
    for name, told in (("layout", "tensors"), ("mask_layout", "mask")):
        if problem.get(name, "contiguous") != "contiguous" and (told != "mask" or problem["mask"]):
            yield f"{told} {problem[name]}"
    if problem.get("shared"):
        yield "one tensor" if problem["shared"] == "all" else "key is value"


def coverage(candidate: Mapping[str, Any]) -> str:
    """What share of the combinations of a candidate's parameters was asked, "" if none was."""
    told = candidate.get("coverage")
    if not isinstance(told, Mapping):
        return ""
    numbers = [one for one in map(told.get, _COUNTED) if isinstance(one, int)]
    if len(numbers) != len(_COUNTED):
        return ""
    covered, of, strength = numbers
    share = "all" if covered == of else f"{covered / of:.1%} of"
    what = f"{of:,} {_OF.get(strength, 'values')} of options, sizes and places in memory"
    cannot = sum(int(one.get("combinations", 0)) for one in told.get("impossible") or ())
    return f"combinations: {share} {what} were asked; {cannot:,} more cannot meet"


def _sizes(geometry: Mapping[str, Any]) -> str:
    same = geometry.get("num_heads") == geometry.get("num_kv_heads")
    names = [name for name in _SIZES if name in geometry]
    if same:
        names = [name for name in names if name != "num_kv_heads"]
    return ", ".join(f"{_SIZES[name]} {geometry[name]}" for name in names)


def _mask(mask: Any) -> str:
    if not isinstance(mask, Mapping):
        return f"mask {mask}"
    where = f"{mask.get('form', '')}[{', '.join(str(mask.get('shape', '')))}]"
    return f"mask {mask.get('pattern', '')} as {where}"


def diagnosis(entries: Sequence[Mapping[str, Any]]) -> list[tuple[str, str]]:
    """What known mistakes the answers match, and what to do about each, as label and text."""
    pairs = []
    for index, entry in enumerate(entries):
        pairs.append(("or" if index else "diagnosis", _cause(entry)))
        pairs.append(("fix", str(entry.get("fix") or "")))
    return pairs


def _cause(entry: Mapping[str, Any]) -> str:
    """``name: what is wrong``, and how sure that is where it is not certain."""
    told = ": ".join(filter(None, (str(entry.get(key) or "") for key in ("name", "text"))))
    confidence = entry.get("confidence")
    if not confidence or float(confidence) == 1.0:
        return told
    return f"{told} (confidence {_number(confidence)})"


def _number(value: Any) -> str:
    return f"{value:.2g}" if isinstance(value, float) else str(value)


def message(clause: Mapping[str, Any]) -> str:
    """What a clause's result says in one sentence: the violation, else the reason."""
    violation = clause.get("violation")
    reason = str(clause.get("reason") or "")
    said = "" if violation is None else str(violation["message"])
    both = bool(said and reason and reason != said)
    return printable(f"{said} ({reason})" if both else said or reason)


def explanation(clause: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Everything a person needs to understand a failing clause, as pairs of label and text."""
    pairs = [
        ("requires", str(clause.get("requirement") or "")),
        ("found", message(clause)),
        *raised_at(clause.get("violation") or {}),
        ("on", counterexample(clause["counterexample"]) if clause.get("counterexample") else ""),
        *diagnosis(clause.get("diagnosis") or ()),
        ("blame", _blame(clause)),
    ]
    return [(label, printable(text)) for label, text in pairs if text]


def raised_at(violation: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Where an exception was raised and what called that, innermost first, as label and text.

    The record has the whole way.
    """
    lines = str(violation.get("traceback") or "").splitlines()
    shown = list(reversed(lines[-_FRAMES:]))
    return [("called at" if number else "raised at", line) for number, line in enumerate(shown)]


def _blame(clause: Mapping[str, Any]) -> str:
    """Which step of an export is to blame; what the step said is left out where it is found."""
    text = str((clause.get("blame") or {}).get("text", ""))
    said = str((clause.get("violation") or {}).get("message", ""))
    return text.replace(f" ({said})", "") if said else text


def margin(value: Any) -> str:
    """A margin (error over bound) with two digits; nothing where no numbers were compared."""
    return "" if value is None else f"{float(value):.2g}"


def seconds(value: float) -> str:
    """A duration to a tenth of a second, to a hundredth below one."""
    return f"{value:.2f} s" if value < 1 else f"{value:.1f} s"


Record = Mapping[str, Any]

COLUMNS: Final = {  # status, and whether only that of a MUST (or only that of the others) counts
    "passed": ("passed", None),
    "failed": ("failed", True),
    "SHOULD failed": ("failed", False),
    "expected": ("expected-failure", None),
    "unexpected": ("unexpected-pass", None),
    "untestable": ("untestable", None),
    "n/a": ("not-applicable", None),
    "error": ("error", None),
}
_ALWAYS_SHOWN: Final = ("passed", "failed", "expected", "n/a")


def shown_columns(candidates: Sequence[Record]) -> list[str]:
    """The heads of a table of candidates: those that would be empty are left out."""
    return [
        name
        for name in COLUMNS
        if name in _ALWAYS_SHOWN or any(count(candidate, name) for candidate in candidates)
    ]


def count(candidate: Record, column: str) -> int:
    """The number of a candidate's clauses under a head."""
    status, must = COLUMNS[column]
    return sum(
        clause["status"] == status and must in (None, clause["level"] == "MUST")
        for clause in candidate["clauses"]
    )


def worst_margin(candidate: Record) -> tuple[str, str]:
    """The margin that came nearest to its bound among clauses that passed, and whose it is."""
    passed = [
        clause
        for clause in candidate["clauses"]
        if clause["margin"] is not None and clause["status"] == "passed"
    ]
    if not passed:
        return "-", ""
    worst = max(passed, key=lambda clause: float(clause["margin"]))
    return margin(worst["margin"]), str(worst["id"])
