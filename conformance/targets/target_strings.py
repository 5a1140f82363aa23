"""The parts of a target string, and whether the code that the string names is the user's own.

Nothing is imported or called here: a report may come from anywhere, and a replay runs its targets.
"""

from __future__ import annotations

import ast
import importlib.util
import json
import os
import re
import sys
import sysconfig
from importlib.metadata import entry_points
from pathlib import Path
from typing import Final

from ..base.files import user_path
from ..errors import UsageError
from .notebooks import is_notebook, source_of_file

ENTRY_POINTS: Final = "attention_conformance.candidates"
_INSTALLED: Final = tuple(
    Path(sysconfig.get_path(name)).resolve()
    for name in ("stdlib", "platstdlib", "purelib", "platlib")
)
# A candidate may be imported from file to file, through so many of them.
_MOST_IMPORTS: Final = 8
_DEFINITIONS: Final = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


_SITE: Final = re.compile(r"#(\d{1,9})$")


def is_graph(target: str) -> bool:
    """Whether a target is an ONNX file, or an attention of the file: ``model.onnx#2``."""
    return split_site(target)[0].lower().endswith(".onnx")


def split_site(target: str) -> tuple[str, int | None]:
    """A target without ``#N``, and the number of the attention; None for the whole."""
    match = _SITE.search(target)
    whole = target if match is None else target[: match.start()]
    if match is None or not (whole.lower().endswith(".onnx") or ":" in whole):
        return target, None
    return whole, int(match.group(1))


def path_of(target: str) -> Path | None:
    """The existing file or folder that contains a target; None for a target that is no path."""
    whole = split_site(target)[0]
    for name in (whole.rpartition(":")[0] or whole, whole):
        path = user_path(name)
        if exists(path):
            return path
    return None


def seen_from(path: str, folder: Path) -> str:
    """A path relative to a folder, with slashes, for a file written into the folder."""
    return Path(os.path.relpath(user_path(path).resolve(), folder.resolve())).as_posix()


def split_target(target: str) -> tuple[str, str | None]:
    """The parts of ``where:object``; a drive letter is no separator.

    Raises UsageError if a part is empty.
    """
    where, colon, name = target.rpartition(":")
    if not colon or (len(where) == 1 and name[:1] in ("/", "\\")):
        where, name = target, ""
    if not where.strip() or (colon and not name and where != target):
        msg = f"{target!r} is not a target: write package.module:object or path/to/file.py:object"
        raise UsageError(msg)
    return where, name or None


def is_path(where: str) -> bool:
    """Whether the first part of a target is the path of a file or folder."""
    written = "/" in where or "\\" in where or where.endswith(".py") or is_notebook(where)
    return written or exists(Path(where))


def exists(path: Path) -> bool:
    """Whether a file or folder exists; false for a name that is too long, or holds a NUL."""
    try:
        return path.exists()
    except (OSError, ValueError):
        return False


def why_foreign(target: str) -> str:
    """The reason why a target, perhaps written by a stranger, is not run without consent, or "".

    The user's own are graphs, which are data, registered candidates, and declarations of Python
    files below the working folder: names defined in a file that mentions conformance, and classes
    in a file that mentions torch alone. Installed packages are not the user's. A missing path runs
    nothing.
    """
    if is_graph(target):
        return ""
    where, name = split_target(split_site(target)[0])
    if not is_path(where):
        if name is None and where in {entry.name for entry in entry_points(group=ENTRY_POINTS)}:
            return ""
        return _why_not_own(_file_of_module(where, Path.cwd()), name)
    path = user_path(where)
    return _why_not_own(_file_of(path), name) if exists(path) else ""


def _why_not_own(file: Path | None, name: str | None, imports: int = _MOST_IMPORTS) -> str:
    if file is None or not _is_below(file, Path.cwd()):
        return "is no Python file below the working folder"
    return _why_undeclared(file, name, imports)


def _file_of(path: Path) -> Path | None:
    """The Python file at a path, of a package its ``__init__.py``."""
    path = path / "__init__.py" if path.is_dir() else path
    return path.resolve() if path.is_file() else None


def _file_of_module(dotted: str, folder: Path) -> Path | None:
    """The file of a module as code in a folder imports it, found without importing anything."""
    top, *rest = dotted.split(".")
    if not dotted.isascii() or not all(part.isidentifier() for part in (top, *rest)):
        return None
    try:
        spec = importlib.util.find_spec(top)
    except (ImportError, ValueError):  # a broken module, or a loaded one without a specification
        return None
    if spec is None and top not in sys.modules:
        roots = [folder / top, Path.cwd() / top]
    else:
        origin = None if spec is None else spec.origin
        packages = [] if spec is None else list(spec.submodule_search_locations or ())
        roots = [Path(folder) for folder in packages]
        if not roots and not rest and origin is not None:
            roots = [Path(origin)]
    for root in roots:
        inside = root.joinpath(*rest)
        if (file := _module_below(inside)) is not None:
            return file
    return None


def _module_below(path: Path) -> Path | None:
    """The file of the package or the module that a path without a suffix stands for."""
    return _file_of(path) or _file_of(path.with_name(f"{path.name}.py"))


def _is_below(file: Path, folder: Path) -> bool:
    """Whether a file lies below a folder and belongs to no installed package."""
    installed = any(file.is_relative_to(place) for place in _INSTALLED)
    return file.is_relative_to(folder.resolve()) and not installed


def _why_undeclared(file: Path, name: str | None, imports: int) -> str:
    """The reason why a file's name is no candidate declared in the file, or ""."""
    try:
        text = source_of_file(file)
        tree = ast.parse(text)
    except (OSError, ValueError, UsageError, SyntaxError, RecursionError, MemoryError):
        return "lies in a file that cannot be read as Python"
    declares = "conformance" in text
    if name is None:
        return "" if declares else "is a file that declares no candidate"
    first = name.partition(".")[0]
    for statement in ast.walk(tree):
        is_layer = isinstance(statement, ast.ClassDef) and "torch" in text
        if first in defined_names(statement) and (declares or is_layer):
            return ""
        if isinstance(statement, ast.ImportFrom) and _brings_own(statement, file, first, imports):
            return ""
    return "is no candidate that its file declares"


def defined_names(statement: ast.AST) -> set[str]:
    """The names that a statement defines itself, without imports."""
    if isinstance(statement, _DEFINITIONS):
        return {statement.name}
    if isinstance(statement, (ast.Assign, ast.AnnAssign)):
        targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
        names = [node for target in targets for node in ast.walk(target)]
        return {node.id for node in names if isinstance(node, ast.Name)}
    return set()


def _brings_own(statement: ast.ImportFrom, file: Path, name: str, imports: int) -> bool:
    """Whether an import brings a name that another file of the user's declares."""
    original = {alias.asname or alias.name: alias.name for alias in statement.names}
    wanted = original.get(name, name if "*" in original else "")
    if not wanted or not imports:
        return False
    if not statement.level:
        source = _file_of_module(statement.module or "", file.parent)
    else:
        folder = file.parents[statement.level - 1]
        source = _module_below(folder.joinpath(*(statement.module or "").split(".")))
    return not _why_not_own(source, wanted, imports - 1)


def names_defined_in(where: str) -> list[str]:
    """The names defined at the top of a file, a notebook or a module; none without a file."""
    try:
        file = _file_of(user_path(where)) if is_path(where) else _file_of_module(where, Path.cwd())
    except UsageError:  # a home that is nobody's
        return []
    if file is None:
        return []
    trees = (_parsed(text) for text in _source_texts(file))
    return [
        name
        for tree in trees
        for statement in (() if tree is None else tree.body)
        for name in sorted(defined_names(statement))
    ]


def _source_texts(file: Path) -> list[str]:
    """The text of a Python file, or those of the cells of a notebook."""
    try:
        text = file.read_text(encoding="utf-8")
        if file.suffix != ".ipynb":
            return [text]
        cells = json.loads(text)["cells"]
        return ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        return []


def _parsed(text: str) -> ast.Module | None:
    try:
        return ast.parse(text)
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        return None
