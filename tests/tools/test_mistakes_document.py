"""docs/mistakes.md says what the table says, every name of it and no other."""

from __future__ import annotations

import re

from _paths import CHECKOUT

from conformance.clauses.registry import all_clauses
from conformance.diagnosis.mistakes import BACKWARD, MISTAKES, named_mistakes
from conformance.tools.mistakes_document import names, render

DOCUMENT = (CHECKOUT / "docs" / "mistakes.md").read_text(encoding="utf-8")
NAMES = list(dict.fromkeys(mistake.name for mistake in MISTAKES))
OF_GRADIENTS = list(dict.fromkeys(mistake.name for mistake in BACKWARD))


def test_document_is_up_to_date() -> None:
    """What the module prints is what is committed."""
    hint = "run: python -m conformance.tools.mistakes_document > docs/mistakes.md"
    assert render() == DOCUMENT, hint


def test_the_list_for_completion_is_up_to_date() -> None:
    """What shells complete are the names that are explained."""
    file = CHECKOUT / "conformance" / "cli" / "mistakes.txt"
    hint = f"run: python -m conformance.tools.mistakes_document names > {file}"
    assert names() == file.read_text(encoding="utf-8"), hint


def test_document_lists_every_name_once() -> None:
    """Each name has one row."""
    rows = re.findall(r"^\| `([^`]+)` \|.*\|.*\|.*\|$", DOCUMENT, flags=re.MULTILINE)
    assert rows == [*NAMES, *OF_GRADIENTS]


def test_every_mistake_says_what_to_do() -> None:
    """Name, sentence, remedy and a clause that exists; special cases of what is in the table."""
    clauses = {clause.id for clause in all_clauses()}
    for mistake in (*MISTAKES, *BACKWARD):
        assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", mistake.name), mistake.name
        assert mistake.sentence
        assert mistake.fix
        assert mistake.primary in clauses, mistake.name
        assert not mistake.special_of or mistake.special_of in NAMES, mistake.name


def test_every_mistake_of_answers_changes_something() -> None:
    """Each way to make one is a point, other inputs, or edits of stages."""
    for mistake in MISTAKES:
        changed = (mistake.inputs, mistake.edits, mistake.point)
        assert mistake.changes or any(changed), mistake.name


def test_the_table_is_what_is_searched() -> None:
    """Without other distributions, the table is all there is."""
    assert named_mistakes() == MISTAKES
