"""Whether the line that a diagnosis blames is the one that was changed to make a mutant."""

from __future__ import annotations

import ast
import difflib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from .mutants import Mutant

_FOLDER: Final = Path(__file__).resolve().parent / "kernels"


def blame(mutant: Mutant, line: Mapping[str, Any] | None) -> str:
    """``changed``, ``uses``, ``before``, ``none`` or ``other``.

    A line is the changed one where the statement around it was changed; it uses the changed one
    where its statement reads a name that a changed or lost statement binds, calls the function in
    which that stands, stands under a changed condition, or in a class that the changed function
    makes an object of. What is missing before a line is so if
    all that was changed stands before it in the same function.
    """
    from . import mutated  # noqa: PLC0415 (the package reads this module first)

    if line is None:
        return "none"
    before = (_FOLDER / f"{mutant.kernel}.py").read_text(encoding="utf-8")
    after = mutated(mutant)
    old, new = ast.parse(before), ast.parse(after)
    pairs = difflib.SequenceMatcher(None, before.splitlines(), after.splitlines(), autojunk=False)
    changed: list[ast.stmt] = []
    own: list[ast.stmt] = []
    for kind, first, last, start, end in pairs.get_opcodes():
        if kind != "equal":
            changed += _at(old, range(first + 1, last + 1))
            own += _at(new, range(start + 1, end + 1))
    at = _at(new, [int(line["number"])])
    if at and at[0] in own:
        return "changed"
    if at and _uses(new, at[0], own, changed):
        return "uses"
    return "before" if at and line.get("before") and _is_behind(new, at[0], own) else "other"


def _uses(tree: ast.Module, blamed: ast.stmt, own: list[ast.stmt], lost: list[ast.stmt]) -> bool:
    """Whether a statement uses what changed or lost ones make, or stands under one of them."""
    if any(blamed in ast.walk(each) for each in own):
        return True
    bound = {name for one in (*lost, *own) for name in _bound(one)}
    bound |= {name for one in own for name in _functions_around(tree, one)}
    makers = [node for one in own for node in _functions(tree) if one in ast.walk(node)]
    made = set(_classes_around(tree, blamed)) & {name for node in makers for name in _read(node)}
    return bool(made or bound & set(_read(blamed)))


def _is_behind(tree: ast.Module, blamed: ast.stmt, own: list[ast.stmt]) -> bool:
    """Whether all that was changed stands before a statement, in the same function."""
    around = set(_functions_around(tree, blamed))
    return all(
        one.lineno < blamed.lineno and set(_functions_around(tree, one)) == around for one in own
    )


def _at(tree: ast.Module, numbers: Any) -> list[ast.stmt]:
    """The innermost statements of some lines."""
    found = []
    for number in numbers:
        around = [
            one
            for one in ast.walk(tree)
            if isinstance(one, ast.stmt) and one.lineno <= number <= (one.end_lineno or one.lineno)
        ]
        if around:
            inner = max(around, key=lambda one: (one.lineno, one.col_offset))
            found += [] if inner in found else [inner]
    return found


def _bound(statement: ast.stmt) -> Iterator[str]:
    """The names and attributes that a statement, or one inside it, binds or writes into."""
    for node in ast.walk(statement):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.attr
        elif isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store):
            yield from _read(node.value)


def _functions(tree: ast.Module) -> list[ast.FunctionDef]:
    return [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]


def _functions_around(tree: ast.Module, statement: ast.stmt) -> Iterator[str]:
    return (node.name for node in _functions(tree) if statement in ast.walk(node))


def _classes_around(tree: ast.Module, statement: ast.stmt) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef) and statement in ast.walk(node):
            yield node.name


def _read(node: ast.AST) -> Iterator[str]:
    """The names and attributes that are read somewhere in a statement."""
    for one in ast.walk(node):
        if isinstance(one, ast.Name):
            yield one.id
        elif isinstance(one, ast.Attribute):
            yield one.attr
