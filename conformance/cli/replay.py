"""``conformance replay``: the counterexamples of a report, asked again."""

from __future__ import annotations

import sys

import click

from ..base.dtypes import DTYPES
from ._output import printing, progress_bar


@click.command(name="replay")
@click.argument("reference", metavar="REPORT.json[#CLAUSE]")
@click.option("--candidate", metavar="NAME", help="Only this candidate's failures.")
@click.option("--dtype", type=click.Choice(DTYPES), help="Only the failures in this dtype.")
@click.option("--target", metavar="TARGET", help="Ask this candidate instead of the report's.")
@click.option(
    "--emit-script",
    "script_path",
    metavar="FILE",
    help="Write a Python file that shows the failure with torch alone (- for standard output).",
)
@click.option(
    "--timeout",
    type=click.FloatRange(min=0, min_open=True),
    default=30.0,
    show_default=True,
    metavar="SECONDS",
    help="Stop a candidate that gives no answer for so long.",
)
def replay_command(
    *,
    reference: str,
    candidate: str | None,
    dtype: str | None,
    target: str | None,
    script_path: str | None,
    timeout: float,
) -> int:
    """Ask the counterexamples of a report again.

    All failures of REPORT.json, those of one clause (REPORT.json#CLAUSE) or of one candidate and
    clause (REPORT.json#CANDIDATE/CLAUSE). What passes alone is asked again behind the calls that
    the run made before it, since a candidate may remember them. Exit code: 1 when one still fails,
    0 when none does.
    """
    from ..tools.replay import cases, replay  # noqa: PLC0415 (--help must not pay for it)
    from ..tools.scripts.writing import single, write_script  # noqa: PLC0415
    from ..views.replay import show, show_count  # noqa: PLC0415

    found = cases(reference, candidate, dtype=dtype)
    if script_path is not None:
        found = single(found, script_path)
    outcomes = []
    told = sys.stderr if script_path == "-" else sys.stdout
    with progress_bar() as progress:
        for done in replay(found, target=target, timeout=timeout, progress=progress):
            outcomes.append(done.outcome)
            with printing():
                show((done.candidate, done.clause, done.outcome, done.after), told)
            if script_path is not None and done.outcome != "passes":
                source = target or found[0].candidate["target"]
                with printing():
                    write_script(done.clause, source, script_path)
    with printing():
        show_count(outcomes, told)
    return int(any(outcome != "passes" for outcome in outcomes))
