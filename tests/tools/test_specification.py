"""docs/specification.md says what the clauses say, every one of them and no other."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib import import_module

from _paths import CHECKOUT

from conformance.clauses.registry import Clause, all_clauses, specification_hash
from conformance.tools.pictures import PICTURED
from conformance.tools.specification import applies, caught_first, render

DOCUMENT = (CHECKOUT / "docs" / "specification.md").read_text(encoding="utf-8")
CLAUSES = all_clauses()


def section(clause: Clause) -> str:
    """What the document says of one clause, from its heading to the next."""
    start = rf"^### `{re.escape(clause.id)}`: "
    match = re.search(rf"{start}.*?(?=^##|\Z)", DOCUMENT, re.MULTILINE | re.DOTALL)
    assert match, f"{clause.id} has no section"
    return match[0]


def test_document_is_not_stale() -> None:
    """The committed document is what the clauses generate today, to the letter."""
    hint = "run: python -m conformance.tools.specification > docs/specification.md"
    assert render() == DOCUMENT, hint


def test_command_prints_the_document() -> None:
    """The command that the document names for its making prints just the document."""
    command = [sys.executable, "-m", "conformance.tools.specification"]
    assert " ".join(["python", *command[1:]]) in DOCUMENT
    done = subprocess.run(command, capture_output=True, check=True)
    assert done.stdout.decode("utf-8").replace("\r\n", "\n") == DOCUMENT


def test_document_has_a_section_for_each_clause() -> None:
    """Every clause has one section, a family in the order of the registry, and nothing else has."""
    headings = re.findall(r"^### `(.+?)`", DOCUMENT, re.MULTILINE)
    families = list(dict.fromkeys(clause.family for clause in CLAUSES))
    in_order = sorted(CLAUSES, key=lambda clause: families.index(clause.family))
    assert headings == [clause.id for clause in in_order]


def test_pages_name_clauses_that_there_are() -> None:
    """What is quoted on a page and looks like a clause, its family before a dot, is one."""
    families = "|".join({re.escape(clause.family) for clause in CLAUSES})
    quoted = re.compile(rf"[`\"']((?:{families})\.(?!onnx|py)[a-z0-9-]+)(?=[`\"'])")
    pages = [CHECKOUT / "README.md", *sorted((CHECKOUT / "docs").glob("*.md"))]
    named = {
        (slug, page.name) for page in pages for slug in quoted.findall(page.read_text("utf-8"))
    }
    assert len(named) > len(CLAUSES)
    known = {clause.id for clause in CLAUSES}
    assert sorted((slug, page) for slug, page in named if slug not in known) == []


def test_document_has_a_chapter_for_each_family() -> None:
    """Every family of clauses has one chapter, in which all its sections lie."""
    chapters = re.findall(r"^## (.+)$", DOCUMENT, re.MULTILINE)
    assert chapters == list(dict.fromkeys(clause.family for clause in CLAUSES))
    for chapter in re.split(r"^## ", DOCUMENT, flags=re.MULTILINE)[1:]:
        family = chapter.partition("\n")[0]
        slugs = re.findall(r"^### `(.+?)`", chapter, re.MULTILINE)
        assert {slug.partition(".")[0] for slug in slugs} == {family}


def test_each_section_tells_the_whole_clause() -> None:
    """Each section holds level, sentence, source, kinds and counterfactual of its clause."""
    for clause in CLAUSES:
        text = section(clause)
        assert text.startswith(f"### `{clause.id}`: {clause.level_text}\n")
        assert f"\n{clause.sentence}\n" in text
        assert f"- Source: {clause.source}\n" in text
        assert f"- Speaks of: {', '.join(clause.space.kinds)}\n" in text
        assert clause.counterfactual in text
        assert f"- Applies: {applies(clause)}\n" in text
        assert (f"](pictures/{clause.id}.svg)" in text) == (clause.id in PICTURED)
        assert all(f"`{name}`" in text for name in caught_first().get(clause.id, ()))
        assert ("the golden reference" in text) == clause.needs_golden


def test_every_named_mistake_has_a_clause() -> None:
    """Each mistake that has a name stands with a clause of the document."""
    assert set(caught_first()) <= {clause.id for clause in CLAUSES}
    assert sum(map(len, caught_first().values())) > len(CLAUSES)


def test_fingerprint_is_the_one_of_reports() -> None:
    """The document's fingerprint is the one that every report carries."""
    assert f"Fingerprint: `{specification_hash()}`, {len(CLAUSES)} clauses." in DOCUMENT


def test_every_clause_module_contributes() -> None:
    """No file of clauses is forgotten: each registers at least one clause of the document."""
    folder = CHECKOUT / "conformance" / "clauses"
    shared = {"__init__", "rearranging", "registry", "subject", "judging", "judging_gradients"}
    files = {path.stem for path in folder.glob("*.py")} - shared
    package = import_module("conformance.clauses").__name__
    homes = {clause.check.__module__ for clause in CLAUSES}
    assert homes == {f"{package}.{name}" for name in files}
