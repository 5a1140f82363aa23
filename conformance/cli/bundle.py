"""``conformance bundle``: one failure of a report as a folder that shows it without us."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from ..base.dtypes import DTYPES
from ._options import timeout_option
from ._output import printing, progress_bar


@click.command(name="bundle")
@click.argument("reference", metavar="REPORT.json#CLAUSE")
@click.option("--candidate", metavar="NAME", help="The candidate whose failure is meant.")
@click.option("--dtype", type=click.Choice(DTYPES), help="The failure in this dtype.")
@click.option("--target", metavar="TARGET", help="Ask this candidate instead of the report's.")
@click.option(
    "--output",
    type=click.Path(path_type=Path),
    metavar="FOLDER",
    help="Where to write it, a new or empty folder; by default bundle-CANDIDATE-CLAUSE.",
)
@click.option(
    "--recorded", is_flag=True, help="Take what the report holds, and do not ask the candidate."
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
    from ..tools.replay import cases, read_report, report_path  # noqa: PLC0415
    from ..tools.scripts.writing import single  # noqa: PLC0415
    from ..views.bundle import show  # noqa: PLC0415

    (case,) = single(cases(reference, candidate, dtype=dtype), option="conformance bundle")
    folder = folder_for(case, output)
    with progress_bar() as progress:
        done = bundle(
            case,
            read_report(report_path(reference)),
            folder,
            target=target,
            recorded=recorded,
            timeout=timeout,
            progress=progress,
        )
    with printing():
        show(str(done.folder), done.clause, done.outcome, done.again, file=sys.stdout)
    return 0
