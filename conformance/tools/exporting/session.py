"""``conformance export-check`` without options and views: export, then check all graphs."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from ...base.profile import GraphOptions
from ...base.record import EXIT_OK, EXIT_RED, Record, exit_code
from ...running.workers.messages import Ready, RunOptions
from ...running.workers.supervisor import DEFAULT_TIMEOUT, HarnessError, Supervisor, WorkerLost
from ...session.checking import check
from ...session.report import build_report
from ...session.schedule import ShowProgress

# The file among the exported graphs that builds the module again.
SCRIPT: Final = "source.py"
LOADER: Final = "conformance.tools.exporting.job:modules_of"
_PREPARE: Final = "conformance.tools.exporting.job:prepare"
_EXPORT: Final = "conformance.tools.exporting.job:export_one"
# torch.export compiles: its first run takes as long as dozens of calls.
_EXPORTING_FACTOR: Final = 4.0
# What is no fault of the module or its graph.
_HARMLESS: Final = ("unsupported",)


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """What to export: every exporter at every opset, into a folder."""

    target: str
    exporters: tuple[str, ...]
    opsets: tuple[int, ...]
    folder: Path

    def exports(self) -> list[dict[str, Any]]:
        """The exports as plain data."""
        return [
            {
                "exporter": exporter,
                "opset": opset,
                "path": str(self.folder / f"{exporter}-opset{opset}.onnx"),
            }
            for exporter in self.exporters
            for opset in self.opsets
        ]


def export_check(
    wanted: Wanted,
    options: RunOptions,
    *,
    timeout: float = DEFAULT_TIMEOUT,
    progress: ShowProgress = lambda _step, _done, _total, _left=None: None,
) -> Record:
    """Export the module, check every graph and return the record of the run, with its exports.

    Raises UsageError for a target that is no module or cannot be called, HarnessError when no
    worker can run.
    """
    began = time.monotonic()
    ready, prepared, rows = _exported(wanted, timeout, progress)
    paths = tuple(row["path"] for row in rows if not row["verdict"])
    run = dataclasses.replace(
        options, targets=paths, graph_options=GraphOptions(source=f"{prepared['source']}:module")
    )
    if paths:
        report = check(run, timeout=timeout, progress=progress)
    else:
        report = build_report(ready, run, [])
    report["module"] = {"target": wanted.target, **prepared}
    report["seconds"] = round(time.monotonic() - began, 4)  # the exports included
    report["exports"] = [_row(row, report["candidates"]) for row in rows]
    return report


def _exported(
    wanted: Wanted, timeout: float, progress: ShowProgress
) -> tuple[Ready, dict[str, Any], list[dict[str, Any]]]:
    """What the worker is, how the module is called, and the result of every export."""
    options = RunOptions(targets=(wanted.target,), loader=LOADER)
    rows = []
    with Supervisor(options, timeout=timeout * _EXPORTING_FACTOR) as supervisor:
        progress("starting", 0, 0)
        ready = supervisor.start()
        progress("loading", 0, 0)
        supervisor.load()
        prepared: dict[str, Any] = supervisor.perform(0, _PREPARE, str(wanted.folder))
        exports = wanted.exports()
        for done, export in enumerate(exports):
            progress(f"exporting {Path(export['path']).name}", done, len(exports))
            rows.append({**export, **_export_once(supervisor, export)})
    return ready, prepared, rows


def _export_once(supervisor: Supervisor, export: Mapping[str, Any]) -> dict[str, Any]:
    step = "exporting"

    def note_step(what: str, _name: Any) -> None:
        nonlocal step
        step = what

    try:
        result: dict[str, Any] = supervisor.perform(0, _EXPORT, dict(export), note_step)
    except WorkerLost as lost:
        read = step == "reading"
        word = "cannot be read" if read else "cannot be exported"
        verdict = "not-read" if read else "not-exported"
        return {"verdict": verdict, "reason": f"{word}: it {lost}"}
    except HarnessError as error:
        return {"verdict": "error", "reason": str(error)}
    opset = result.pop("opset")
    if opset is not None and opset != export["opset"]:
        wrote = f"the exporter does not know it: it wrote a file of opset {opset}"
        return {**result, "verdict": "unsupported", "reason": wrote}
    return result


def _row(row: Mapping[str, Any], candidates: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """An export with the verdict of its graph, its failed clauses and the step to blame."""
    candidate = next((entry for entry in candidates if entry["target"] == row["path"]), None)
    if candidate is None:
        unchecked = {} if row["verdict"] else {"verdict": "inconclusive", "reason": "not checked"}
        return {**row, **unchecked, "failed": [], "blame": None}
    failed = [clause for clause in candidate["clauses"] if clause["status"] == "failed"]
    must = [clause for clause in failed if clause["level"] == "MUST"]
    blamed = [clause["blame"] for clause in must if (clause.get("blame") or {}).get("step")]
    return {
        **row,
        "verdict": candidate["verdict"],
        "reason": candidate["verdict_reason"],
        "failed": list(dict.fromkeys(clause["id"] for clause in must or failed)),
        "blame": blamed[0] if blamed else None,
    }


def exit_code_of(report: Mapping[str, Any], *, strict: bool = False) -> int:
    """The exit code of the check; 1, too, when the module is not exported or a graph not read."""
    ran = report["candidates"] or report.get("interrupted")
    checked = exit_code(report, strict=strict) if ran else EXIT_OK
    words = [row["verdict"] for row in report["exports"]]
    lost = [word for word in words if word.startswith("not-") or word == "error"]
    none = all(word in _HARMLESS for word in words)
    return EXIT_RED if checked == EXIT_OK and (lost or none) else checked
