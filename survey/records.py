"""The records that are kept, one of a library, and what changed from one survey to the next."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Final

import conformance

from .library import REACHED, Library, Promise, SurveyError

FOLDER: Final = Path(__file__).with_name("records")
SCHEMA: Final = 1
# Failures that need a decision: those of clauses that must hold, and of the harness.
_SEVERE: Final = ("failed", "error", "unexpected-pass")
# What a candidate that got no verdict is called.
WITHOUT_VERDICT: Final = ("not identified", "not judged")
Record = dict[str, Any]


def load(folder: Path = FOLDER) -> dict[str, Record]:
    """Every record of a folder by the name of its library; SurveyError for another file."""
    records = {}
    for path in sorted(folder.glob("*.json")):
        try:
            record = json.loads(path.read_text(encoding="utf-8"))
        except json.JSONDecodeError as error:
            msg = f"{path} is no JSON: {error}"
            raise SurveyError(msg) from error
        if not isinstance(record, dict) or record.get("survey") != SCHEMA:
            msg = f"{path} is no record of a survey of schema {SCHEMA}: make it anew"
            raise SurveyError(msg)
        records[path.stem] = record
    return records


def save(name: str, record: Record, folder: Path = FOLDER) -> None:
    """Keep a record, a line a candidate, so that what changed can be read in a diff."""
    folder.mkdir(parents=True, exist_ok=True)
    head = {key: value for key, value in record.items() if key != "candidates"}
    lines = [f'"{key}": {_json(value)}' for key, value in head.items()]
    rows = ",\n".join(f"  {_json(row)}" for row in record["candidates"])
    lines.append(f'"candidates": [\n{rows}\n]' if rows else '"candidates": []')
    text = "{\n" + ",\n".join(lines) + "\n}\n"
    path = folder / f"{name}.json"
    started = path.with_suffix(".part")
    started.write_text(text, encoding="utf-8")
    started.replace(path)


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


def completed(record: Record, before: Record, library: Library) -> Record:
    """A record with the rows of an earlier one for candidates that it has not, in their order.

    Rows of another version of the library or of the harness are left out, and those that another
    file of the library made; a row that does not say which file made it stays, with its date.
    Where the library could not be run this time, the earlier record of the same requirements stays.
    """
    ran = record["status"] == "judged"
    same = ("version", "tool", "requirements") if ran else ("tool", "requirements")
    if any(record[key] != before.get(key) for key in same):
        return record
    older = [
        {**row, "date": row.get("date", before["date"])}
        for row in before["candidates"]
        if row.get("digest", library.digest) == library.digest
    ]
    if not ran:
        return {**before, "candidates": older} if older else record
    judged = {row["name"].partition("/")[0] for row in record["candidates"]}
    every = [
        *(row for row in older if row["name"].partition("/")[0] not in judged),
        *record["candidates"],
    ]
    order = list(library.candidates)
    rows = [(row["name"].partition("/")[0], row) for row in every]
    known = sorted((order.index(name), at) for at, (name, _) in enumerate(rows) if name in order)
    return {**record, "candidates": [rows[at][1] for _, at in known]}


def decided(record: Record, library: Library) -> Record:
    """A record with what its library's file says today of the failures and the promises in it."""
    rows = [
        {**row, "clauses": [_decided(row, clause, library) for clause in _failures(row, library)]}
        for row in record["candidates"]
    ]
    promises = [
        {
            "sentence": promise.sentence,
            "link": promise.link,
            **_held(promise, rows),
        }
        for promise in library.promises
    ]
    return {**record, "about": library.about, "promises": promises, "candidates": rows}


def _failures(row: Record, library: Library) -> list[Record]:
    """What a row fails; of a candidate without a verdict just that, where it is decided."""
    if row["verdict"] not in WITHOUT_VERDICT:
        return list(row.get("clauses") or ())
    unreached = {
        "id": REACHED,
        "level": "MUST",
        "status": "failed",
        "kind": "",
        "reason": row["reason"],
        "cause": "",
    }
    return [unreached for one in library.decided if one.covers(row["name"], unreached)][:1]


def _decided(row: Record, clause: Record, library: Library) -> Record:
    plain = {
        key: value for key, value in clause.items() if key not in ("decided", "why", "finding")
    }
    one = next((one for one in library.decided if one.covers(row["name"], clause)), None)
    if one is None:
        return plain
    finding = {"finding": one.finding} if one.finding else {}
    return {**plain, "decided": one.decided, "why": one.reason, **finding}


def _held(promise: Promise, rows: Sequence[Record]) -> dict[str, Any]:
    """Whether a promise is kept, and what breaks it; "untested" where nothing ran.

    Failures that are the survey's own mistake, decided "ours", break nothing.
    """
    broken, kept = [], False
    for row in rows:
        if not fnmatchcase(row["name"], promise.candidates):
            continue
        failed = [
            clause["id"]
            for clause in row["clauses"]
            if clause["status"] == "failed"
            and clause.get("decided") != "ours"
            and _any(clause["id"], promise.clauses)
        ]
        passed = any(_any(slug, promise.clauses) for slug in row.get("passed", "").split())
        if failed or passed:
            wrong, agrees = _compared(promise.declares, row)
            broken += [f"{row['name']} {reason}" for reason in (*wrong, *failed)]
            kept = kept or (passed and agrees)
    return {"held": "broken" if broken else "kept" if kept else "untested", "by": broken}


_OPPOSITE: Final = {"keep": "drop", "drop": "keep"}


def _compared(promised: Mapping[str, str | Sequence[str]], row: Record) -> tuple[list[str], bool]:
    """What a candidate declares against a promise, and whether it declares all that is promised.

    A form of masks that it has not is no contradiction, unless it has the opposite one.
    """
    declared = row.get("declared") or {}
    wrong, agrees = [], True
    for fact, value in promised.items():
        wanted = _texts(value)
        own = _texts(
            declared.get(fact)
            or (declared.get("semantics") or {}).get(fact)
            or getattr(conformance.STANDARD, fact, ())
        )
        if fact == "masks":
            own &= wanted | {_OPPOSITE.get(form, form) for form in wanted}
            against = bool(own - wanted) and not own & wanted
        else:
            against = bool(own - wanted)
        if against:
            wrong.append(f"{fact}={'/'.join(sorted(own))}")
        agrees = agrees and bool(own) and not against
    return wrong, agrees


def _texts(value: object) -> set[str]:
    """One text, several, or one for each reason."""
    if isinstance(value, Mapping):
        value = value.values()
    return {value} if isinstance(value, str) else {str(one) for one in value}  # type: ignore[attr-defined]


def _any(slug: str, globs: Sequence[str]) -> bool:
    return any(fnmatchcase(slug, glob) for glob in globs)


def undecided(record: Mapping[str, Any]) -> Iterator[tuple[str, Record]]:
    """Candidates and their failures of clauses that must hold which nobody decided."""
    for row in record["candidates"]:
        for clause in row.get("clauses") or ():
            if (
                clause["status"] in _SEVERE
                and clause["level"] == "MUST"
                and "decided" not in clause
            ):
                yield row["name"], clause


def changes(before: Mapping[str, Record], now: Mapping[str, Record]) -> list[str]:
    """What changed from one survey to the next, a sentence each; what only moved is none."""
    return [
        f"{library}: {sentence}"
        for library in sorted({*before, *now})
        for sentence in _changes(before.get(library), now.get(library))
    ]


def _changes(old: Record | None, new: Record | None) -> Iterator[str]:
    if old is None or new is None:
        yield "surveyed for the first time" if old is None else "no longer surveyed"
        return
    for key in ("version", "status"):
        if old[key] != new[key]:
            yield f"{key} {old[key] or 'none'}, now {new[key] or 'none'}"
    rows, others = ({row["name"]: row for row in record["candidates"]} for record in (old, new))
    for name in sorted({*rows, *others}):
        if name not in rows or name not in others:
            yield f"{name} {'came' if name in others else 'went'}"
            continue
        row, other = rows[name], others[name]
        if row["verdict"] != other["verdict"]:
            yield f"{name}: {row['verdict']}, now {other['verdict']}"
        failing, fails = _failing(row), _failing(other)
        if came := sorted(fails - failing):
            yield f"{name} fails {', '.join(came)}"
        if went := sorted((failing - fails) & set(other.get("passed", "").split())):
            yield f"{name} passes {', '.join(went)}"


def _failing(row: Record) -> set[str]:
    return {clause["id"] for clause in row.get("clauses") or () if clause["status"] in _SEVERE}
