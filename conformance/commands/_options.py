"""Options that click does not have."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import click

Callback = Callable[[click.Context, click.Parameter, tuple[str, ...]], tuple[str, ...]]


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
