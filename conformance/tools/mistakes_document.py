"""The named mistakes as a document, generated from their table."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Final

from ..base.mistake import UNKNOWN
from ..diagnosis.mistakes import BACKWARD, MISTAKES, NamedMistake
from ..diagnosis.precision_losses import LOSSES
from .explaining import known_mistakes

HEADER: Final = """# The mistakes that have a name

Generated from the table by `python -m conformance.tools.mistakes_document`; a test fails when it is
stale. {count} names.

When a numerical or mask clause fails, every mistake below is acted out on a small battery of
problems, singles first, then pairs. A name is given only if the answers of such a candidate are
those of yours, within the rounding bound, on every problem of the battery and on the failing one,
and if that candidate fails the clause, too. Names that nothing tells apart on what your candidate
can be asked share the confidence. Pairs are joined by `+`. The names are stable. Where a candidate
has so many options that the battery is long, its first problems and such in which any two options
meet decide, if one name alone explains them.

| name | what is wrong | what to do | clause |
| --- | --- | --- | --- |
"""
FOOTER: Final = """
## Backward passes

When a gradient is wrong though the answers are right, every wrong backward pass below is acted out
on a battery of its own. The last of them are named by the clause that fails alone.

| name | what is wrong | what to do | clause |
| --- | --- | --- | --- |
{backward}

## Precision

Named where the answers are off by little, and with what was measured.

| name | what is wrong |
| --- | --- |
| `scale-off` | the scale of the logits is off by the relative error that is stated |
| `epsilon-in-the-denominator` | a number is added to the sum of the exponentials: it is stated |
| `computed-in-FORMAT` | every answer is a number of a coarser format |
{losses}

`FORMAT` is {formats}.

## Without a name

`{unknown}` has confidence 0. Its `facts` say what is true all the same: which problems go wrong
(only with a mask, none with the causal flag …), which batch items, heads, queries and channels are
affected, by how much, whether a second call differs, whether the weights sum to one, whether the
answer is a constant multiple of the expected one.
"""


def render() -> str:
    """The whole document as markdown."""
    formats = dict.fromkeys(loss.number_format for loss in LOSSES)
    stages = {loss.stage: loss for loss in reversed(LOSSES)}
    losses = "\n".join(
        f"| `{stage}-FORMAT` | {stages[stage].what.format('a coarser format')} |"
        for stage in dict.fromkeys(loss.stage for loss in LOSSES)
        if stage != "computed-in"
    )
    rows = _rows(MISTAKES)
    footer = FOOTER.format(
        backward="\n".join(_rows(BACKWARD)),
        losses=losses,
        formats=", ".join(formats),
        unknown=UNKNOWN,
    )
    return HEADER.format(count=len(rows)) + "\n".join(rows) + "\n" + footer


def _rows(mistakes: Sequence[NamedMistake]) -> list[str]:
    """A row for every name, with the words of its first entry."""
    names: dict[str, NamedMistake] = {}
    for mistake in mistakes:
        names.setdefault(mistake.name, mistake)
    return [f"| `{m.name}` | {m.sentence} | {m.fix} | `{m.primary}` |" for m in names.values()]


def names() -> str:
    """The mistakes that ``conformance explain`` knows, a line for every name, for completion."""
    return "".join(f"{name}\n" for name in sorted(known_mistakes()))


def main() -> None:
    """Print the document, or ``names``."""
    sys.stdout.write(names() if sys.argv[1:] == ["names"] else render())


if __name__ == "__main__":
    main()
