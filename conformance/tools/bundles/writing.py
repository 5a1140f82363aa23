"""``conformance bundle``: write a folder that shows a report's failure without the harness."""

from __future__ import annotations

import copy
import hashlib
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from ...base.files import check_folder, staged
from ...base.printable_text import printable_record
from ...base.profile import DTYPES
from ...errors import UsageError
from ...running.workers.supervisor import DEFAULT_TIMEOUT, WorkerLost
from ..replay import FailedClause, Progress, argument_of, opened
from .showing import bundle_script, readme, shows_something, why_not_again

_DTYPES = (*DTYPES, "float8_e4m3fn", "float8_e5m2", "int8", "int64", "int32", "bool")


def check_counterexample(data: Mapping[str, Any]) -> None:
    """Require calls, layers and tensors as a report holds them; raises ValueError."""
    for name in ("calls", "layers"):
        each = data.get(name, [])
        _check(isinstance(each, list) and all(isinstance(entry, dict) for entry in each), name)
    for number, call in enumerate(data.get("calls", [])):
        for name in ("arguments", "keywords"):
            _check(isinstance(call.get(name), dict), f"call {number}: {name}")
            # The names are written into a script without quotes.
            _check(all(map(str.isidentifier, call[name])), f"call {number}: {name}")
        _check(type(call.get("layer", 0)) is int, f"call {number}: layer")
        leaves = (call.get("recorded") or {}).get("leaves") or []
        _check(isinstance(leaves, list), f"call {number}: leaves")
    for name in ("inputs", "problem"):
        _check(isinstance(data.get(name, {}), dict), name)
    _check(isinstance(data["problem"].get("geometry", {}), dict), "geometry")
    _check_tables(data, "")


def _check_tables(value: Any, place: str) -> None:
    """Require that tables name a dtype and sizes, and references to calls a number."""
    if isinstance(value, dict):
        for name in ("offset", "call"):
            _check(type(value.get(name, 0)) is int, f"{place} {name}".strip())
        if "same_as" in value:
            number, before = value["same_as"]
            _check(type(number) is int and str(before).isidentifier(), f"{place} same_as".strip())
        if {"shape", "dtype"} <= set(value):
            sizes = value["shape"]
            whole = isinstance(sizes, list) and all(type(size) is int for size in sizes)
            _check(whole and value["dtype"] in _DTYPES, place)
        for name, entry in value.items():
            _check_tables(entry, f"{place} {name}".strip())
    elif isinstance(value, list) and value and isinstance(value[0], dict):
        for number, entry in enumerate(value):
            _check_tables(entry, f"{place} {number}")


def _check(holds: bool, place: str) -> None:  # noqa: FBT001 (takes a condition)
    if not holds:
        msg = f"its {place} are not as in a report"
        raise ValueError(msg)


SHOWN: Final = "IT STILL FAILS"
NOT_CALLED: Final = "The candidate was not called again: "
# Importing torch from a cold disk, and a candidate with all that it needs.
_LOADING: Final = 120.0


def why_not_shown(script: Path, timeout: float) -> str:
    """Why a script does not show the failure, though the candidate is as it was, or ""."""
    try:
        process = subprocess.run(  # noqa: S603 (the harness's script and Python)
            [sys.executable, str(script)],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=2 * timeout + _LOADING,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return "with these calls alone it gives no answer"
    if SHOWN in process.stdout or "it still fails" in process.stderr:
        return ""
    reasons = [line for line in process.stdout.splitlines() if line.startswith(NOT_CALLED)]
    if reasons:
        return reasons[-1].removeprefix(NOT_CALLED)
    return "these calls alone do not show it: it needs more than they hold"


JOB: Final = "conformance.tools.bundles.job:bundle_job"
SCHEMA: Final = 1
MANIFEST: Final = "manifest.json"
FAILURE: Final = "failure.json"
SHOW: Final = "show.py"
_UNDER_WAY: Final = "under-way.json"
_NO_NAME: Final = re.compile(r"[^A-Za-z0-9_.-]+")
_ABSENT: Final = "the candidate could not be loaded where this bundle was written"
_RECORDED: Final = "this bundle was made of the report alone"

Record = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Bundled:
    """A written bundle; ``again`` is the reason why its script calls no candidate, or ""."""

    folder: Path
    clause: Record
    outcome: str
    again: str


def folder_for(case: FailedClause, output: Path | None) -> Path:
    """The folder for a failure; raises UsageError for a place that is taken or missing."""
    if output is None:
        name = f"bundle-{case.candidate['name']}-{case.clause['id']}"
        output = Path(_NO_NAME.sub("-", name))
    check_folder(output)
    return output


def bundle(
    case: FailedClause,
    report: Record,
    output: Path,
    *,
    target: str | None = None,
    recorded: bool = False,
    timeout: float = DEFAULT_TIMEOUT,
    progress: Progress = lambda _step, _done, _total: None,
) -> Bundled:
    """Examine a counterexample again, keep every tensor, and write the folder in one step.

    Where the candidate cannot be loaded, or with ``recorded``, the bundle is made of what the
    report holds. Raises UsageError for what cannot be shown, with nothing written.
    """
    with staged(output) as folder:
        clause, outcome, refused = (
            _of_report(case, folder, _RECORDED)
            if recorded
            else _examined(case, folder, target, timeout, progress)
        )
        where = str(target or case.candidate.get("target") or "")
        graph = _graph(clause, where, folder)
        again = refused or why_not_again(clause, where)
        if not again:
            _write(folder, SHOW, bundle_script(clause, where, graph=graph, limit=timeout))
            progress(f"trying {SHOW}", 0, 1)
            again = why_not_shown(folder / SHOW, timeout)
        if again:
            _check_shows(clause, again)
            _write(folder, SHOW, bundle_script(clause, where, refused=again))
        (folder / _UNDER_WAY).unlink(missing_ok=True)
        _write_json(folder, FAILURE, _failure(clause, case, report, outcome))
        _write(folder, "README.md", readme(clause, case.candidate, report, again=again))
        _write_json(folder, MANIFEST, _manifest(folder, clause, case, report))
    return Bundled(folder=output, clause=clause, outcome=outcome, again=again)


def _check_shows(clause: Record, again: str) -> None:
    """Require that the files alone show something; raises UsageError."""
    if not shows_something(clause):
        msg = f"no bundle can be written for {clause['id']}: {again}"
        raise UsageError(msg)


def _examined(
    case: FailedClause, folder: Path, target: str | None, timeout: float, progress: Progress
) -> tuple[Record, str, str]:
    """The clause as it fails now, the outcome, and why the candidate is not called again, or ""."""
    progress(f"{case.candidate['name']} {case.clause['id']}", 0, 1)
    try:
        with opened([case], target, timeout) as (supervisor, index):
            argument = {**argument_of(case), "folder": str(folder)}
            try:
                answer = supervisor.perform(index, JOB, argument)
            except WorkerLost as lost:
                return _of_lost(case, folder, lost), "fails", ""
    except UsageError as error:
        if target is not None or not _has_values(case):
            raise
        return _of_report(case, folder, f"{_ABSENT} ({error})")
    if answer["outcome"] == "passes":
        msg = (
            f"{case.clause['id']} of {case.candidate['name']} passes now: there is no failure to "
            "bundle; --recorded bundles what the report holds"
        )
        raise UsageError(msg)
    today = {name: answer[name] for name in ("violation", "counterexample")}
    same = answer["outcome"] == "fails"
    kept = {} if same else {"diagnosis": [], "reason": ""}
    return {**case.clause, **kept, **today}, answer["outcome"], ""


def _of_lost(case: FailedClause, folder: Path, lost: WorkerLost) -> Record:
    """The clause with the facts written before the call that did not return."""
    noted = folder / _UNDER_WAY
    if not noted.exists():
        msg = f"no bundle can be written for {case.clause['id']}: the candidate {lost}"
        raise UsageError(msg)
    violation = {"kind": lost.kind, "message": f"the candidate {lost}"}
    return {
        **case.clause,
        "violation": violation,
        "counterexample": json.loads(noted.read_text(encoding="utf-8")),
    }


def _has_values(case: FailedClause) -> bool:
    """Whether a report holds tensors of a failure, not only the problem."""
    return bool(case.clause["counterexample"].get("calls"))


def _of_report(case: FailedClause, folder: Path, refused: str) -> tuple[Record, str, str]:
    from .arrays import named_arrays, of_values, write_arrays  # noqa: PLC0415 (numpy)

    argument_of(case)
    data = copy.deepcopy(dict(case.clause["counterexample"]))
    try:
        check_counterexample(data)
        write_arrays(named_arrays(data, of_values), folder)
    except (TypeError, ValueError, KeyError, OverflowError) as error:
        msg = f"the counterexample of {case.clause['id']} cannot be read: {error}"
        raise UsageError(msg) from None
    data.setdefault("candidate", case.candidate["name"])
    return {**case.clause, "counterexample": data}, "recorded", refused


def _graph(clause: Record, target: str, folder: Path) -> str:
    """The name of the graph's file, copied with the files of its tensors; "" for no graph."""
    external = (clause["counterexample"].get("access") or {}).get("external")
    graph = Path(target)
    if external is None or not graph.is_file():
        return ""
    if not isinstance(external, list) or not all(map(_stays_inside, (graph.name, *external))):
        msg = (
            f"{target} and the files that the report names beside it cannot be copied into a "
            f"bundle under their names: {external}"
        )
        raise UsageError(msg)
    for name in (graph.name, *external):
        try:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(graph.parent / name, folder / name)
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            msg = f"{graph.parent / name} cannot be copied into the bundle: {reason}"
            raise UsageError(msg) from None
    return graph.name


def _stays_inside(name: Any) -> bool:
    """Whether a name is that of a file in a bundle, and not one of the bundle's own."""
    from .arrays import CALLS, COMPARED, INPUTS  # noqa: PLC0415 (numpy)

    path = Path(str(name))
    own = (SHOW, FAILURE, MANIFEST, _UNDER_WAY, INPUTS, CALLS, COMPARED, "README.md")
    return (
        isinstance(name, str)
        and not path.is_absolute()
        and ".." not in path.parts
        and bool(path.parts)
        and path.parts[0] not in own
    )


def _failure(clause: Record, case: FailedClause, report: Record, outcome: str) -> dict[str, Any]:
    """The record of the failure, with references to the arrays in their files."""
    candidate = {
        name: case.candidate.get(name) for name in ("name", "target", "kind", "declaration")
    }
    return {
        "schema": SCHEMA,
        "tool": report.get("tool"),
        "environment": report.get("environment"),
        "candidate": candidate,
        "outcome": outcome,
        "clause": clause,
    }


def _manifest(folder: Path, clause: Record, case: FailedClause, report: Record) -> dict[str, Any]:
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {
        "schema": SCHEMA,
        "bundle": clause["id"],
        "candidate": case.candidate["name"],
        "dtype": clause.get("dtype"),
        "tool": report.get("tool"),
        "files": {
            path.relative_to(folder).as_posix(): {
                "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
                "bytes": path.stat().st_size,
            }
            for path in files
            if path.name != MANIFEST
        },
    }


def _write(folder: Path, name: str, text: str) -> None:
    (folder / name).write_text(text, encoding="utf-8", errors="backslashreplace")


def _write_json(folder: Path, name: str, data: Mapping[str, Any]) -> None:
    plain = printable_record(dict(data))
    _write(folder, name, json.dumps(plain, indent=1, ensure_ascii=False, allow_nan=False) + "\n")
