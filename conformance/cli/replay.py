"""Commands on the failures of a report: ``explain-failure``, ``replay`` and ``bundle``."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from ..base.printable_text import printable
from ..base.profile import DTYPES
from ..base.record import read_record
from ..errors import UsageError
from ._help import Command
from ._options import Decorator, file_option, timeout_option
from ._output import printing, progress_bar, use_as_written
from .completion import complete_files

if TYPE_CHECKING:
    from ..session.schedule import ShowProgress
    from ..tools.replay import FailedClause

TRUST: Final[Decorator] = click.option(
    "--trust",
    is_flag=True,
    help="Run whatever code the report names, without asking: a report is as good as a program.",
)
# Names of code that a refusal lists.
_NAMED: Final = 3


def _require_consent(
    failures: Sequence[FailedClause], target: str | None, *, trust: bool, instead: str = ""
) -> None:
    """Require the user's consent to run a report's targets; asks at a terminal."""
    from ..tools.replay import foreign  # noqa: PLC0415 (--help must not pay for it)

    sentences = [] if trust else foreign(failures, target)
    if not sentences:
        return
    more = f", and {len(sentences) - _NAMED} more" if len(sentences) > _NAMED else ""
    named = printable(f"{', '.join(sentences[:_NAMED])}{more}")
    if sys.stdin.isatty() and sys.stderr.isatty():
        question = f"The report names code that may not be yours: {named}. Run it?"
        if click.confirm(question, err=True):
            return
    msg = (
        f"the report names code that may not be yours: {named}; nothing was run: name the "
        f"candidate with --target, {instead}or give --trust if you trust the report"
    )
    raise UsageError(msg)


@click.command(
    name="explain-failure",
    cls=Command,
    examples=(("conformance explain-failure report.json#mask.causal", "One failed clause"),),
)
@click.argument("reference", metavar="REPORT.json[#CLAUSE]", shell_complete=complete_files)
@click.option("--candidate", metavar="NAME", help="The candidate whose failure is meant.")
@click.option("--dtype", type=click.Choice(DTYPES), help="The failure in this dtype.")
def explain_failure_command(*, reference: str, candidate: str | None, dtype: str | None) -> int:
    """Show what is wrong in one failure of a report, and what to change.

    The mistake, its fix, the smallest input, a picture of the weights that were expected and those
    that came, and the facts. Without a clause it is the failed MUST that shows the first cause of
    REPORT.json best; name another as REPORT.json#CLAUSE or REPORT.json#CANDIDATE/CLAUSE. Nothing is
    run. Exit code: 0, or 2 for what is no report, has not failed, or is a failure of several
    candidates.
    """
    from ..tools.replay import failed_clauses, first_of, report_path  # noqa: PLC0415 (--help must not pay for it)
    from ..views.explained_failure import show_failure  # noqa: PLC0415 (loads rich)

    report = str(report_path(reference))

    def tell() -> None:
        case = first_of(failed_clauses(reference, candidate, dtype=dtype, purpose="explain"))
        show_failure(case.candidate, case.clause, sys.stdout, report=report)

    with printing(sys.stdout):
        use_as_written(report, tell)
    return 0


@click.command(
    name="replay",
    cls=Command,
    examples=(
        ("conformance replay report.json", "All failures again"),
        (
            "conformance replay report.json#mask.causal --emit-script show.py",
            "One, with torch alone",
        ),
    ),
)
@click.argument("reference", metavar="REPORT.json[#CLAUSE]", shell_complete=complete_files)
@click.option("--candidate", metavar="NAME", help="Only this candidate's failures.")
@click.option("--dtype", type=click.Choice(DTYPES), help="Only the failures in this dtype.")
@click.option("--target", metavar="TARGET", help="Call this candidate instead of the report's.")
@click.option(
    "--emit-script",
    "script_path",
    metavar="FILE",
    help="Write a Python file that shows the failure with torch alone (- for standard output).",
)
@TRUST
@timeout_option("Stop a candidate that gives no answer for so long.")
def replay_command(
    *,
    reference: str,
    candidate: str | None,
    dtype: str | None,
    target: str | None,
    script_path: str | None,
    trust: bool,
    timeout: float,
) -> int:
    """Run the counterexamples of a report again.

    All failures of REPORT.json, those of one clause (REPORT.json#CLAUSE) or of one candidate and
    clause (REPORT.json#CANDIDATE/CLAUSE). What passes alone runs again after the calls that
    the run made before it, since a candidate may remember them. What a report names is imported and
    called: what no Python file below the working folder declares is run only with --target, --trust
    or a yes at the terminal. Exit code: 1 when one still fails, 0 when none does.
    """
    from ..tools.replay import cases, replay, report_path  # noqa: PLC0415 (--help must not pay for it)
    from ..tools.scripts.writing import single, write_script  # noqa: PLC0415
    from ..views.tool_texts import show_count, show_replay  # noqa: PLC0415

    report = str(report_path(reference))
    failures = use_as_written(report, lambda: cases(reference, candidate, dtype=dtype))
    if script_path is not None:
        failures = single(failures, script_path)
    _require_consent(failures, target, trust=trust)
    outcomes = []
    stream = sys.stderr if script_path == "-" else sys.stdout

    def again(progress: ShowProgress) -> None:
        for result in replay(failures, target=target, timeout=timeout, progress=progress):
            outcomes.append(result.outcome)
            with printing(stream):
                show_replay((result.candidate, result.clause, result.outcome, result.after), stream)
            if script_path is not None and result.outcome != "passes":
                source = target or failures[0].candidate["target"]
                with printing():
                    write_script(result.clause, source, script_path)

    with progress_bar() as progress:
        use_as_written(report, lambda: again(progress))
    with printing():
        show_count(outcomes, stream)
    return int(any(outcome != "passes" for outcome in outcomes))


@click.command(
    name="bundle",
    cls=Command,
    examples=(("conformance bundle report.json#mask.causal", "A folder for an issue"),),
)
@click.argument("reference", metavar="REPORT.json#CLAUSE", shell_complete=complete_files)
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
@TRUST
@timeout_option("Stop a candidate that gives no answer for so long.")
def bundle_command(
    *,
    reference: str,
    candidate: str | None,
    dtype: str | None,
    target: str | None,
    output: Path | None,
    recorded: bool,
    trust: bool,
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

    report = report_path(reference)
    failures = use_as_written(str(report), lambda: cases(reference, candidate, dtype=dtype))
    (case,) = single(failures, option="conformance bundle")
    folder = folder_for(case, output)
    if not recorded:
        _require_consent([case], target, trust=trust, instead="take --recorded, ")
    with progress_bar() as progress:
        bundled = use_as_written(
            str(report),
            lambda: bundle(
                case,
                read_record(report),
                folder,
                target=target,
                recorded=recorded,
                timeout=timeout,
                progress=progress,
            ),
        )
    with printing(sys.stdout):
        show_bundle(
            str(bundled.folder), bundled.clause, bundled.outcome, bundled.again, file=sys.stdout
        )
    return 0
