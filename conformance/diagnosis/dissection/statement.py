"""A statement of what a candidate computes, as a mistake that can be acted out and so checked."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from ..mistakes import NamedMistake

_PRIMARY: Final = "numerics.golden"


def statement(name: str, text: str, fix: str, **steps: Any) -> NamedMistake:
    """The golden with exactly the change that was read; ``name`` is of the form "kind: words"."""
    return NamedMistake(name=name, primary=_PRIMARY, sentence=text, fix=fix, **steps)


def together(one: NamedMistake, two: NamedMistake, *, answers_last: bool = False) -> NamedMistake:
    """One statement of two changes, each step of the second made after that of the first.

    With ``answers_last`` the first changes how answers of heads are merged: that comes after any
    change of the weights.
    """
    cores = (two.core, one.core) if answers_last else (one.core, two.core)
    return statement(
        f"{one.name}; {two.name}",
        f"{one.sentence}; {two.sentence}",
        f"{one.fix}; {two.fix}",
        inputs=_both(one.inputs, two.inputs, of_inputs=True),
        heads=_both(one.heads, two.heads),
        core=_both(*cores),
        output=_both(one.output, two.output),
    )


def _both(
    first: Callable[..., Any] | None, then: Callable[..., Any] | None, *, of_inputs: bool = False
) -> Callable[..., Any] | None:
    """Two changes of one step; None of either leaves what it gets."""
    if first is None or then is None:
        return first or then

    def change(call: Any, *before: Any) -> Any:
        made = first(call, *before)
        if of_inputs:
            changed = call if made is None else type(call)(inputs=made, semantics=call.semantics)
            after = then(changed)
            return made if after is None else after
        made = before[0] if made is None else made
        after = then(call, made)
        return made if after is None else after

    return change
