"""The record of a run: the types of the JSON document, the reader and the exit code."""

from __future__ import annotations

import functools
import json
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import UnionType
from typing import (
    Any,
    Final,
    Literal,
    NoReturn,
    Required,
    TypedDict,
    Union,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)

from ..errors import UsageError
from .results import Status

SCHEMA: Final = 1
TOOL: Final = "attention-conformance"
GREEN: Final = ("conforms", "conforms-with-deviations", "conforms-up-to-gauge")
VERDICTS: Final = (*GREEN, "inconclusive", "fails", "error")
# The options of a record that make a run one of some clauses, dtypes or devices alone.
CHOSEN: Final = {"only": "--only", "skip": "--skip", "dtypes": "--dtype", "devices": "--device"}
# How the reason begins for a verdict that the clauses of a record contradict.
CONTRADICTED: Final = "the record says "
EXIT_OK: Final = 0
EXIT_RED: Final = 1
EXIT_USAGE: Final = 2
EXIT_HARNESS: Final = 3
EXIT_INTERRUPTED: Final = 130
STANDARD_INPUT: Final = Path("-")
# Report, its candidates, a candidate, its clauses: every entry of the four has its own line.
_ON_LINES: Final = 4
# Records nest some fifteen levels deep.
_DEEPEST: Final = 100

Number = float | Literal["nan", "inf", "-inf"]  # JSON has no numbers that are not finite


class ViolationEntry(TypedDict, total=False):
    """How an answer broke a clause: :class:`conformance.base.results.Violation` as JSON."""

    kind: str
    message: Required[str]
    expected: Any
    got: Any
    where: list[Any]
    measured: dict[str, Any]
    compared: dict[str, Any]
    traceback: str


class PictureEntry(TypedDict, total=False):
    """The weights of one item and head of a failing problem, each table ``[query][key]``.

    Those ``got`` are read from the candidate's answers to values that are one at a single key.

    text
        The worst weight in a sentence.
    item, items, head, heads
        Which batch item and head this is, the one whose weights differ most, and of how many.
    first, sizes, worst
        Pairs of query and key: where the tables begin, how many there are, the worst weight.
    hidden, wrong
        Keys that a query may not attend; weights that rounding does not explain.
    logits
        Where they are what is wrong: the logarithms of both weights, less that of the row's
        heaviest key; None where there is no number.
    """

    text: Required[str]
    item: Required[int]
    items: Required[int]
    head: Required[int]
    heads: Required[int]
    first: Required[list[int]]
    sizes: Required[list[int]]
    worst: Required[list[int]]
    expected: Required[list[list[Number]]]
    got: Required[list[list[Number]]]
    hidden: Required[list[list[bool]]]
    wrong: Required[list[list[bool]]]
    logits: dict[str, list[list[Number | None]]]


class LineEntry(TypedDict, total=False):
    """The line of a user's file that makes a mistake: from 1, with its text.

    With ``before`` the line is right, and something is missing in front of it.
    """

    file: Required[str]
    number: Required[int]
    text: Required[str]
    before: bool


class DiagnosisEntry(TypedDict, total=False):
    """What explains a failure: its name, a sentence, what to change, and how sure that is.

    ``facts`` are those about a mistake without a name; of its ``text``, ``common`` is what all
    wrong answers share and ``example`` what is true of this failure's. Of each name the first
    failure that could be read has a ``picture``, and so have later ones on smaller problems. What
    an earlier call makes wrong is so ``after`` it: its ``problem``, and what ``call`` that is.
    Where several mistakes are made together, ``parts`` are these: each with its name, text and fix,
    its line where that is known, and whether it makes this clause fail ``alone``.
    """

    name: str
    text: str
    fix: str
    confidence: Number
    line: LineEntry
    facts: dict[str, Any]
    common: str
    example: str
    picture: PictureEntry
    after: dict[str, Any]
    parts: list[dict[str, Any]]


class ClauseEntry(TypedDict, total=False):
    """The result of one clause: :class:`conformance.base.results.ClauseResult` as JSON.

    ``requirement`` is the clause's sentence. Only ``id`` and ``status`` are in every record.
    """

    id: Required[str]
    family: str
    level: str
    status: Required[Status]
    reason: str
    requirement: str
    examples: int
    binding: int
    seconds: float
    dtype: str
    device: str
    margin: Number | None
    violation: ViolationEntry | None
    counterexample: dict[str, Any] | None
    diagnosis: list[DiagnosisEntry]
    blame: dict[str, Any] | None
    planned: Any
    trail: Any
    coverage: Any
    explained_by: str


class CauseEntry(TypedDict, total=False):
    """Why some clauses failed: :func:`conformance.session.report.causes_of`.

    ``name`` is that of a mistake, ``unknown-mistake``, what failures without a name share
    (``exception``, ``not-finite``, ``wrong-shape``, ``one-attention`` ...) or a clause.
    ``clauses`` are the slugs of what fails of it, ``level`` the strictest of theirs.
    ``counterexample`` is the smallest among them, and ``failure`` says whose it is: id, dtype and
    device. ``alternatives`` are other mistakes that explain all of them as well, with text, fix and
    confidence.
    """

    name: Required[str]
    text: str
    fix: str
    confidence: Number
    line: LineEntry
    level: str
    clauses: Required[list[str]]
    failure: dict[str, Any]
    counterexample: dict[str, Any] | None
    alternatives: list[dict[str, Any]]


class SiteEntry(TypedDict, total=False):
    """Where in a whole model an attention lies, and what is read off the model about it.

    index
        Its place among the attentions of the model, in the order of execution.
    nodes, scope
        The names of its nodes; the path of the module that it comes from, "" where none is known.
    same_as
        The other attentions that are the same but for weights and names.
    heads, kv_heads, head_size, scale, softcap
        Numbers that the file says, None where it does not, or where nothing is capped.
    scaled_above
        The factor on its query and key before they enter, where there is one.
    mask, mask_inputs
        Its masks, each with ``role``, ``axes`` and ``tensor``; the inputs that reach them.
    causal, window, misplaced
        Whether it hides the later keys while the caller hides nothing, None: not known; how many
        keys a query sees then, None: all up to its own; and which, where that is a mistake, or "".
    otherwise
        Those of ``same_as`` that see other keys then: index, causal, window, misplaced of each.
    sinks
        Whether each head has one more score beside those of the keys.
    options
        The attributes of an operator that its attention is judged without.
    """

    index: Required[int]
    nodes: Required[list[str]]
    scope: Required[str]
    same_as: Required[list[int]]
    heads: int | None
    kv_heads: int | None
    head_size: int | None
    mask: list[dict[str, str]]
    mask_inputs: list[str]
    causal: bool | None
    window: int | None
    misplaced: str
    otherwise: list[dict[str, Any]]
    scale: float | None
    scaled_above: float
    softcap: float | None
    sinks: bool
    options: dict[str, int]


@dataclass(frozen=True, kw_only=True)
class Reading:
    """Facts about an undeclared candidate, whose promises are the harness' own reading.

    ``unread`` is the reason why the answers were not explained, or "". ``mistakes`` are the
    departures from the promises seen at the reading. ``meant`` are fields of the semantics that
    further evidence shows to be meant. ``idle_masks`` are parameters to which calls give masks
    without hidden keys, though no name or document explains the parameters. ``unnamed``: a search
    found no change of attention that makes the unread answers.
    """

    unread: str = ""
    mistakes: tuple[str, ...] = ()
    meant: tuple[str, ...] = ()
    idle_masks: tuple[str, ...] = ()
    unnamed: bool = False


class CandidateEntry(TypedDict, total=False):
    """One candidate: its verdict, and a result for each clause, dtype and device.

    ``beside`` holds the options of a graph. ``shard`` is what :mod:`conformance.session.merging`
    needs for the verdict. ``source`` names the record of a comparison that it comes from. ``site``
    is there for an attention of a whole model, ``sites`` for the model: all that can be judged.
    ``reading`` is there for what nobody declared.
    """

    target: str
    name: Required[str]
    kind: str
    location: dict[str, Any]
    declaration: dict[str, Any]
    site: SiteEntry
    sites: list[SiteEntry]
    reading: dict[str, Any]
    beside: Any
    verdict: Required[str]
    verdict_reason: str
    warnings: list[Any]
    unchecked: Any
    counts: Any
    seconds: float
    coverage: dict[str, Any]
    causes: list[CauseEntry]
    clauses: Required[list[ClauseEntry]]
    shard: Any
    source: Any


class StaleEntry(TypedDict, total=False):
    """An expected failure that does not hold: what it says, and ``why`` it does not hold."""

    clause: Required[str]
    candidate: str
    reason: str
    why: str
    kind: Any
    diagnosis: Any
    dtype: Any
    device: Any
    expires: Any
    file: Any
    line: Any
    problem: str
    change: Any


class Record(TypedDict, total=False):
    """One run, or several runs as one: what ``conformance check --json`` writes.

    Keys that one command adds: ``merged`` (merge), ``compared`` (compare), ``module`` and
    ``exports`` (export-check).
    """

    schema: int
    tool: dict[str, Any]
    environment: dict[str, Any]
    profile: Any
    seed: int | str | None
    started: Any
    seconds: float
    interrupted: bool
    fail_on: Any
    options: dict[str, Any]
    shard: dict[str, Any]
    limit: dict[str, Any]
    stopped: dict[str, Any]
    explored: dict[str, Any]
    isolated: str
    merged: dict[str, Any]
    compared: Any
    written_expectations: Any
    stale_expectations: list[StaleEntry]
    clauses: dict[str, dict[str, Any]]
    candidates: Required[list[CandidateEntry]]
    module: Any
    exports: Any


def is_cut(record: Mapping[str, Any]) -> bool:
    """Whether a time limit ended the run before every clause was done."""
    return bool(record.get("limit", {}).get("reached", False))


def exit_code(record: Mapping[str, Any], *, strict: bool = False) -> int:
    """0 when every candidate conforms, 1 when one does not, 3 when the harness failed.

    A shard without failures gives no verdict, but its run is green: the merged record decides. A
    green run whose file of expected failures could not be written is bad input: the next run would
    not be green.
    """
    if record["interrupted"]:
        return EXIT_INTERRUPTED
    verdicts = [candidate["verdict"] for candidate in record["candidates"]]
    if "error" in verdicts:
        return EXIT_HARNESS
    green = (*GREEN, "inconclusive") if record.get("shard") else GREEN
    clauses = [clause for candidate in record["candidates"] for clause in candidate["clauses"]]
    failed = {clause.get("level") for clause in clauses if clause["status"] == "failed"}
    red = (
        not verdicts
        or any(verdict not in green for verdict in verdicts)
        or is_cut(record)
        or record["stale_expectations"]
        or (strict and "SHOULD" in failed)
    )
    if red:
        return EXIT_RED
    return EXIT_USAGE if record.get("written_expectations", {}).get("refused") else EXIT_OK


def record_text(record: Mapping[str, Any]) -> str:
    """The JSON document of a record, with one line for each clause of a candidate.

    Deeper values share the line: a line a number would take three times the room.
    """
    return _indented(record, depth=_ON_LINES) + "\n"


def _indented(value: Any, *, depth: int, margin: str = "") -> str:
    """JSON whose containers down to ``depth`` have a line an entry."""
    if not depth or not value or not isinstance(value, (dict, list)):
        return json.dumps(value, ensure_ascii=False, allow_nan=False)
    inner = f"{margin}  "
    entries: Iterable[tuple[str, Any]] = (
        ((f"{json.dumps(name, ensure_ascii=False)}: ", entry) for name, entry in value.items())
        if isinstance(value, dict)
        else (("", entry) for entry in value)
    )
    lines = ",\n".join(
        f"{inner}{name}{_indented(entry, depth=depth - 1, margin=inner)}" for name, entry in entries
    )
    opening, closing = "{}" if isinstance(value, dict) else "[]"
    return f"{opening}\n{lines}\n{margin}{closing}"


def read_record(path: Path) -> Record:
    """The record of ``conformance check`` in a file; ``-`` is standard input.

    A verdict better than its clauses allow was edited, and is corrected.

    Raises UsageError for a file that cannot be read, is no record, is a record of ``conformance
    teeth``, or has a schema that this version cannot read.
    """
    data = _parsed(path)
    if not isinstance(data, dict):
        _refuse(path, "it is no JSON object")
    if "mistakes" in data and "candidates" not in data:
        _refuse(path, "it is the record of conformance teeth, which writes its own pages")
    schema = data.get("schema")
    if isinstance(schema, int) and schema > SCHEMA:
        msg = (
            f"{path} has schema {schema}, this version reads schema {SCHEMA}: "
            "read it with the version that wrote it, or a later one"
        )
        raise UsageError(msg)
    if schema != SCHEMA:
        _refuse(path, f"its schema is {schema!r}, not {SCHEMA}")
    if wrong := _wrong(data, Record, "it"):
        _refuse(path, wrong)
    names = [entry["name"] for entry in data["candidates"]]
    if twice := [name for name in names if names.count(name) > 1]:
        _refuse(path, f"it has two candidates called {twice[0]!r}")
    record: Record = data  # type: ignore[assignment]  # as just checked
    return {**record, "candidates": [_judged(entry) for entry in record["candidates"]]}


def _judged(candidate: CandidateEntry) -> CandidateEntry:
    """A candidate whose verdict is no better than its clauses allow, whatever the file says."""
    for word, status in (("error", "error"), ("fails", "failed"), ("fails", "unexpected-pass")):
        against = [
            clause["id"]
            for clause in candidate["clauses"]
            if clause["status"] == status
            and (status != "failed" or clause.get("level", "MUST") == "MUST")
        ]
        if against and candidate["verdict"] in (*GREEN, "inconclusive"):
            more = f" and {len(against) - 1} more" if len(against) > 1 else ""
            said = f"{CONTRADICTED}{candidate['verdict']}, but {against[0]}{more} {status}"
            return {**candidate, "verdict": word, "verdict_reason": said}
    return candidate


def _parsed(path: Path) -> Any:
    try:
        data = sys.stdin.buffer.read() if path == STANDARD_INPUT else path.read_bytes()
        parsed = json.loads(data.decode("utf-8-sig"))
    except FileNotFoundError:
        msg = f"there is no report {path}: 'conformance check TARGET --json {path}' writes one"
        raise UsageError(msg) from None
    except OSError as error:
        msg = f"the report {path} cannot be read: {error.strerror or error}"
        raise UsageError(msg) from None
    except ValueError as error:
        msg = f"{path} is no JSON: {error}"
        raise UsageError(msg) from None
    except RecursionError:
        parsed = None
    else:
        if not _is_deep(parsed):
            return parsed
    msg = f"{path} is no report: its JSON is nested too deeply"
    raise UsageError(msg)


def _is_deep(value: Any) -> bool:
    """Whether data nest deeper than any record, too deep for recursive functions."""
    level = [value] if isinstance(value, (dict, list)) else []
    for _ in range(_DEEPEST):
        level = [
            entry
            for holder in level
            for entry in (holder.values() if isinstance(holder, dict) else holder)
            if isinstance(entry, (dict, list))
        ]
        if not level:
            return False
    return True


def _refuse(path: Path, why: str) -> NoReturn:
    msg = f"{path} is no report of conformance check: {why}"
    raise UsageError(msg)


@functools.cache
def _fields(kind: Any) -> dict[str, tuple[Any, bool]]:
    """The type of every key of a TypedDict, and whether the key is required.

    ``__required_keys__`` is empty if annotations are texts.
    """
    hints = get_type_hints(kind, include_extras=True)
    return {
        name: (get_args(hint)[0], True) if get_origin(hint) is Required else (hint, False)
        for name, hint in hints.items()
    }


def _wrong(value: Any, kind: Any, where: str) -> str:
    """What a value lacks of a type of this module, with its place in the record, or ""."""
    origin, parts = get_origin(kind), get_args(kind)
    inside: Iterable[tuple[Any, Any, str | int]] = ()
    if is_typeddict(kind):
        if not isinstance(value, dict):
            return f"{where} is no object"
        missing = [name for name, (_, needed) in _fields(kind).items() if needed > (name in value)]
        if missing:
            return f"{where} has no {missing[0]!r}"
        own = _fields(kind).items()
        inside = ((value[name], type_, name) for name, (type_, _) in own if name in value)
    elif origin in (Union, UnionType):  # the message of the first type, unless a type fits
        wrong = [_wrong(value, part, where) for part in parts]
        return "" if "" in wrong else wrong[0]
    elif not _is(value, kind):
        return f"{where} is {json.dumps(value)[:40]}"
    elif origin is dict:
        inside = ((entry, parts[1], name) for name, entry in value.items())
    elif origin is list:
        inside = ((entry, parts[0], number) for number, entry in enumerate(value))
    wrong_inside = (_wrong(entry, type_, _place(where, key)) for entry, type_, key in inside)
    return next(filter(None, wrong_inside), "")


def _place(where: str, key: str | int) -> str:
    """``candidates[0].clauses``."""
    if isinstance(key, int):
        return f"{where}[{key}]"
    return key if where == "it" else f"{where}.{key}"


def _is(value: Any, kind: Any) -> bool:
    """Whether a value has a type: True is no number, and neither are NaN and infinity."""
    if get_origin(kind) is Literal:
        return value in get_args(kind)
    if kind is Any or isinstance(value, bool):
        return kind in (Any, bool)
    if kind is float:
        return isinstance(value, (int, float)) and abs(value) <= sys.float_info.max
    return isinstance(value, get_origin(kind) or kind)


# By torch.compile's ``dynamic``.
COMPILED_SUFFIXES: Final = {None: " (compiled)", True: " (compiled, dynamic)"}
