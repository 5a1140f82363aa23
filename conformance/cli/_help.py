"""``--help`` as a page that can be looked things up in: options by purpose, then examples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import click

# Fewer options than this are read in one go.
_FEW: Final = 9
# The purpose of an option, by the name of its parameter, for all commands.
PURPOSES: Final[Mapping[str, tuple[str, ...]]] = {
    "What is judged": (
        *("dtypes", "devices", "source", "state_dict", "declaration", "compiled", "unchecked"),
        *("opsets", "exporters", "correct", "definition"),
    ),
    "Which clauses are asked": (
        *("profile", "only", "skip", "seed", "exitfirst", "first", "failed_first", "databases"),
        *("shard", "explain"),
    ),
    "What counts as a failure": ("expected_failures", "write_expected", "fail_on", "strict"),
    "Where it runs": (
        *("isolated", "jobs", "max_time", "cluster", "per_worker", "timeout", "max_memory"),
        *("watch", "keep"),
    ),
    "What is shown and written": (
        *("json_path", "html_path", "markdown_path", "sarif_path", "junit_path", "ctrf_path"),
        *("badge_path", "terminal_path", "github", "verbosity"),
    ),
}
_OTHERS: Final = "Options"
_WHOLE: Final = 200  # characters of a first sentence, which is broken into lines and not cut


class Command(click.Command):
    """A command whose help lists its options by purpose and ends with examples.

    ``examples`` are pairs of a command line and its effect.
    """

    def __init__(
        self, *arguments: Any, examples: Sequence[tuple[str, str]] = (), **options: Any
    ) -> None:
        super().__init__(*arguments, **options)
        self.examples = examples

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options by purpose."""
        shown = [
            (str(parameter.name), record)
            for parameter in self.get_params(ctx)
            if isinstance(parameter, click.Option) and (record := parameter.get_help_record(ctx))
        ]
        purposes = {} if len(shown) < _FEW else PURPOSES
        sorted_in = {name for names in purposes.values() for name in names}
        others = tuple(name for name, _ in shown if name not in sorted_in)
        for title, names in {**purposes, _OTHERS: others}.items():
            if records := [record for name, record in shown if name in names]:
                with formatter.section(title):
                    formatter.write_dl(records)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the examples."""
        super().format_epilog(ctx, formatter)
        _write_examples(self.examples, formatter)


class Group(click.Group):
    """The commands by purpose, and examples."""

    def __init__(
        self,
        *arguments: Any,
        purposes: Mapping[str, Sequence[click.Command]],
        examples: Sequence[tuple[str, str]],
        **options: Any,
    ) -> None:
        super().__init__(*arguments, **options)
        self.purposes = purposes
        self.examples = examples
        for commands in purposes.values():
            for command in commands:
                self.add_command(command)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands with their summaries, by purpose, in the order of their use."""
        _ = ctx
        longest = max(map(len, self.commands))
        for title, commands in self.purposes.items():
            with formatter.section(title):
                formatter.write_dl(
                    [
                        (
                            str(command.name).ljust(longest),
                            command.get_short_help_str(_WHOLE),
                        )
                        for command in commands
                    ]
                )

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the examples."""
        super().format_epilog(ctx, formatter)
        _write_examples(self.examples, formatter)


def _write_examples(examples: Sequence[tuple[str, str]], formatter: click.HelpFormatter) -> None:
    """Write command lines, unbroken for copying, each below its purpose."""
    if not examples:
        return
    with formatter.section("Examples"):
        for line, does in examples:
            formatter.write_text(f"{does}:")
            formatter.write(f"{'':{formatter.current_indent + 2}}{line}\n")
