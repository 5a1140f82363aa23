"""What a file of ``survey/libraries`` says about its library, read without importing anything.

The facts are literals at the top of the file; the functions below them make what is judged and run
in the library's environment alone.
"""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Final

FOLDER: Final = Path(__file__).with_name("libraries")
# The files have names that no library has: the folder of a target comes first on the path.
PREFIX: Final = "survey_"
# What is run of a candidate: identify and a check of what it declares, or a check alone.
WAYS: Final = ("identify", "check")
# What a failure can be decided to be.
DECISIONS: Final = (
    "defect",
    "undocumented convention",
    "documented deviation",
    "ours",
)
# In the place of a clause: that a candidate could be reached at all.
REACHED: Final = "reached"
# What a promise can say about a declaration.
DECLARABLE: Final = ("masks", "mask_shapes", "causal", "causal_combination", "empty_rows")
_ABOUT_ROWS: Final = ("PROMISES", "DECIDED")
_FACTS: Final = ("REQUIREMENTS", "ALONE", "CANDIDATES", *_ABOUT_ROWS)


class SurveyError(Exception):
    """What a user has to change, in one sentence."""


@dataclass(frozen=True, kw_only=True)
class Promise:
    """A sentence of the library's own documentation, and the clauses that hold it to that.

    ``candidates`` is a glob of names; ``clauses`` are globs of slugs. ``declares`` is what a
    candidate that keeps the sentence declares, of the facts of ``DECLARABLE``: clauses hold a
    candidate to its declaration, whatever that is.
    """

    sentence: str
    link: str
    clauses: tuple[str, ...]
    candidates: str = "*"
    declares: Mapping[str, str | Sequence[str]] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Decision:
    """What failures of some clauses are, and why.

    ``clause``, one or several, and ``candidates`` are globs; ``reached`` stands for candidates
    that have no verdict. ``kind``, where it is given, is how they fail. A defect's ``finding`` is
    the name of its page.
    """

    clause: str | Sequence[str]
    decided: str
    reason: str
    candidates: str = "*"
    kind: str = ""
    finding: str = ""

    def covers(self, candidate: str, clause: Mapping[str, Any]) -> bool:
        """Whether it is about this failure of this candidate; an error of the harness never is."""
        return (
            clause["status"] != "error"
            and fnmatchcase(candidate, self.candidates)
            and any(fnmatchcase(clause["id"], glob) for glob in self.clauses)
            and self.kind in ("", clause["kind"])
        )

    @property
    def clauses(self) -> tuple[str, ...]:
        """The globs of the clauses' slugs."""
        return (self.clause,) if isinstance(self.clause, str) else tuple(self.clause)


@dataclass(frozen=True, kw_only=True)
class Library:
    """One library: what is installed, what is judged of it and what is known of that.

    ``candidates`` maps the name of a function, or of a declared candidate, to a way of ``WAYS``;
    the first requirement is the library itself. What is in ``alone`` is installed without what it
    depends on, before the rest: for a library that can do without a part which cannot be had.
    """

    name: str
    path: Path
    about: str
    requirements: tuple[str, ...]
    alone: tuple[str, ...]
    candidates: Mapping[str, str]
    promises: tuple[Promise, ...]
    decided: tuple[Decision, ...]

    @property
    def distribution(self) -> str:
        """The library's name in the package index."""
        return self.pins[0].partition("==")[0].partition("[")[0]

    @property
    def pins(self) -> tuple[str, ...]:
        """Everything that is installed, the library itself first."""
        return self.alone + self.requirements

    @property
    def digest(self) -> str:
        """What tells this file, with the helpers that it imports, from older ones.

        Promises and decisions, which are about rows that are there already, do not count.
        """
        text = self.path.read_text(encoding="utf-8")
        tree = ast.parse(text)
        passed_over = {
            number
            for node in tree.body
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) in _ABOUT_ROWS
            for number in range(node.lineno, (node.end_lineno or node.lineno) + 1)
        }
        lines = enumerate(text.splitlines(), 1)
        kept = "\n".join(line for number, line in lines if number not in passed_over)
        helpers = (self.path.with_name(f"{name}.py") for name in sorted(_imported(tree)))
        kept += "".join(helper.read_text(encoding="utf-8") for helper in helpers if helper.exists())
        return hashlib.sha256(kept.encode()).hexdigest()[:12]


def _imported(tree: ast.Module) -> set[str]:
    """The modules that a file imports, each by its first name."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module.partition(".")[0])
    return names


def names(folder: Path = FOLDER) -> list[str]:
    """Every library that has a file."""
    return sorted(path.stem.removeprefix(PREFIX) for path in folder.glob(f"{PREFIX}*.py"))


def read(name: str, folder: Path = FOLDER) -> Library:
    """The library of a name; SurveyError with what is wrong with its file."""
    path = folder / f"{PREFIX}{name}.py"
    if not path.is_file():
        msg = f"there is no library {name!r} in {folder}: those are {', '.join(names(folder))}"
        raise SurveyError(msg)
    try:
        tree = ast.parse(path.read_text(encoding="utf-8"))
    except SyntaxError as error:
        msg = f"{path}:{error.lineno} is no Python: {error.msg}"
        raise SurveyError(msg) from error
    facts = _literals(tree, path)
    about = ast.get_docstring(tree)
    if not about:
        msg = f"{path} has no docstring: say what of the library is judged"
        raise SurveyError(msg)
    made = Library(
        name=name,
        path=path,
        about=about.splitlines()[0],
        requirements=tuple(facts["REQUIREMENTS"]),
        alone=tuple(facts["ALONE"]),
        candidates=dict(facts["CANDIDATES"]),
        promises=tuple(_entries(Promise, facts["PROMISES"], path)),
        decided=tuple(_entries(Decision, facts["DECIDED"], path)),
    )
    _check(made, tree)
    return made


def _literals(tree: ast.Module, path: Path) -> dict[str, Any]:
    """The facts at the top of a file; those that are left out are empty."""
    facts: dict[str, Any] = dict.fromkeys(_FACTS, ())
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            fact = node.targets[0].id
            if fact in facts:
                try:
                    facts[fact] = ast.literal_eval(node.value)
                except ValueError as error:
                    msg = f"{path}:{node.lineno}: {fact} is no literal: write its values out"
                    raise SurveyError(msg) from error
    return facts


def _entries(kind: type[Any], entries: Sequence[Mapping[str, Any]], path: Path) -> list[Any]:
    try:
        return [kind(**entry) for entry in entries]
    except TypeError as error:
        msg = f"{path}: an entry of {kind.__name__.lower()}s is wrong: {error}"
        raise SurveyError(msg) from error


def _check(library: Library, tree: ast.Module) -> None:
    """Require pins, functions for every candidate, links and decisions that are known."""
    for problem in (*_candidate_problems(library, _defined(tree)), *_promise_problems(library)):
        msg = f"{library.path}: {problem}"
        raise SurveyError(msg)


def _candidate_problems(library: Library, defined: set[str]) -> Iterator[str]:
    """What is wrong with what is installed and judged."""
    if not library.pins or not library.candidates:
        yield "REQUIREMENTS and CANDIDATES must not be empty"
    for requirement in library.pins:
        if "==" not in requirement:
            yield f"the requirement {requirement!r} is not pinned: write NAME==VERSION"
    for candidate, way in library.candidates.items():
        if candidate not in defined:
            yield f"the candidate {candidate!r} is not defined in the file"
        if way not in WAYS:
            yield f"{candidate} is run by {way!r}: write one of {', '.join(WAYS)}"


def _promise_problems(library: Library) -> Iterator[str]:
    """What is wrong with promises and decisions."""
    for promise in library.promises:
        if not promise.link.startswith("https://") or not promise.clauses:
            yield f"the promise {promise.sentence!r} needs an https link and clauses"
        for fact in set(promise.declares) - set(DECLARABLE):
            known = ", ".join(DECLARABLE)
            yield f"the promise {promise.sentence!r} declares {fact!r}: write one of {known}"
    for decision in library.decided:
        if not all(glob.strip("*?.") for glob in decision.clauses):
            yield f"the clause {decision.clause!r} is every failure there may be: list the slugs"
        if decision.decided not in DECISIONS:
            known = ", ".join(DECISIONS)
            yield f"{decision.clause} is decided {decision.decided!r}: write one of {known}"
        if (decision.decided == "defect") != bool(decision.finding):
            yield f"{decision.clause}: a defect has a finding, and nothing else has one"


def _defined(tree: ast.Module) -> set[str]:
    """The names of functions, of values and of what is imported, at the top of a file."""
    names = set()
    for node in tree.body:
        if isinstance(node, ast.FunctionDef):
            names.add(node.name)
        elif isinstance(node, ast.ImportFrom):
            names |= {alias.asname or alias.name for alias in node.names}
        elif isinstance(node, ast.Assign):
            targets = (name for target in node.targets for name in ast.walk(target))
            names |= {name.id for name in targets if isinstance(name, ast.Name)}
    return names
