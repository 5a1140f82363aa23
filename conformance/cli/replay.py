"""``conformance replay`` and ``bundle``: run the counterexamples of a report again, or pack one."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from ..base.profile import DTYPES
from ..base.record import read_record
from ._options import file_option, timeout_option
from ._output import printing, progress_bar


@click.command(name="replay")
@click.argument("reference", metavar="REPORT.json[#CLAUSE]")
@click.option("--candidate", metavar="NAME", help="Only this candidate's failures.")
@click.option("--dtype", type=click.Choice(DTYPES), help="Only the failures in this dtype.")
@click.option("--target", metavar="TARGET", help="Call this candidate instead of the report's.")
@click.option(
    "--emit-script",
    "script_path",
    metavar="FILE",
    help="Write a Python file that shows the failure with torch alone (- for standard output).",
)
@timeout_option("Stop a candidate that gives no answer for so long.")
def replay_command(
    *,
    reference: str,
    candidate: str | None,
    dtype: str | None,
    target: str | None,
    script_path: str | None,
    timeout: float,
) -> int:
    """Run the counterexamples of a report again.

    All failures of REPORT.json, those of one clause (REPORT.json#CLAUSE) or of one candidate and
    clause (REPORT.json#CANDIDATE/CLAUSE). What passes alone runs again after the calls that
    the run made before it, since a candidate may remember them. Exit code: 1 when one still fails,
    0 when none does.
    """
    from ..tools.replay import cases, replay  # noqa: PLC0415 (--help must not pay for it)
    from ..tools.scripts.writing import single, write_script  # noqa: PLC0415
    from ..views.tool_texts import show_count, show_replay  # noqa: PLC0415

    failures = cases(reference, candidate, dtype=dtype)
    if script_path is not None:
        failures = single(failures, script_path)
    outcomes = []
    stream = sys.stderr if script_path == "-" else sys.stdout
    with progress_bar() as progress:
        for result in replay(failures, target=target, timeout=timeout, progress=progress):
            outcomes.append(result.outcome)
            with printing():
                show_replay((result.candidate, result.clause, result.outcome, result.after), stream)
            if script_path is not None and result.outcome != "passes":
                source = target or failures[0].candidate["target"]
                with printing():
                    write_script(result.clause, source, script_path)
    with printing():
        show_count(outcomes, stream)
    return int(any(outcome != "passes" for outcome in outcomes))


@click.command(name="bundle")
@click.argument("reference", metavar="REPORT.json#CLAUSE")
@click.option("--candidate", metavar="NAME", help="The candidate whose failure is meant.")
@click.option("--dtype", type=click.Choice(DTYPES), help="The failure in this dtype.")
@click.option("--target", metavar="TARGET", help="Call this candidate instead of the report's.")
@file_option(
    "--output",
    metavar="FOLDER",
    help="Where to write it, a new or empty folder; by default bundle-CANDIDATE-CLAUSE.",
)
@click.option(
    "--recorded", is_flag=True, help="Take what the report holds, and do not call the candidate."
)
@timeout_option("Stop a candidate that gives no answer for so long.")
def bundle_command(
    *,
    reference: str,
    candidate: str | None,
    dtype: str | None,
    target: str | None,
    output: Path | None,
    recorded: bool,
    timeout: float,
) -> int:
    """Write a folder that shows one failure of a report without this project.

    The smallest input, weights, expected values, what came and the bound as arrays, the graph where
    it is one, and show.py, which needs numpy and torch (for a graph onnxruntime) alone. Name the
    failure as REPORT.json#CLAUSE or REPORT.json#CANDIDATE/CLAUSE. Exit code: 0 when the bundle was
    written, 2 for what cannot be shown.
    """
    from ..tools.bundles.writing import bundle, folder_for  # noqa: PLC0415 (--help must not pay for it)
    from ..tools.replay import cases, report_path  # noqa: PLC0415
    from ..tools.scripts.writing import single  # noqa: PLC0415
    from ..views.tool_texts import show_bundle  # noqa: PLC0415

    (case,) = single(cases(reference, candidate, dtype=dtype), option="conformance bundle")
    folder = folder_for(case, output)
    with progress_bar() as progress:
        bundled = bundle(
            case,
            read_record(report_path(reference)),
            folder,
            target=target,
            recorded=recorded,
            timeout=timeout,
            progress=progress,
        )
    with printing():
        show_bundle(
            str(bundled.folder), bundled.clause, bundled.outcome, bundled.again, file=sys.stdout
        )
    return 0
