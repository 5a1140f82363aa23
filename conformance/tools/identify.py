"""``conformance identify`` without options and views: a worker, its job and the record."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from ..base.files import write_text
from ..base.profile import DTYPES
from ..base.record import GREEN, CandidateEntry, ClauseEntry
from ..errors import UsageError
from ..identification.record import CHECK_PROFILE, check_lines
from ..running.workers.messages import RunOptions, package_version
from ..running.workers.supervisor import DEFAULT_TIMEOUT, Supervisor, WorkerLost
from ..session.checking import check

SCHEMA: Final = 1
# The clauses that are checked in all dtypes but the first.
_NUMBERS: Final = ("*.golden", "shape.output", "shape.dtype", "mask.forms-agree")
LOADER: Final = "conformance.tools.identification_job:plans_of"
JOB: Final = "conformance.tools.identification_job:run"
Progress = Callable[[str, int, int], None]


def identify(
    target: str,
    *,
    as_observed: bool = False,
    timeout: float = DEFAULT_TIMEOUT,
    progress: Progress = lambda _step, _done, _total: None,
) -> dict[str, Any]:
    """The record of one target.

    ``as_observed`` makes the declaration promise the observed behaviour even if that is probably a
    mistake, in place of the standard.

    The record's ``reason`` says when an implementation hangs or dies. Raises UsageError for a
    target that cannot be loaded, HarnessError when no worker can run.
    """
    options = RunOptions(targets=(target,), loader=LOADER)
    stage = "how it is called"

    def note_stage(_step: str, what: Any) -> None:
        nonlocal stage
        stage = str(what)
        progress(f"probing {what}", 0, 0)

    with Supervisor(options, timeout=timeout) as supervisor:
        progress("starting", 0, 0)
        ready = supervisor.start()
        progress("loading", 0, 0)
        loaded = supervisor.load()[0]
        try:
            result = supervisor.perform(0, JOB, as_observed, note_stage)
        except WorkerLost as lost:
            result = {
                "target": target,
                "name": loaded.name,
                "form": loaded.kind,
                "identified": False,
                "reason": f"it {lost} (while probing {stage})",
                "facts": [],
                "declaration": None,
            }
    head = {
        "schema": SCHEMA,
        "tool": {
            "name": "attention-conformance",
            "version": package_version("attention-conformance"),
        },
        "environment": ready.environment,
    }
    return {**head, **result, "as_observed": as_observed}


def write_declaration(record: dict[str, Any], path: Path) -> str:
    """Write the record's declaration, with paths as seen from its file; raises UsageError."""
    from ..identification.writing import written_in  # noqa: PLC0415 (loads torch)

    text = record["declaration"] = written_in(record["declaration"], path.parent)
    write_text(text, path)
    return text


def write_checked(
    record: dict[str, Any],
    path: Path,
    *,
    timeout: float = DEFAULT_TIMEOUT,
    progress: Progress = lambda _step, _done, _total: None,
) -> None:
    """Write the record's declaration, and add the results of ``check`` as comments.

    One dtype is checked by all clauses, the others by the clauses of shapes and golden answers. The
    record's ``check`` holds verdict, reason and the MUST clauses that failed or could not be
    tested. Raises UsageError when the file cannot be written, KeyboardInterrupt when the check was
    interrupted: the declaration then stands without comments.
    """
    text = write_declaration(record, path)
    try:
        record["check"] = _checked(record, path, timeout, progress)
    except UsageError as error:
        record["check"] = {"verdict": "error", "reason": str(error), "failed": []}
    record["check"]["told"] = check_lines(record)
    if record["check"]["verdict"] in GREEN:
        return
    lines = text.split("\n")
    code = next(n for n, line in enumerate(lines) if line.startswith(("import ", "from ")))
    noted = [f"# {line}" for line in record["check"]["told"]]
    record["declaration"] = "\n".join([*lines[:code], *noted, "", *lines[code:]])
    write_text(record["declaration"], path)


def _checked(
    record: dict[str, Any], path: Path, timeout: float, progress: Progress
) -> dict[str, Any]:
    """Verdict, reason and failures: all clauses in one dtype, clauses of numbers in the others."""
    right = {fact["fact"]: fact["value"] for fact in record["facts"]}.get("dtypes") or {}
    first, *others = [dtype for dtype in DTYPES if right.get(dtype)] or ["float32"]
    runs: list[dict[str, Any]] = [{"dtypes": (first,)}]
    runs += [{"dtypes": tuple(others), "only": _NUMBERS}] if others else []
    entries: list[CandidateEntry] = []

    def report(step: str, done: int, total: int, _left: float | None = None, /) -> None:
        progress(step, done, total)

    for run in runs:
        options = RunOptions(targets=(str(path),), profile=CHECK_PROFILE, explain=False, **run)
        checked = check(options, timeout=timeout, progress=report)
        if checked["interrupted"]:
            raise KeyboardInterrupt
        entries += checked["candidates"]
    worst = next((entry for entry in entries if entry["verdict"] not in GREEN), entries[0])
    return {
        "verdict": worst["verdict"],
        "reason": worst["verdict_reason"],
        "failed": _failures([clause for entry in entries for clause in entry["clauses"]]),
    }


def _failures(clauses: list[ClauseEntry]) -> list[dict[str, str]]:
    """The MUST clauses that are not green, once a clause, with the message of the first dtype."""
    failures: dict[str, dict[str, str]] = {}
    for clause in clauses:
        if clause["level"] == "MUST" and clause["status"] in ("failed", "untestable", "error"):
            violation = clause.get("violation")
            message = violation["message"] if violation else clause["reason"]
            failures.setdefault(
                clause["id"],
                {"clause": clause["id"], "status": clause["status"], "message": message},
            )
    return list(failures.values())
