"""Whose tokens the heads of a graph are made of, and whether it is whose they should be."""

from __future__ import annotations

from collections.abc import Sequence

from .core import Core
from .inside import PARTS
from .probing import spoken
from .questions import Questions
from .unreadable import UnreadableError
from .wiring import Wiring


def role_behind(wiring: Wiring, questions: Questions, part: str, tensor: str) -> str:
    """The role of the tokens behind the heads of a part; raises UnreadableError for several."""
    wanted = questions.role_of(spoken(part))
    names = {role.name: found for found, role in questions.tokens.items()}
    reaching = {names[name] for name in wiring.reaching(tensor, frozenset(names))}
    if wanted in reaching:
        return wanted
    if len(reaching) != 1:
        msg = f"the {spoken(part)} heads are made of {len(reaching)} inputs"
        raise UnreadableError(msg)
    found = reaching.pop()
    if questions.shape(found)[-1] != questions.shape(wanted)[-1]:
        msg = f"the {spoken(part)} heads are made of {found}, which has another width than {wanted}"
        raise UnreadableError(msg)
    return found


def mixed_up(wiring: Wiring, questions: Questions, cores: Sequence[Core]) -> list[str]:
    """A sentence for each part that the graph makes of other tokens than it should."""
    found = []
    for part in PARTS:
        wanted = questions.role_of(part)
        roles = {
            role_behind(wiring, questions, part, getattr(core, part).name) for core in cores
        } - {wanted}
        if roles:
            found.append(f"the graph makes the {part} heads of the tokens of {roles.pop()}")
    return found
