"""The shipped mistakes: everything that diagnosis can name, acted out."""

from __future__ import annotations

from ...base.mistake import Mistake
from ...diagnosis.mistakes import MISTAKES, NamedMistake
from .stepwise import act_out_named


def shipped_mistakes() -> list[Mistake]:
    """Each named mistake as one that must be caught."""
    return [_shipped(named) for named in MISTAKES]


def _shipped(named: NamedMistake) -> Mistake:
    return Mistake(
        name=named.name,
        sentence=f"{named.text[0].upper()}{named.text[1:]}.",
        fix=named.fix,
        primary=named.clause,
        changes=named.changes,
        candidate=None if named.only_a_point else act_out_named(named),
    )
