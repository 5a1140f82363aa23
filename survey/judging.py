"""Judges what a library's file names, by the command line and in the library's environment."""

from __future__ import annotations

import contextlib
import json
import math
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from .library import Library

# Seconds that one command may take before its candidate is a row with that reason.
LIMIT: Final = 600.0
# How candidates are checked.
CHECK: Final = ("--profile", "quick", "--dtype", "float32")
# What the command line's sentence begins with.
_SAYS: Final = "conformance: "
_SHOWN: Final = ("failed", "error", "untestable", "unexpected-pass")
_LONGEST: Final = 400
_DIGITS: Final = 3
_CHECKOUT: Final = Path(__file__).resolve().parent.parent
# What JAX compiles is kept for the next candidate, which asks for much of it again.
_KEPT_IN: Final = "JAX_COMPILATION_CACHE_DIR"
_COMPILED: Final = "compiled-by-jax"
_KEPT: Final = {
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
}
_FACTS: Final = (
    *("kind", "inputs", "axes", "scale", "groups", "empty rows", "hidden keys", "causal"),
    *("cap", "window", "rotary", "position", "weights"),
)
_DECLARED: Final = ("masks", "mask_shapes", "causal", "empty_rows", "features", "semantics")
Row = dict[str, Any]


def judge(python: Path, library: Library, candidate: str, folder: Path) -> list[Row]:
    """The rows of one candidate: several where it is a whole model; its records stay in ``folder``.

    What cannot be identified, or takes longer than the limit, is a row with the reason.
    """
    target = f"{library.path}:{candidate}"
    row: Row = {"name": candidate, "way": library.candidates[candidate]}
    declared, facts, record = (
        folder / name
        for name in (f"declared_{candidate}.py", f"{candidate}.facts.json", f"{candidate}.json")
    )
    for path in (declared, facts, record):
        path.unlink(missing_ok=True)
    if row["way"] == "identify":
        written = ("--output", str(declared), "--json", str(facts), "--no-check")
        said = _conformance(python, folder, "identify", target, *written)
        if not facts.exists():
            return [{**row, "verdict": "not identified", "reason": said}]
        row |= _identification(_read(facts))
        if not declared.exists():
            return [{**row, "verdict": "not identified"}]
        target = str(declared)
    said = _conformance(python, folder, "check", target, *CHECK, "--json", str(record))
    if not record.exists():
        return [{**row, "verdict": "not judged", "reason": said}]
    judged = _read(record)["candidates"]
    return [
        {**row, "name": _name(candidate, entry, judged), **_judgement(entry)} for entry in judged
    ]


def _conformance(python: Path, folder: Path, *arguments: str) -> str:
    """Run the harness; the sentence that it ends with where it fails."""
    surroundings = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        **_KEPT,
        _KEPT_IN: str(folder.parent / _COMPILED),
    }
    with subprocess.Popen(
        [python, "-I", "-m", "conformance", *arguments],
        cwd=folder,
        env=surroundings,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            _, said = process.communicate(timeout=LIMIT)
        except subprocess.TimeoutExpired:
            return f"{arguments[0]} took longer than {LIMIT:g} s"
        finally:  # also where the survey is interrupted
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    # What a library warns of comes before the harness' own sentence.
    sentence = said[max(said.rfind(_SAYS), 0) :].removeprefix(_SAYS).replace(f"{folder}/", "")
    return short(sentence) or f"{arguments[0]} ended with {process.returncode}"


def _read(record: Path) -> dict[str, Any]:
    """A record without the folder of the machine that it lies in."""
    text = record.read_text(encoding="utf-8")
    read: dict[str, Any] = json.loads(text.replace(f"{record.parent.as_posix()}/", ""))
    return read


def _name(candidate: str, entry: Mapping[str, Any], judged: Sequence[Mapping[str, Any]]) -> str:
    """The candidate's name, with the harness' own where one target has several."""
    return candidate if len(judged) == 1 else f"{candidate}/{entry['name']}"


def _identification(record: Mapping[str, Any]) -> Row:
    """What ``identify`` says, for the columns of the table."""
    values = {fact["fact"]: fact["value"] for fact in record["facts"]}
    return {
        "identified": record["identified"],
        "reason": short(record["reason"]),
        "facts": {name: values[name] for name in _FACTS if name in values},
        "masks": _masks(values),
        "deviations": [one["observed"] for one in record.get("deviations") or ()],
        "beyond": [short(one) for one in record.get("beyond") or ()],
    }


def _masks(values: Mapping[str, Any]) -> list[str]:
    """Each mask that hides something: its parameter, its form and its shapes."""
    masks = [value for name, value in values.items() if name.startswith("mask ")]
    return [
        f"{value['parameter']}: {value['form']} {' '.join(value['shapes'])}"
        for value in masks
        if isinstance(value, dict) and value.get("form")
    ]


def _judgement(entry: Mapping[str, Any]) -> Row:
    """What ``check`` says of one candidate; of the clauses that it passes the names alone."""
    declaration, clauses = entry["declaration"], entry["clauses"]
    passed = [clause for clause in clauses if clause["status"] == "passed"]
    largest = max(passed, key=_margin, default=None)
    return {
        "kind": entry["kind"],
        "site": str((entry.get("site") or {}).get("scope", "")),
        "verdict": entry["verdict"],
        "reason": short(entry.get("verdict_reason") or ""),
        "declared": {name: declaration[name] for name in _DECLARED if declaration.get(name)},
        "worst": None
        if largest is None
        else {"clause": largest["id"], "margin": _rounded(_margin(largest))},
        "seconds": round(float(entry["seconds"]), 1),
        "passed": " ".join(sorted({clause["id"] for clause in passed})),
        "clauses": [_clause(entry, clause) for clause in clauses if clause["status"] in _SHOWN],
    }


def _margin(clause: Mapping[str, Any]) -> float:
    """A margin as a number; -1 for a clause that has no margin."""
    return -1.0 if clause["margin"] is None else float(clause["margin"])


def _rounded(margin: float) -> float | str:
    return float(f"{margin:.{_DIGITS}g}") if math.isfinite(margin) else str(margin)


def _clause(entry: Mapping[str, Any], clause: Mapping[str, Any]) -> Row:
    """A clause that did not pass: how it failed, and the cause that explains it."""
    causes = [cause for cause in entry.get("causes") or () if clause["id"] in cause["clauses"]]
    return {
        "id": clause["id"],
        "level": clause["level"],
        "status": clause["status"],
        "kind": (clause.get("violation") or {}).get("kind", ""),
        "reason": short(clause["reason"] or ""),
        "cause": causes[0]["name"] if causes else "",
    }


def short(text: object) -> str:
    """A text on one line, cut where it is long; the folder of the machine is left out."""
    line = " ".join(str(text).split()).replace(f"{_CHECKOUT}/", "")
    return line if len(line) <= _LONGEST else f"{line[: _LONGEST - 1]}…"
