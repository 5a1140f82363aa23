"""``conformance list`` and ``conformance explain``: the specification at the terminal."""

from __future__ import annotations

import sys

import click

from ._output import printing


@click.command(name="list")
@click.option("--json", "as_json", is_flag=True, help="As JSON instead of a table.")
def list_command(*, as_json: bool) -> int:
    """List the clauses with their levels and sentences."""
    from ..tools.catalogue import clause_entries  # noqa: PLC0415 (loads torch)

    entries = clause_entries()
    with printing():
        if as_json:
            import json  # noqa: PLC0415

            click.echo(json.dumps(entries, indent=2, ensure_ascii=False))
        else:
            from ..views.catalogue import show_list  # noqa: PLC0415

            show_list(entries, sys.stdout)
    return 0


@click.command(name="explain")
@click.argument("slug", metavar="CLAUSE")
def explain_command(*, slug: str) -> int:
    """Say what a clause requires, why, and how it is checked."""
    from ..tools.catalogue import clause_entry  # noqa: PLC0415 (loads torch)
    from ..views.catalogue import show_clause  # noqa: PLC0415

    entry = clause_entry(slug)
    with printing():
        show_clause(entry, sys.stdout)
    return 0
