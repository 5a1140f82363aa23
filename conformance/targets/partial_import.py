"""Runs the part of a notebook, or of a file that does not import whole, that a target needs.

The part of a notebook is imports, definitions, and the statements without effects that give values
to the names in them. Sentences tell what was left out or failed, if the target needs it.
"""

from __future__ import annotations
import __future__

import ast
import hashlib
import importlib
import itertools
import linecache
import os
import re
import symtable
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any, Final, Never

from ..base.printable_text import few
from ..errors import BELOW, DeclarationError, UsageError, lines_to_paste
from .declaring import METHODS, and_more, attention_signs
from .effects import EffectError, without_effects
from .loading import (
    closest,
    guarded,
    import_dotted,
    import_path,
    package_of,
    place_text,
    put_on_path,
    shown_path,
)
from .notebooks import cells_of, is_notebook

_FUNCTIONS: Final = (ast.FunctionDef, ast.AsyncFunctionDef)
_DEFINITIONS: Final = (*_FUNCTIONS, ast.ClassDef)
_Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
_IMPORTS: Final = (ast.Import, ast.ImportFrom)
_COMPREHENSIONS: Final = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
_SCOPES: Final = (*_DEFINITIONS, ast.Lambda, *_COMPREHENSIONS)
# How many definitions of a file that fails are tried alone.
_MOST_TRIED: Final = 6
_ASSIGNMENTS: Final = (ast.Assign, ast.AnnAssign, ast.AugAssign)
# What may be a training, and what needs a loop of events.
_NEVER_RUN: Final = (ast.For, ast.While, ast.AsyncFor, ast.AsyncWith, ast.Await)


@dataclass(frozen=True)
class _Piece:
    """A statement of a module, and its file name in frames."""

    statement: ast.stmt
    file: str

    @property
    def place(self) -> str:
        return place_text(self.file, self.statement.lineno)

    @property
    def binds(self) -> set[str]:
        return _bound(self.statement)

    @property
    def changes(self) -> set[str]:
        """The names whose methods the piece calls for an effect: ``sizes.update(heads=4)``."""
        calls = [
            node.value.func
            for node in _outside(self.statement)
            if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)
        ]
        return {root for call in calls if isinstance(call, ast.Attribute) for root in _root(call)}

    @property
    def is_plain(self) -> bool:
        """Whether the piece names a value made without calls."""
        calls = (ast.Call, *_COMPREHENSIONS)
        return isinstance(self.statement, _ASSIGNMENTS) and not any(
            isinstance(node, calls) for node in _outside(self.statement)
        )

    @property
    def is_run(self) -> bool:
        """Whether a notebook's piece is run if the target needs it."""
        return not any(isinstance(node, _NEVER_RUN) for node in _outside(self.statement))

    @property
    def only_defines(self) -> bool:
        """Whether the piece only defines or imports names when its file is imported."""
        return _is_main(self.statement) or isinstance(self.statement, (*_IMPORTS, *_DEFINITIONS))

    @property
    def is_open(self) -> bool:
        """Whether the bound names are unknown, or the piece changes the path of imports."""
        names = [alias.name for node in _outside(self.statement) for alias in _aliases(node)]
        extends = isinstance(self.statement, ast.Expr) and "sys.path" in ast.unparse(self.statement)
        return "*" in names or extends


@dataclass(frozen=True)
class Part:
    """A module of which a part was run, and sentences on the rest that its target lacks."""

    module: ModuleType
    notes: tuple[str, ...] = ()


@dataclass
class _Running:
    """A module run piece by piece, and sentences on failed pieces, by the names that they bind."""

    module: ModuleType
    failed: dict[str, str] = field(default_factory=dict)
    # Those of the names whose values would have effects.
    refused: set[str] = field(default_factory=set)


# The attribute of a module that was run in part for its notes.
_NOTES: Final = "__conformance_notes__"


def notes_of(module: ModuleType) -> tuple[str, ...]:
    """Sentences on the omitted statements of a module that was run in part."""
    notes: tuple[str, ...] = vars(module).get(_NOTES, ())
    return notes


def import_named(dotted: str, name: str | None) -> Part:
    """The module of a dotted name, with at least the part that ``name`` needs.

    Raises UsageError.
    """
    try:
        return Part(import_dotted(dotted))
    except UsageError:
        below = dotted.replace(".", os.sep)
        files = (Path(folder, f"{below}.py") for folder in sys.path)
        file = next((file for file in files if file.is_file()), None)
        if name is None or file is None:
            raise
        return import_for(file, name)


def import_for(path: Path, name: str | None) -> Part:
    """The module of a file, a notebook or a package, with at least the part that a name needs.

    Raises UsageError if the part cannot be run.
    """
    path = path.resolve()
    first = None if name is None else name.partition(".")[0]
    made_before = sys.modules.get(_part_name(path, first))
    if made_before is not None and _NOTES in vars(made_before):
        return Part(made_before, notes_of(made_before))
    if is_notebook(path):
        part = _of_notebook(path, first)
    elif first is not None and (script := _of_script(path, first)) is not None:
        part = script
    else:
        try:
            module = import_path(path)
        except UsageError as error:
            made = None if first is None or path.is_dir() else _of_file(path, first, str(error))
            if made is None:
                msg = f"{error}{_judged_alone(path, str(error))}"
                raise UsageError(msg) from error
            part = made
        else:
            return Part(module) if first is None else _with_main(module, path, first)
    vars(part.module)[_NOTES] = part.notes
    return part


def _of_notebook(path: Path, name: str | None) -> Part:
    pieces, unread = _read(path)
    put_on_path(Path.cwd())
    put_on_path(path.parent)
    run = _Running(_new_module(path, name))
    run.module.__package__ = ""
    if name is None:
        wanted = _declaring(pieces)
    else:
        wanted = _needed(pieces, {name})
        if not wanted:
            raise UsageError(_not_there(pieces, name, shown_path(path), unread))
    chosen = [piece for piece in wanted if piece.is_run]
    left = _made_by_loops(wanted)
    if name in left:
        raise UsageError(_not_run(wanted, name, shown_path(path), left[name]))
    _run(run, chosen, watched=True)
    if name in run.refused:
        raise UsageError(_not_run(wanted, name, shown_path(path), run.failed[name]))
    if name in run.failed:
        raise UsageError(run.failed[name])
    if name is None:
        return Part(run.module, (*dict.fromkeys(run.failed.values()), *unread))
    used = {word for piece in chosen for word in _used(piece.statement)}
    missing = (said for bound, said in (run.failed | left).items() if bound in used)
    return Part(run.module, tuple(dict.fromkeys(missing)))


def _read(path: Path) -> tuple[list[_Piece], dict[str, str]]:
    """The statements of a notebook, and cells that are no Python by a sentence on each."""
    pieces, unread = [], {}
    for cell in cells_of(path):
        try:
            tree = ast.parse(cell.text)
        except (SyntaxError, ValueError) as error:
            line = getattr(error, "lineno", None) or 1
            said = getattr(error, "msg", "") or str(error)
            place = place_text(cell.file, line)
            unread[f"{place} is not run, being no Python: {said}"] = cell.text
            continue
        linecache.cache[cell.file] = _lines(cell.text)
        pieces += [_Piece(one, cell.file) for each in tree.body for one in _as_main(each)]
    return pieces, unread


def _is_main(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.If) and "__name__ == '__main__'" in ast.unparse(statement.test)


def _as_main(statement: ast.stmt) -> list[ast.stmt]:
    """The statements inside the ``__main__`` block; any other statement itself."""
    return statement.body if isinstance(statement, ast.If) and _is_main(statement) else [statement]


def _made_by_loops(pieces: list[_Piece]) -> dict[str, str]:
    """Sentences on the names whose last values a loop makes."""
    made = dict[str, str]()
    for piece in pieces:
        for bound in piece.binds | piece.changes:
            made.pop(bound, None)
            if not piece.is_run:
                made[bound] = f"{bound} is made in {piece.place} by a loop, which is not run"
    return made


def _not_run(pieces: list[_Piece], name: str, where: str, said: str) -> str:
    """The reason why a notebook lacks a name, and a cell to add, which is run unchanged."""
    made_by = [piece.statement for piece in pieces if name in piece.binds | piece.changes]
    body = "\n".join(map(ast.unparse, made_by)).splitlines()
    lines = [f"def make_{name}():", *(f"    {line}" for line in (*body, f"return {name}"))]
    return f"{said}{lines_to_paste(f'a further cell of {where}', lines, f'{where}:make_{name}')}"


def _of_script(path: Path, name: str) -> Part | None:
    """The part of a file that a name needs, if importing the file trains a model; else None."""
    pieces = [] if path.is_dir() else _pieces_of(path)
    if not any("backward" in _attributes(piece.statement) for piece in pieces):
        return None
    wanted = _needed(pieces, {name})
    left = [piece for piece in pieces if piece not in wanted and not piece.only_defines]
    run = [one for piece in left for one in (piece, *_needed(pieces, _used(piece.statement)))]
    if not any("backward" in _attributes(piece.statement) for piece in run):
        return None
    return _of_file(path, name, f"{shown_path(path)} trains when it is imported", "that")


def _with_main(module: ModuleType, path: Path, name: str) -> Part:
    """A module with the values that a name needs and only its run as the main file gives."""
    every = _pieces_of(path)
    others = [piece for piece in every if not _is_main(piece.statement)]
    mains = (piece for piece in every if piece not in others)
    pieces = [_Piece(one, piece.file) for piece in mains for one in _as_main(piece.statement)]
    used = {word for piece in _needed(others, {name}) for word in _used(piece.statement)}
    missing = {word for piece in pieces for word in piece.binds} & used - vars(module).keys()
    wanted = [piece for piece in _needed(pieces, missing) if piece.is_run] if missing else []
    _run(_Running(module), wanted, watched=True)
    made = sorted(missing & vars(module).keys())
    said = f"set as {shown_path(path)} sets them where it is the main file: {few(made)}"
    return Part(module, (said,) if made else ())


def _attributes(statement: ast.stmt) -> set[str]:
    return {node.attr for node in ast.walk(statement) if isinstance(node, ast.Attribute)}


def _pieces_of(path: Path) -> list[_Piece]:
    """The statements of a file, none of an unreadable file."""
    try:
        statements = ast.parse(path.read_text(encoding="utf-8")).body
    except (OSError, ValueError, SyntaxError):
        return []
    return [_Piece(statement, str(path)) for statement in statements]


def _of_file(path: Path, name: str, why: str, what: str = "what failed") -> Part | None:
    """The part that a name needs of a file that does not import whole; None if the part fails."""
    wanted = _needed(_pieces_of(path), {name})
    if not wanted:
        return None
    put_on_path(Path.cwd())
    root, parts = package_of(path)
    put_on_path(root)
    run = _Running(_new_module(path, name))
    run.module.__package__ = ".".join(parts[:-1])
    for count in range(1, len(parts)):
        _stand_in(".".join(parts[:count]), root.joinpath(*parts[:count]))
    _run(run, wanted)
    if name in run.failed or name not in vars(run.module):
        return None
    every = dict.fromkeys(run.failed.values())
    others = [said for said in every if said.partition(": ")[2] not in why]
    others += _with_main(run.module, path, name).notes
    return Part(run.module, (f"{why}; {name} is judged without {what}", *others))


def _judged_alone(path: Path, why: str) -> str:
    """Lines with commands that check the file's definitions without its failing statements.

    What looks like an attention comes first; a rest is named, and not tried.
    """
    statements = [piece.statement for piece in _pieces_of(path)]
    definitions = [one for one in statements if isinstance(one, _DEFINITIONS)]
    definitions.sort(key=_rank)
    public = [one.name for one in definitions if not one.name.startswith("_")]
    tried = (name for name in public if _of_file(path, name, why) is not None)
    alone = list(itertools.islice(tried, _MOST_TRIED))
    where = shown_path(path)
    lines = (f"{BELOW}without what fails: conformance check {where}:{name}" for name in alone)
    rest = public[public.index(alone[-1]) + 1 :] if len(alone) == _MOST_TRIED else []
    return "".join(lines) + and_more(rest)


def _rank(definition: _Definition) -> tuple[int, bool, bool]:
    """The smaller, the likelier a definition that is not run is an attention."""
    is_class = isinstance(definition, ast.ClassDef)
    methods = {one.name: one for one in definition.body if isinstance(one, _FUNCTIONS)}
    called = next((methods[one] for one in METHODS if one in methods), None)
    takes = definition.args if isinstance(definition, _FUNCTIONS) else called and called.args
    parameters = [one.arg for one in ast.walk(takes) if isinstance(one, ast.arg)] if takes else []
    used = [getattr(one, "attr", getattr(one, "id", "")) for one in ast.walk(definition)]
    signs = attention_signs(definition.name, parameters, used, is_class=is_class)
    return -signs, not is_class, called is None


def _stand_in(package: str, folder: Path) -> None:
    """Put an empty package in place of a package whose import fails, for its modules."""
    try:
        guarded(package, lambda: importlib.import_module(package))
    except UsageError:
        module = ModuleType(package)
        module.__path__ = [str(folder)]
        sys.modules[package] = module


def _part_name(path: Path, name: str | None) -> str:
    digest = hashlib.sha256(os.fsencode(path) + repr(name).encode()).hexdigest()[:8]
    return f"_conformance_part_{digest}"


def _new_module(path: Path, name: str | None) -> ModuleType:
    module = ModuleType(_part_name(path, name))
    module.__file__ = str(path)
    sys.modules[module.__name__] = module
    return module


def _not_there(pieces: list[_Piece], name: str, where: str, unread: dict[str, str]) -> str:
    for sentence, text in unread.items():
        if re.search(rf"\b(?:class|def)\s+{re.escape(name)}\b", text):
            return f"{name} cannot be defined: {sentence}"
    known = sorted({bound for piece in pieces for bound in piece.binds})
    said = "".join(f"; {sentence}" for sentence in unread)
    return f"{where} has no attribute {name!r}{closest(name, known)}{said}"


def _declaring(pieces: list[_Piece]) -> list[_Piece]:
    """The definitions, imports, blocks and plain values, and the pieces that declare candidates."""
    ours = {
        bound
        for piece in pieces
        if isinstance(piece.statement, _IMPORTS) and "conformance" in ast.unparse(piece.statement)
        for bound in piece.binds
    }
    declared = {name for piece in pieces if _used(piece.statement) & ours for name in piece.binds}
    needed = _needed(pieces, declared | {"__conformance__"})
    kinds = (*_IMPORTS, *_DEFINITIONS, ast.If, ast.Try)
    return [
        piece
        for piece in pieces
        if isinstance(piece.statement, kinds) or piece.is_plain or piece in needed
    ]


def _needed(pieces: list[_Piece], names: set[str]) -> list[_Piece]:
    """The pieces that bind or change names, and the pieces used by these pieces, in order.

    Empty if nothing binds the names and no piece has unknown bindings. A library's settings (a
    seed, a type of numbers) are changed if the library is used and plain values alone make the
    change.
    """
    imported = {name for one in pieces if isinstance(one.statement, _IMPORTS) for name in one.binds}
    plain = {name for piece in pieces if piece.is_plain for name in piece.binds}
    itself = _names_of_itself(pieces)
    wanted, chosen, grows = set(names), set[int](), True
    while grows:
        grows = False
        for number, piece in enumerate(pieces):
            if number in chosen:
                continue
            used = _used(piece.statement) | _attributes_of(piece.statement, itself)
            sets = piece.changes & imported & wanted and used <= plain | wanted
            if piece.is_open or (piece.binds | piece.changes - imported) & wanted or sets:
                chosen.add(number)
                wanted |= used
                grows = True
    found = [pieces[number] for number in sorted(chosen)]
    known = any(piece.is_open or piece.binds & names for piece in found)
    return found if known else []


def _names_of_itself(pieces: list[_Piece]) -> set[str]:
    """The names that a module gives itself: ``d2l = sys.modules[__name__]``."""
    return {
        name
        for piece in pieces
        if isinstance(piece.statement, ast.Assign)
        and ast.unparse(piece.statement.value) == "sys.modules[__name__]"
        for name in piece.binds
    }


def _attributes_of(statement: ast.AST, names: set[str]) -> set[str]:
    return {
        node.attr
        for node in ast.walk(statement)
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id in names
    }


def _run(run: _Running, pieces: list[_Piece], *, watched: bool = False) -> None:
    """Run the pieces and keep their failures; names of failed imports raise when used.

    ``watched`` pieces run without effects. Raises DeclarationError: a contradictory declaration is
    not left out.
    """
    for piece in pieces:
        defines = isinstance(piece.statement, (*_IMPORTS, *_DEFINITIONS))
        for statement in _each(piece.statement):
            with without_effects() if watched and not defines else nullcontext():
                _run_one(run, statement, piece.file, piece.changes)


def _run_one(run: _Running, statement: ast.stmt, file: str, changes: set[str]) -> None:
    flags = __future__.annotations.compiler_flag  # whose names may be missing
    changed = {name for name in changes if not isinstance(vars(run.module).get(name), ModuleType)}
    names = sorted(_bound(statement) | changed)
    names = names or [ast.unparse(statement).partition("\n")[0]]
    said = "imported" if isinstance(statement, _IMPORTS) else "defined"
    try:
        code = compile(ast.Module([statement], []), file, "exec", flags, dont_inherit=True)
        guarded(
            f"{few(names)} cannot be {said}",
            lambda: exec(code, vars(run.module)),  # noqa: S102 (as an import of the file would)
        )
    except UsageError as error:
        if isinstance(error.__context__, DeclarationError):
            raise
        cause = error.__context__
        lacks = cause.name if isinstance(cause, NameError) else None
        for name in names:
            run.failed.setdefault(name, run.failed.get(lacks or "", str(error)))
            if isinstance(error.__context__, EffectError):
                run.refused.add(name)
            if isinstance(statement, _IMPORTS):
                vars(run.module).setdefault(name, _Missing(str(error)))
    else:
        for name in names:
            run.failed.pop(name, None)


def _each(statement: ast.stmt) -> Iterator[ast.stmt]:
    """An import statement as a statement a name: a missing name then takes no other away."""
    if not isinstance(statement, _IMPORTS):
        yield statement
        return
    for alias in statement.names:
        if isinstance(statement, ast.Import):
            one: ast.stmt = ast.Import(names=[alias])
        else:
            one = ast.ImportFrom(module=statement.module, names=[alias], level=statement.level)
        yield ast.copy_location(one, statement)


class _Missing:
    """Stands for a name whose import failed, and raises the reason when it is used."""

    def __init__(self, why: str) -> None:
        self.__dict__["why"] = why

    def _raise(self, *_arguments: Any, **_keywords: Any) -> Never:
        raise ImportError(self.__dict__["why"])

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self._raise()

    __call__ = __bool__ = __mro_entries__ = __iter__ = __getitem__ = _raise


def _outside(statement: ast.AST) -> Iterator[ast.AST]:
    """The nodes of a statement that lie in no scope of their own."""
    yield statement
    if not isinstance(statement, _SCOPES):
        for child in ast.iter_child_nodes(statement):
            yield from _outside(child)


def _aliases(node: ast.AST) -> list[ast.alias]:
    return node.names if isinstance(node, _IMPORTS) else []


def _bound(statement: ast.AST) -> set[str]:
    """The module's names that a statement binds or changes."""
    names = set()
    for node in _outside(statement):
        if isinstance(node, _DEFINITIONS):  # a decorator may change its arguments
            calls = [one for one in node.decorator_list if isinstance(one, ast.Call)]
            given = [value for one in calls for value in one.args if isinstance(value, ast.Name)]
            names |= {node.name, *(value.id for value in given)}
        names |= {(alias.asname or alias.name).partition(".")[0] for alias in _aliases(node)}
        if isinstance(getattr(node, "ctx", None), (ast.Store, ast.Del)):
            names |= _root(node)
    return names - {"*"}


def _root(node: ast.AST) -> set[str]:
    """The name with which an expression such as ``sizes.heads[0]`` begins, if any."""
    while isinstance(node, (ast.Attribute, ast.Subscript, ast.Starred)):
        node = node.value
    return {node.id} if isinstance(node, ast.Name) else set()


def _used(statement: ast.AST) -> set[str]:
    """The module's names that a statement reads, at once or when its definition is called."""
    return _globals(symtable.symtable(ast.unparse(statement), "", "exec"))


def _globals(scope: symtable.SymbolTable) -> set[str]:
    # A class may read what it then binds itself: ``size = size``.
    is_local = scope.get_type() == "function"
    read = {
        symbol.get_name()
        for symbol in scope.get_symbols()
        if symbol.is_referenced() and (symbol.is_global() or not is_local)
    }
    return read.union(*map(_globals, scope.get_children()))


def _lines(text: str) -> tuple[int, None, list[str], str]:
    """The entry of linecache for a text that lies in no file."""
    return len(text), None, [f"{line}\n" for line in text.split("\n")], ""
