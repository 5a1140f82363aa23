"""``conformance merge``: the records of all shards of a run as one record."""

from __future__ import annotations

from pathlib import Path

import click

from ._github import GITHUB, is_for_github, no_commands, tell_github
from ._options import FAIL_ON, STRICT, json_option
from ._output import printing
from ._views import Files, check_files, told_to, view_options, write_views


@click.command(name="merge")
@click.argument(
    "shards",
    nargs=-1,
    required=True,
    type=click.Path(path_type=Path),
    metavar="SHARD.json...",
)
@json_option("Write the record of the whole run there (- for standard output).")
@view_options()
@GITHUB
@FAIL_ON
@STRICT
def merge_command(
    *,
    shards: tuple[Path, ...],
    json_path: Path | None,
    views: Files,
    github: bool | None,
    fail_on: str,
    strict: bool,
) -> int:
    """Make one record of the records of all shards of a run.

    Each SHARD.json is what 'conformance check --shard I/N --json' wrote. Examples are counted as
    one machine would have counted them, and every verdict is judged again. Nothing is run.

    Exit code: that of the whole run, as of 'conformance check'; 2 for shards that are missing,
    given twice or of different runs.
    """
    from ..session.merging import merge_shards, read_shards  # noqa: PLC0415 (--help must not pay for it)
    from ..session.report import gate_code  # noqa: PLC0415
    from ..views.terminal import show  # noqa: PLC0415 (loads rich)

    strict = strict or fail_on == "should"
    check_files(views, {"--json": json_path})
    record = merge_shards(read_shards(shards))
    record["fail_on"] = "should" if strict else "must"
    try:
        write_views(record, views, json_path)
    finally:  # what was found is not lost because a disk is full
        told, on_github = told_to(views, json_path), is_for_github(asked=github)
        with printing():
            with no_commands(told, active=on_github):
                show(record, told)
            if on_github:
                tell_github(record, told)
    return gate_code(record, strict=strict)
