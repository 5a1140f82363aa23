"""Imports the object of a target or an entry point; the user's own errors become one sentence."""

from __future__ import annotations

import builtins
import contextlib
import hashlib
import importlib
import importlib.util
import inspect
import os
import re
import sys
import sysconfig
import traceback
from collections.abc import Callable, Iterator
from difflib import get_close_matches
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import ModuleType
from typing import Any, Final, NoReturn

from ..base.printable_text import OWN_FRAMES, capped, message_of, name_of, printable
from ..errors import UsageError
from .notebooks import is_cell
from .target_strings import is_path

CLAUSES: Final = "attention_conformance.clauses"
MISTAKE_GROUP: Final = "attention_conformance.mistakes"


def registered(group: str) -> list[EntryPoint]:
    """The entry points of a group, in an order that does not depend on the path."""
    return sorted(entry_points(group=group), key=lambda entry: (home(entry), entry.name))


def home(entry: EntryPoint) -> str:
    """The distribution of an entry point, with its version."""
    if entry.dist is None:
        return "an unknown distribution"
    return f"{entry.dist.metadata['Name']} {entry.dist.version}"


def taking_in(entry: EntryPoint, what: str, take: Callable[[Any], Any]) -> Any:
    """Load an entry point, and return ``take`` of its object.

    ``what`` is the plural of the expected kind of object. Any exception of the entry point's code
    becomes a UsageError that names the entry point and its distribution.
    """
    try:
        return take(entry.load())
    except KeyboardInterrupt:
        raise
    except UsageError as error:
        raise UsageError(_refusal(entry, what, str(error))) from None
    except BaseException as error:  # noqa: BLE001 (any error of another's code is one sentence)
        raise UsageError(_refusal(entry, what, one_line(error))) from None


def _refusal(entry: EntryPoint, what: str, why: str) -> str:
    return (
        f"the {what} {entry.name!r} that {home(entry)} registers ({entry.value}) cannot be used: "
        f"{why}; mend or uninstall it"
    )


_LONGEST_MESSAGE: Final = 400
_LIBRARIES: Final = tuple(
    sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")
)


def guarded(what: str, action: Callable[[], Any]) -> Any:
    """Run an action in the user's code; an exception becomes a UsageError.

    SystemExit is the user's too (a script that parses arguments when imported), a real Ctrl-C is
    not. Replaced builtins are put back: see :func:`replaced_builtins`.
    """
    try:
        return _with_own_builtins(action)
    except KeyboardInterrupt:
        raise
    except UsageError as error:
        place = _place(error)
        msg = f"{place}: {capped(str(error))}" if place else capped(str(error))
        raise UsageError(msg) from None
    except BaseException as error:  # noqa: BLE001 (any error of the user's code is one sentence)
        msg = f"{what}: {one_line(error)}"
        raise UsageError(msg) from None


_REPLACED: Final[dict[str, Any]] = {}


def _with_own_builtins(action: Callable[[], Any]) -> Any:
    """Run an action, then restore every builtin that it replaced, without calling a builtin."""
    names = builtins.__dict__
    before = names.copy()
    try:
        return action()
    finally:
        for name, entry in before.items():
            if names.get(name) is not entry:
                _REPLACED[name] = names.get(name)
                names[name] = entry


def replaced_builtins() -> list[tuple[str, Any]]:
    """What users' modules have put in place of builtins since this was asked last."""
    replaced = [*_REPLACED.items()]
    _REPLACED.clear()
    return replaced


def named(name: str) -> Callable[..., Any]:
    """A function of the harness by its dotted name, ``conformance.module:function``."""
    module, _, attribute = name.partition(":")
    function: Callable[..., Any] = getattr(importlib.import_module(module), attribute)
    return function


def one_line(error: BaseException) -> str:
    """``NameError: name 'x' is not defined (attn.py:3)``: an error with its place."""
    text = " ".join(message_of(error).split())
    if isinstance(error, SyntaxError) and error.msg:
        text = error.msg
    if len(text) > _LONGEST_MESSAGE:
        text = f"{text[:_LONGEST_MESSAGE]}…"
    place = _place(error)
    missing = error.name if isinstance(error, ModuleNotFoundError) else None
    package = (missing or "").partition(".")[0]
    holder, _, part = (missing or "").rpartition(".")
    hint = ""
    if holder in sys.modules:  # such as the other files of a folder, or an older version
        hint = f"; {holder} is there without {part}: put that file beside it, or another version"
    elif package:
        how = f"often pip install {package}, with --no-deps if it asks for older packages"
        hint = f"; install what has it ({how})"
    return printable(
        f"{name_of(error)}{f': {text}' if text else ''}{f' ({place})' if place else ''}{hint}"
    )


def _place(error: BaseException) -> str:
    """``file:line`` of the innermost frame in the user's code, or "" without a frame."""
    if isinstance(error, SyntaxError) and error.filename:
        return place_text(error.filename, error.lineno)
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith(OWN_FRAMES)
    ]
    own = [frame for frame in frames if not frame.filename.startswith(_LIBRARIES)]
    chosen = (own or frames)[-1:]
    return place_text(chosen[0].filename, chosen[0].lineno) if chosen else ""


def place_text(file: str, line: int | None) -> str:
    """``attention.py:3``, and ``study.ipynb, cell 2, line 3`` of a notebook."""
    in_cell = is_cell(file)
    return f"{shown_path(file)}, line {line}" if in_cell else f"{shown_path(file)}:{line}"


def shown_path(path: str | Path) -> str:
    """A path relative to the working folder, if the path lies below the folder."""
    try:
        return str(Path(path).resolve().relative_to(Path.cwd()))
    except (ValueError, OSError):
        return str(path)


def target_of_module(module: ModuleType, where: str) -> str:
    """The target of a module that is an attribute of another: a path if ``where`` is a path."""
    if not is_path(where) or module.__file__ is None:
        return module.__name__
    return shown_path(module.__file__)


def closest(word: str, words: list[str]) -> str:
    """``; did you mean 'x'?`` when a known word is close, else nothing."""
    near = get_close_matches(word, words, n=1, cutoff=0.6)
    return f"; did you mean {near[0]!r}?" if near else ""


def put_on_path(folder: Path) -> None:
    """Let imports search a folder before all other folders."""
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))


@contextlib.contextmanager
def _surroundings_kept() -> Iterator[None]:
    """Restore what later imports and messages need, whatever an imported module does.

    Restored are removed entries of ``sys.path`` and ``sys.meta_path``, and a removed working
    folder.
    """
    folder, path, finders = Path.cwd(), list(sys.path), list(sys.meta_path)
    try:
        yield
    finally:
        sys.path.extend(one for one in path if one not in sys.path)
        sys.meta_path.extend(one for one in finders if one not in sys.meta_path)
        try:
            Path.cwd()
        except OSError:  # it was removed
            os.chdir(folder)


def import_dotted(name: str) -> ModuleType:
    """Import ``package.module``; raises UsageError when it is missing or its own code fails."""
    importlib.invalidate_caches()
    try:
        with _surroundings_kept():
            return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            _raise_own(f"{name} cannot be imported", error)
        msg = f"there is no module {error.name!r}{_near_module(error.name)}"
        raise UsageError(msg) from None
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001 (any error of the user's code is one sentence)
        _raise_own(f"{name} cannot be imported", error)


def _raise_own(what: str, error: BaseException) -> NoReturn:
    def again() -> None:
        raise error

    guarded(what, again)
    raise error  # not reached: guarded raises


def _near_module(name: str) -> str:
    """A suggestion from the modules in the same folder."""
    parent, _, last = name.rpartition(".")
    folders = getattr(sys.modules.get(parent), "__path__", ()) if parent else [Path.cwd()]
    names = {path.stem for folder in folders for path in Path(folder).glob("*.py")}
    names |= {path.parent.name for folder in folders for path in Path(folder).glob("*/__init__.py")}
    return closest(last, sorted(names)) or " (looked in the working folder and on Python's path)"


def import_path(path: Path) -> ModuleType:
    """Import a file or a package folder by its name in its package, if it lies in a package.

    The package's root goes on the path, before the working folder; of a file outside any package
    the file's own folder. Raises UsageError when the file is missing or its own code fails.
    """
    path = path.resolve()
    put_on_path(Path.cwd())
    root, parts = package_of(path)
    put_on_path(root)
    if path.is_file() and len(parts) == 1 and path.name != "__init__.py":
        return _import_lone_file(path)
    if not all(part.isidentifier() for part in parts):
        msg = f"{shown_path(path)} has no importable name: {'.'.join(parts)!r} is not a dotted name"
        raise UsageError(msg)
    return _same_file(import_dotted(".".join(parts)), path)


def package_of(path: Path) -> tuple[Path, list[str]]:
    """The folder from which a file or a package is imported, and the parts of its dotted name.

    A file without an ``__init__.py`` beside it lies in as many packages as its imports climb.
    """
    root, parts = path.parent, [path.stem if path.is_file() else path.name]
    while (root / "__init__.py").is_file():
        parts.insert(0, root.name)
        root = root.parent
    if path.is_file() and len(parts) == 1:
        folders = [folder.name for folder in path.parents[: _climbed(path)]]
        if all(name.isidentifier() for name in (*folders, path.stem)):
            root = path.parents[len(folders)]
            parts = [*reversed(folders), path.stem]
    if parts[-1] == "__init__":
        parts.pop()
    return root, parts


# Folders above a file that may hold what it imports.
_HIGHEST: Final = 5


def _climbed(path: Path) -> int:
    """The largest number of folders that a file's imports climb, its own included.

    Relative imports climb by their dots, others to the folder with a name that is nowhere else.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, ValueError):
        return 0
    climbed = list(map(len, re.findall(r"^[ \t]*from[ \t]+(\.+)", text, re.MULTILINE)))
    names = set(re.findall(r"^[ \t]*(?:from|import)[ \t]+(\w+)", text, re.MULTILINE))
    for name in names - sys.modules.keys():
        if importlib.util.find_spec(name) is None:
            above = enumerate(path.parents[:_HIGHEST])
            climbed += [height for height, folder in above if _holds(folder, name)][:1]
    return min(max(climbed, default=0), len(path.parents) - 1)


def _holds(folder: Path, name: str) -> bool:
    return (folder / f"{name}.py").is_file() or any((folder / name).glob("*.py"))


def _same_file(module: ModuleType, path: Path) -> ModuleType:
    """Require that the import found this file, not another package of equal name."""
    wanted = path / "__init__.py" if path.is_dir() else path
    if module.__file__ is None or Path(module.__file__).resolve() != wanted:
        msg = (
            f"{shown_path(wanted)} cannot be imported as {module.__name__}: that name is taken by "
            f"{module.__file__}; check the two in separate runs"
        )
        raise UsageError(msg)
    return module


def _import_lone_file(path: Path) -> ModuleType:
    """Import a file outside any package, under its own name if the name is free."""
    taken = sys.modules.get(path.stem)
    if taken is not None and getattr(taken, "__file__", None) == str(path):
        return taken
    name = path.stem
    if taken is not None or name in sys.stdlib_module_names or not name.isidentifier():
        digest = hashlib.sha256(os.fsencode(path)).hexdigest()[:8]
        name = f"_conformance_target_{digest}"
        if name in sys.modules:
            return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        msg = f"{shown_path(path)} is not a Python file"
        raise UsageError(msg)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        guarded(f"{shown_path(path)} cannot be imported", lambda: _execute(spec.loader, module))
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _execute(loader: Any, module: ModuleType) -> None:
    try:
        with _surroundings_kept():
            loader.exec_module(module)
    except ImportError as error:
        if not str(error).startswith("attempted relative import"):
            raise
        msg = (
            f"{shown_path(str(module.__file__))} cannot be imported: {one_line(error)}; add an "
            "__init__.py to its folder, or name it as package.module"
        )
        raise UsageError(msg) from None


def attribute(holder: Any, dotted: str, where: str) -> tuple[Any, str]:
    """``holder.a.b``, and its expression in Python without the holder.

    A function on the way that lacks the attribute is called without arguments, as a builder:
    ``build.layers.0`` is written ``build().layers[0]``. A class of torch modules is constructed.
    Raises UsageError that suggests a near name if an attribute is missing.
    """
    written, shown = "", where
    for name in dotted.split("."):
        if not name.isidentifier() and not name.isdigit():  # a list of modules has numbers
            msg = f"{where}:{dotted} is not a target: {name!r} is not a Python name"
            raise UsageError(msg)
        if inspect.isfunction(holder) and not hasattr(holder, name):
            holder, written = holder(), f"{written}()"
        if isinstance(holder, type) and not hasattr(holder, name) and hasattr(holder, "forward"):
            from ..adapters.construction import instance_of  # noqa: PLC0415 (torch)

            holder, how = instance_of(holder, None)
            written += how[how.index("(") :]
        if name.isidentifier():
            written += f".{name}" if written else name
        else:
            listed = hasattr(holder, "append")  # torch's lists of modules, not its dictionaries
            written = f"{written}[{name}]" if listed else f"getattr({written}, {name!r})"
        try:
            holder = getattr(holder, name)
        except AttributeError:
            names = [word for word in dir(holder) if not word.startswith("__")]
            msg = f"{shown} has no attribute {name!r}{closest(name, names)}"
            raise UsageError(msg) from None
        shown += f"{':' if shown == where else '.'}{name}"
    return holder, written
