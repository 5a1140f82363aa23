"""The sentences and counts that several views share."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from ..base.mistake import UNKNOWN, parts_of
from ..base.printable_text import few, printable
from ..base.record import CONTRADICTED

Record = Mapping[str, Any]

_SIZES: Final = {
    "batch": "batch",
    "num_heads": "heads",
    "num_kv_heads": "key/value heads",
    "query_length": "queries",
    "key_length": "keys",
    "head_size": "head size",
    "value_head_size": "value head size",
}
# Calls shown of the way to an exception.
_FRAMES: Final = 4
_OPTIONS: Final = ("causal", "scale", "softcap", "window", "sinks", "dropout")
# Characters shown of a blamed line, whatever a record contains.
_LONGEST_FILE: Final = 240
_LONGEST_CODE: Final = 160
_LAST_LINE: Final = 10**7
# Names of combinations of 1, 2 or 3 parameters.
_COMBINED: Final = {1: "values", 2: "pairs", 3: "triples"}


def counted(number: int, noun: str) -> str:
    """``1 candidate``, ``2 candidates``."""
    return f"{number} {noun}" if number == 1 else f"{number:,} {noun}s"


def cut(text: str, length: int) -> str:
    """Cut a text to a length, with an ellipsis if it was longer."""
    return text if len(text) <= length else f"{text[:length]}…"


def where(clause: Record, separator: str = " ") -> str:
    """The dtype of a result, with the device unless that is the CPU."""
    dtype, device = str(clause["dtype"]), clause["device"]
    return dtype if device == "cpu" else f"{dtype}{separator}{device}".strip()


def counterexample(data: Record) -> str:
    """Describe a failing problem in one line: its sizes and special properties."""
    problem = data.get("problem")
    problem = problem if isinstance(problem, Mapping) else data
    chosen = data.get("chosen")  # what a clause chose in place of the problem's own
    problem = {**problem, **chosen} if isinstance(chosen, Mapping) else problem
    parts = [*_problem_parts(problem, whole=data.get("kind") == "model"), *_emptied(data)]
    return ", ".join(parts)


def _emptied(data: Record) -> Iterator[str]:
    """Yield the first tensor of the last call without elements, cut by a clause."""
    for call in (data.get("calls") or [])[-1:]:
        for name, value in {**call.get("arguments", {}), **call.get("keywords", {})}.items():
            shape = value.get("shape", []) if isinstance(value, Mapping) else []
            if 0 in shape:
                yield f"cut to {name} {list(shape)}"
                return


def _problem_parts(problem: Record, *, whole: bool) -> Iterator[str]:
    """Yield a problem's parts; ``whole``: of a whole model, which takes no heads."""
    geometry = problem.get("geometry")
    if isinstance(geometry, Mapping) and whole:
        keys, queries = geometry.get("key_length"), geometry.get("query_length")
        second = "" if keys == queries else f" and {queries}"
        yield f"batch {geometry.get('batch')}, tokens {keys}{second}"
    elif isinstance(geometry, Mapping):
        same = geometry.get("num_heads") == geometry.get("num_kv_heads")
        names = (name for name in _SIZES if name in geometry)
        sizes = (name for name in names if not (same and name == "num_kv_heads"))
        yield ", ".join(f"{_SIZES[name]} {geometry[name]}" for name in sizes)
    overridden = bool(problem.get("overrides"))
    if "values" in problem and not overridden and not whole:
        yield f"values {problem['values']}"
    if mask := problem.get("mask"):
        yield _mask(mask)
    options = ((name, problem.get(name)) for name in _OPTIONS)
    yield from (
        name if value is True else f"{name} {value}"
        for name, value in options
        if value not in (None, False)
    )
    yield from _special(problem)
    rebuilt = ("dtype",) if overridden else ("dtype", "seed")
    yield from (f"{name} {problem[name]}" for name in rebuilt if name in problem)


def _special(problem: Record) -> Iterator[str]:
    if problem.get("return_weights"):
        yield "weights returned"
    if problem.get("layout", "contiguous") != "contiguous":
        yield f"tensors {problem['layout']}"
    if problem.get("mask_layout", "contiguous") != "contiguous" and problem["mask"]:
        yield f"mask {problem['mask_layout']}"
    if problem.get("shared"):
        yield "one tensor" if problem["shared"] == "all" else "key is value"


def _mask(mask: Any) -> str:
    if not isinstance(mask, Mapping):
        return f"mask {mask}"
    shape = ", ".join(str(mask.get("shape", "")))
    return f"mask {mask.get('pattern', '')} as {mask.get('form', '')}[{shape}]"


def coverage(candidate: Record) -> str:
    """What share of the combinations of a candidate's parameters ran; "" if none did."""
    data = candidate.get("coverage")
    numbers = data if isinstance(data, Mapping) else {}
    covered, total, strength = map(numbers.get, ("covered", "combinations", "strength"))
    if not (isinstance(covered, int) and isinstance(total, int) and isinstance(strength, int)):
        return ""
    # Cut off, not rounded: 100% would say that nothing is missing.
    share = "all" if covered == total else f"{covered * 1000 // total / 10:.1f}% of"
    what = f"{total:,} {_COMBINED.get(strength, 'values')} of options, sizes and places in memory"
    impossible = numbers.get("impossible") or ()
    cannot = sum(int(entry.get("combinations", 0)) for entry in impossible)
    return f"combinations: {share} {what} were tried; {cannot:,} more cannot meet"


def diagnosis(entries: Sequence[Record]) -> list[tuple[str, str]]:
    """The mistakes of the catalogue that the answers match, with their fixes, as label and text."""
    pairs = []
    for index, entry in enumerate(entries):
        text = ": ".join(filter(None, (str(entry.get(key) or "") for key in ("name", "text"))))
        confidence = entry.get("confidence")
        if confidence and float(confidence) != 1.0:
            number = f"{confidence:.2g}" if isinstance(confidence, float) else str(confidence)
            text = f"{text} (confidence {number})"
        pairs.append(("or" if index else "diagnosis", text))
        pairs.append(("fix", str(entry.get("fix") or "")))
    pairs.append(("line", next(filter(None, map(said_line, entries)), "")))
    return pairs


class BlamedLine(NamedTuple):
    """The blamed line of a user's file; ``before``: the missing code belongs in front of it."""

    file: str
    number: int
    text: str
    before: bool


def blamed_line(entry: Record) -> BlamedLine | None:
    """Return the line blamed by a cause or an entry of a diagnosis, or None."""
    line = entry.get("line")
    if not isinstance(line, Mapping):
        return None
    file, text = (
        printable(" ".join(str(line.get(name) or "").split())) for name in ("file", "text")
    )
    number = line.get("number")
    if not file or type(number) is not int or not 0 < number <= _LAST_LINE:
        return None
    whole = file if len(file) <= _LONGEST_FILE else f"…{file[-_LONGEST_FILE:]}"
    return BlamedLine(whole, number, cut(text, _LONGEST_CODE), line.get("before") is True)


def said_line(entry: Record) -> str:
    """``attention.py:32: scores = query @ key.T``; "" where no line is blamed."""
    line = blamed_line(entry)
    if line is None:
        return ""
    place = f"{'wrong or missing before ' if line.before else ''}{line.file}:{line.number}"
    return f"{place}: {line.text}" if line.text else place


# Clauses of a cause listed in a few lines; above this they are counted by family.
_MOST_LISTED: Final = 20


def count_by_family(clauses: Sequence[str]) -> str:
    """``mask.* 12, shape.* 9``: of many clauses how many are of each family, "" of a few."""
    if len(clauses) <= _MOST_LISTED:
        return ""
    families = Counter(slug.partition(".")[0] for slug in clauses)
    return ", ".join(f"{family}.* {count}" for family, count in families.items())


def causes(candidate: Record) -> list[Record]:
    """The causes of a candidate; a record of an older version has none."""
    empty = {"level": "MUST", "text": "", "fix": "", "clauses": []}
    return [{**empty, **cause} for cause in candidate.get("causes") or ()]


def sort_by_urgency(candidates: Iterable[Record]) -> list[Record]:
    """Sort candidates: failing with a fix, failing without a fix, then the rest."""

    def place(candidate: Record) -> int:
        failing = [cause for cause in causes(candidate) if cause["level"] == "MUST"]
        if any(cause["fix"] for cause in failing):
            return 0
        return 1 if failing else 2

    return sorted(candidates, key=place)


def cause_title(cause: Record) -> str:
    """Return the name and text of a cause, with equally good names.

    A statement's ``kind: words`` is shortened to its kind if the text says the words.
    """
    text, said = str(cause["text"]), parts_of(str(cause["name"]))
    names = [said, *(parts_of(str(one["name"])) for one in cause.get("alternatives") or ())]
    name = " or ".join(
        "+".join(_short_name(part, text if part in said else "") for part in parts)
        for parts in names
    )
    return printable(f"{name}: {text}" if text and text != name else name)


def new_words(cause: Record, failure: Record) -> str:
    """Return the message of a cause's failure, "" if the cause's title says the same."""
    said = message(failure) if failure else ""
    return "" if said in cause_title(cause) else said


def _short_name(name: str, text: str) -> str:
    """Shorten a statement's name ``kind: words`` to its kind: the text says the words."""
    return name.partition(": ")[0] if text else name


def failure_of(candidate: Record, cause: Record) -> Record:
    """Return the failing clause whose smallest input a cause shows; empty if missing."""
    named = cause.get("failure") or {}
    every = candidate["clauses"] if named else ()
    fitting = (one for one in every if all(one.get(key) == named[key] for key in named))
    return next(fitting, {})


def cause_of(candidate: Record, clause: Record) -> Record | None:
    """Return the cause of a failed clause; of several the cause of its own diagnosis."""
    listed = [cause for cause in causes(candidate) if clause["id"] in cause["clauses"]]
    diagnosed = {entry["name"] for entry in clause["diagnosis"]} | {clause.get("explained_by")}
    for names in (diagnosed, {clause["id"]}):
        own = [cause for cause in listed if cause["name"] in names]
        if own:
            return own[0]
    return listed[0] if listed else None


def sort_by_cause(candidate: Record) -> list[Record]:
    """The clauses of a candidate cause by cause, what shows a cause best first; then the others."""
    order: dict[str, int] = {}
    shown: list[Record] = []
    for number, cause in enumerate(causes(candidate)):
        order.update({slug: order.get(slug, number) for slug in cause["clauses"]})
        shown.append(failure_of(candidate, cause))

    def place(clause: Record) -> tuple[int, bool]:
        number = order.get(clause["id"], len(order)) if clause["status"] == "failed" else len(order)
        return number, not any(clause is one for one in shown)

    return sorted(candidate["clauses"], key=place)


def caused(clause: Record) -> str:
    """Return ``scale-missing (the scores are not scaled): `` as a prefix; "" if unnamed."""
    known = [entry for entry in clause.get("diagnosis") or () if entry.get("name") != UNKNOWN]
    text = cut(" ".join(str(known[0].get("text") or "").split()), _LONGEST_CODE) if known else ""
    parts = [parts_of(str(entry.get("name") or "")) for entry in known]
    names = ["+".join(_short_name(part, text) for part in each) for each in parts]
    explained = str(clause.get("explained_by") or "")
    name = " or ".join(filter(None, names)) or ("" if explained == UNKNOWN else explained)
    return printable(f"{name} ({text}): " if name and text else f"{name}: " if name else "")


def message(clause: Record) -> str:
    """Return a clause's result in one sentence: the violation, else the reason."""
    violation = clause.get("violation")
    reason = str(clause.get("reason") or "")
    text = "" if violation is None else str(violation["message"])
    both = bool(text and reason and reason != text)
    return printable(f"{text} ({reason})" if both else text or reason)


def explanation(clause: Record) -> list[tuple[str, str]]:
    """Everything a person needs to understand a failing clause, as pairs of label and text."""
    pairs = [
        ("requires", str(clause.get("requirement") or "")),
        ("found", message(clause)),
        *raised_at(clause.get("violation") or {}),
        ("on", counterexample(clause["counterexample"]) if clause.get("counterexample") else ""),
        *diagnosis(clause.get("diagnosis") or ()),
        ("explained", _explained(clause)),
        ("blame", _blame(clause)),
    ]
    return [(label, printable(text)) for label, text in pairs if text]


def raised_at(violation: Record) -> list[tuple[str, str]]:
    """The calls that led to an exception, innermost first and cut short, as label and text."""
    lines = str(violation.get("traceback") or "").splitlines()
    shown = reversed(lines[-_FRAMES:])
    return [("called at" if number else "raised at", line) for number, line in enumerate(shown)]


def _explained(clause: Record) -> str:
    name = clause.get("explained_by")
    if name == UNKNOWN:
        return "answers that are wrong in other failures, too, make this clause fail"
    return f"{name}, the mistake of other failures, makes this clause fail, too" if name else ""


def _blame(clause: Record) -> str:
    """Return the blamed step of an export, without the message of the violation."""
    text = str((clause.get("blame") or {}).get("text", ""))
    repeated = str((clause.get("violation") or {}).get("message", ""))
    return text.replace(f" ({repeated})", "") if repeated else text


def margin(value: Any) -> str:
    """A margin (error over bound) with two digits; "" where no numbers were compared."""
    return "" if value is None else f"{float(value):.2g}"


def seconds(value: float) -> str:
    """``0.25 s``, ``4.1 s`` or ``12 min 5 s``."""
    minutes, rest = divmod(round(value), 60)
    if minutes:
        return f"{minutes} min {rest} s"
    return f"{value:.2f} s" if value < 1 else f"{value:.1f} s"


_EXPECTATIONS: Final = {
    "expired": "expired expectation",
    "different": "not the expected failure",
}


def expectation(entry: Record) -> tuple[str, str]:
    """Return the problem of an expectation that does not hold, with a description."""
    candidate = str(entry.get("candidate") or "*")
    text = str(entry["clause"]) + ("" if candidate == "*" else f" of {candidate}")
    text += f" ({entry['reason']}): {entry['why']}"
    text += f"; {entry['change']}" if entry.get("change") else ""
    return _EXPECTATIONS.get(str(entry.get("problem")), "stale expectation"), text


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
    """Return the heads of a table of candidates, without empty columns."""
    return [
        name
        for name in COLUMNS
        if name in _ALWAYS_SHOWN or any(count(candidate, name) for candidate in candidates)
    ]


def count(candidate: Record, column: str) -> int:
    """The number of a candidate's clauses under a head, each counted once."""
    status, must = COLUMNS[column]
    return sum(
        clause["status"] == status and must in (None, clause["level"] == "MUST")
        for clause in worst_results(candidate["clauses"])
    )


_TOLERATED: Final = "tolerated"
_WORST_FIRST: Final = (
    *("error", "failed", "unexpected-pass", "untestable", _TOLERATED, "expected-failure"),
    *("passed", "not-applicable"),
)


def worst_results(clauses: Iterable[Record]) -> list[Record]:
    """Return the clauses once each, with the worst result of all dtypes and devices."""

    def place(clause: Record) -> int:
        status = str(clause["status"])
        tolerated = status == "failed" and clause["level"] != "MUST"
        return _WORST_FIRST.index(_TOLERATED if tolerated else status)

    worst: dict[str, Record] = {}
    for clause in clauses:
        other = worst.setdefault(str(clause["id"]), clause)
        if place(clause) < place(other):
            worst[str(clause["id"])] = clause
    return list(worst.values())


def worst_margin(candidate: Record) -> tuple[str, str]:
    """Return the largest margin of the passed clauses, and its clause."""
    passed = [
        clause
        for clause in candidate["clauses"]
        if clause["margin"] is not None and clause["status"] == "passed"
    ]
    if not passed:
        return "-", ""
    worst = max(passed, key=lambda clause: float(clause["margin"]))
    return margin(worst["margin"]), str(worst["id"])


def verdict_reason(candidate: Record) -> str:
    """Return the reason of a verdict; for a failing candidate the numbers of clauses and causes."""
    musts = [clause for clause in candidate.get("clauses") or () if clause["level"] == "MUST"]
    failed = [clause for clause in musts if clause["status"] == "failed"]
    reason = str(candidate.get("verdict_reason") or "")
    if not failed or candidate.get("verdict") != "fails" or reason.startswith(CONTRADICTED):
        return reason
    applicable = {clause["id"] for clause in musts if clause["status"] != "not-applicable"}
    several = (
        f"{len({clause['id'] for clause in failed})} of {counted(len(applicable), 'MUST clause')}"
    )
    many = sum(cause["level"] == "MUST" for cause in causes(candidate))
    return f"{several} failed" + (f", for {counted(many, 'cause')}" if many else "")


def reason_with_causes(candidate: Record) -> str:
    """The reason for a verdict with the names of the causes, for a cell of a table."""
    names = [str(cause["name"]) for cause in causes(candidate) if cause["level"] == "MUST"]
    named = f": {few(names)}" if names and candidate.get("verdict") == "fails" else ""
    return f"{verdict_reason(candidate)}{named}"


def site(candidate: Record) -> str:
    """Describe an attention's place in a model and its facts, in one line; else ""."""
    entry = candidate.get("site")
    if not isinstance(entry, Mapping):
        return ""
    same = entry.get("same_as") or ()
    parts = [
        f"attention {entry.get('index')}",
        *(str(entry[key]) for key in ("scope",) if entry.get(key)),
        site_heads(entry),
        site_mask(entry),
        site_causality(entry),
        f"the same as {', '.join(map(str, same))}{_otherwise(entry)}" if same else "",
    ]
    return ", ".join(filter(None, parts))


def blamed_site(candidate: Record, cause: Record) -> str:
    """Describe the attention of a whole model blamed by a cause, in one line; else ""."""
    violation = failure_of(candidate, cause).get("violation") or {}
    index = (violation.get("measured") or {}).get("site")
    entries = candidate.get("sites") or ()
    return next((site({"site": one}) for one in entries if one.get("index") == index), "")


def _otherwise(entry: Record) -> str:
    """Return `` (but 1, 3 causal)``: equal attentions with different visible keys."""
    seeing: dict[str, list[str]] = {}
    for other in entry.get("otherwise") or ():
        seeing.setdefault(site_causality(other), []).append(str(other.get("index")))
    said = "; ".join(f"{', '.join(own)} {words}" for words, own in seeing.items())
    return f" (but {said})" if said else ""


def site_heads(entry: Record) -> str:
    """``4 heads of 8 (2 key/value heads)``."""
    heads, kv_heads, size = (entry.get(key) for key in ("heads", "kv_heads", "head_size"))
    text = f"{heads} heads" if heads else "heads"
    text += f" of {size}" if size else ""
    return text + (f" ({kv_heads} key/value heads)" if kv_heads and kv_heads != heads else "")


def site_mask(entry: Record) -> str:
    """Return ``keep mask of attention_mask``: the kinds of its masks and their inputs."""
    roles = [str(mask.get("role")) for mask in entry.get("mask") or ()]
    inputs = ", ".join(map(str, entry.get("mask_inputs") or ()))
    if not roles:
        return f"keys counted by {inputs}" if inputs else "no mask"
    return f"{' and '.join(roles)} mask" + (f" of {inputs}" if inputs else " of no input")


def site_causality(entry: Record) -> str:
    """Whether later keys are hidden while the caller hides nothing."""
    words = {True: "causal", False: "not causal"}.get(entry.get("causal"), "causality unknown")  # type: ignore[arg-type]  # None is neither
    if misplaced := entry.get("misplaced"):
        return f"a query sees {misplaced}"
    window = entry.get("window")
    return words if window is None else f"{words} in a window of {window} keys"
