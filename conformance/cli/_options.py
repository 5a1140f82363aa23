"""Options that several commands have, and one that click does not have."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final

import click

from ..base.dtypes import DTYPES
from ..base.profile import PROFILES

Callback = Callable[[click.Context, click.Parameter, tuple[str, ...]], tuple[str, ...]]


Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]
ONLY: Final[Decorator] = click.option(
    "--only", multiple=True, metavar="GLOB", help="Run only these clauses."
)
SKIP: Final[Decorator] = click.option(
    "--skip", multiple=True, metavar="GLOB", help="Leave these clauses out."
)
STRICT: Final[Decorator] = click.option(
    "--strict", is_flag=True, help="Exit with 1 when a SHOULD clause failed, too."
)

FAIL_ON: Final[Decorator] = click.option(
    "--fail-on",
    type=click.Choice(["must", "should"]),
    default="must",
    show_default=True,
    help="Which failed clauses make the exit code 1; should is the same as --strict.",
)


def profile_option(default: str = "default") -> Decorator:
    """``--profile NAME``: how many examples each clause is asked."""
    return click.option(
        "--profile",
        type=click.Choice(list(PROFILES)),
        default=default,
        show_default=True,
        help="How hard to try.",
    )


def expected_failures_option(said: str) -> Decorator:
    """``--expected-failures FILE``: what is announced to fail."""
    return click.option(
        "--expected-failures", type=click.Path(path_type=Path), metavar="FILE", help=said
    )


def json_option(said: str) -> Decorator:
    """``--json FILE``, given to the command as ``json_path``."""
    return click.option(
        "--json", "json_path", type=click.Path(path_type=Path), metavar="FILE", help=said
    )


def timeout_option(said: str) -> Decorator:
    """``--timeout SECONDS``: how long what is checked may be silent."""
    return click.option(
        "--timeout",
        type=click.FloatRange(min=0, min_open=True),
        default=30.0,
        show_default=True,
        metavar="SECONDS",
        help=said,
    )


def separated(choices: Iterable[str] = ()) -> Callback:
    """The callback of a repeatable option whose values are words separated by commas.

    It gives each word once, in the order in which they were given. A word that is not among the
    choices, where there are any, or a value without a word is bad input.
    """
    one = click.Choice(tuple(choices)) if choices else click.STRING

    def read(
        context: click.Context, parameter: click.Parameter, values: tuple[str, ...]
    ) -> tuple[str, ...]:
        found: dict[str, None] = {}
        for value in values:
            words = [word.strip() for word in value.split(",") if word.strip()]
            if not words:
                msg = f"{value!r} names nothing"
                raise click.BadParameter(msg, context, parameter)
            found |= dict.fromkeys(one.convert(word, parameter, context) for word in words)
        return tuple(found)

    return read


# Below the callback that they are made with.
DTYPE: Final[Decorator] = click.option(
    "--dtype",
    "dtypes",
    multiple=True,
    callback=separated(DTYPES),
    metavar=f"[{'|'.join(DTYPES)}],...",
    help="Judge in these dtypes (float32,bfloat16) instead of the declared ones; may be repeated.",
)
DEVICE: Final[Decorator] = click.option(
    "--device",
    "devices",
    multiple=True,
    callback=separated(),
    metavar="DEVICE,...",
    help="Run on these devices (cpu,cuda:1) instead of the declared ones; may be repeated.",
)
UNCHECKED: Final[Decorator] = click.option(
    "--unchecked",
    multiple=True,
    callback=separated(),
    metavar="NAME,...",
    help=(
        "Parameters (or globs) that look like a mask and may stay unchecked; any other that is not "
        "declared leaves its candidate inconclusive."
    ),
)
SEED: Final[Decorator] = click.option(
    "--seed",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    metavar="N",
    help="Where drawn examples start.",
)
