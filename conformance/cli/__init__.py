"""The command line: a file a command, with options, start and output of the command.

The package may import every other package. This module holds the group of the commands.

click and not argparse: click composes subcommands whose options repeat, suggests the nearest option
for a misspelt one, lets :func:`conformance.__main__.main` decide how an error is shown, and imports
in some 30 ms. Commands import their needs when they run: ``--help`` stays fast.
"""

from __future__ import annotations

from typing import Final

import click

from ._help import Group
from .catalogue import explain_command, list_command, teeth_command, vectors_command
from .check import check_command
from .completion import completion_command
from .export_check import export_check_command
from .identify import identify_command
from .records import compare_command, diff_command, merge_command, render_command
from .replay import bundle_command, explain_failure_command, replay_command

_PURPOSES: Final = {
    "To judge": (check_command, compare_command, export_check_command, identify_command),
    "To understand a failure": (
        explain_command,
        explain_failure_command,
        replay_command,
        bundle_command,
        list_command,
    ),
    "To show and join records": (render_command, diff_command, merge_command),
    "Besides": (vectors_command, teeth_command, completion_command),
}
COMMANDS: Final = tuple(command for commands in _PURPOSES.values() for command in commands)


@click.group(
    cls=Group,
    purposes=_PURPOSES,
    examples=(
        ("conformance check attention.py:MyAttention", "Judge a class of yours"),
        ("conformance check attention.py --html page.html", "Judge what a file declares"),
        ("conformance explain scale-missing", "Read what a failure is about"),
    ),
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(package_name="attention-conformance", prog_name="conformance")
@click.pass_context
def cli(context: click.Context) -> None:
    """Check whether an attention computes attention as specified, clause by clause.

    Exit code: 0 conforms, 1 fails or is inconclusive, 2 bad input, 3 the harness failed,
    130 interrupted.
    """
    if context.invoked_subcommand is None:
        *names, last = (str(command.name) for command in COMMANDS)
        msg = f"name a command: {', '.join(names)} or {last}; 'conformance --help' describes them"
        raise click.UsageError(msg)
