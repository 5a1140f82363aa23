"""Turns the target strings of the command line and of pytest into candidates.

For a target without a candidate the error says what to write or to run, in lines to paste.
"""

from __future__ import annotations

import inspect
import pkgutil
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

import torch

from .._golden import golden
from ..base.files import user_path
from ..base.parameter_names import signature_in_docstring
from ..base.printable_text import repr_of
from ..base.profile import NO_GRAPH_OPTIONS, GraphOptions
from ..declare.candidate import Candidate
from ..declare.decorators import Decorator, core, renamed
from ..errors import BELOW, TO_CHECK, UsageError
from ..graphs.process import limited
from .declaring import how_to_call, undeclared_in
from .loading import (
    attribute,
    closest,
    guarded,
    import_dotted,
    put_on_path,
    shown_path,
    target_of_module,
)
from .notebooks import is_notebook
from .partial_import import import_for, import_named, notes_of
from .target_strings import (
    ENTRY_POINTS,
    exists,
    is_graph,
    is_path,
    split_site,
    split_target,
)

if TYPE_CHECKING:
    from ..adapters.source import ExportSource


# Sentences on what is left out of a notebook, where nothing is left to check.
_MOST_NOTES: Final = 6
_NOT_CANDIDATES: Final = ("__main__", "conftest", "setup")
_ACCEPTED: Final = (
    "a declared candidate, a torch.nn.Module, a list of these, or a function without arguments "
    "that returns one"
)


@dataclass(frozen=True, kw_only=True)
class Undeclared:
    """A module, or a function with parameters, without a declaration.

    ``site`` is the number of the target's attention in a whole model. ``notes`` name the missing
    parts of the target's file.
    """

    value: Any
    target: str
    site: int | None = None
    notes: tuple[str, ...] = ()

    def located(self, target: str) -> Undeclared:
        """The object with its target."""
        return self if self.target == target else replace(self, target=target)


# What a target names: a candidate, or what has to be read first.
Resolved = Candidate | Undeclared


def find(target: str, graph_options: GraphOptions = NO_GRAPH_OPTIONS) -> list[Resolved]:
    """Every candidate that a target names, declared or not; layers are not yet built.

    ``graph_options`` are the user's for graphs; other targets take none.

    Raises UsageError with one sentence for a missing target, a failed import, an object that is no
    candidate or a contradictory declaration.
    """
    with limited(graph_options.seconds, graph_options.memory):
        result = list(_once(_find(target, graph_options)))
    if not result:
        raise UsageError(_refusal(target))
    return result


def promised_core(target: str, promises: Mapping[str, Any]) -> Candidate:
    """The target's function as a core with the caller's promises.

    Declarations in the function's file, and changes that it makes to decorators, have no effect.
    Raises UsageError.
    """
    decorate, name = promising(target, promises)
    value = object_of(target)
    function = value.function if isinstance(value, Candidate) else value
    if not callable(function):
        msg = (
            f"{target} is {repr_of(value)}, which is no function to promise anything for: write "
            "path/to/file.py:function"
        )
        raise UsageError(msg)
    made: Candidate = guarded(f"{name} cannot be declared", lambda: decorate(function))
    return made.located(target)


def promising(target: str, promises: Mapping[str, Any]) -> tuple[Decorator, str]:
    """The decorator that declares the target's function with promises, and the function's name."""
    keywords = {"name": split_target(target)[1], **promises}

    def made() -> Decorator:
        if "semantics" in keywords:
            keywords["semantics"] = golden.Semantics(**keywords["semantics"])
        return core(**keywords)

    decorate: Decorator = guarded("the promises cannot be made", made)
    return decorate, str(keywords["name"])


def _refusal(target: str) -> str:
    """What to do with a target without candidates: what it defines is not refused, but listed."""
    how = "decorate one with @conformance.core or @conformance.layer"
    below = _undeclared(target)
    if TO_CHECK in below:
        return f"{target} declares nothing: name what to check, or {how}{below}"
    if user_path(target).is_dir():
        return f"no file of the folder {target} declares a candidate: {how}{below}"
    nothing = "" if below else " and defines nothing that looks like an attention"
    if is_notebook(target):
        how = f"put the lines that attend into a function (other statements are not run); {how}"
    return f"{target} declares no candidate{nothing}: {how}, or list it in __conformance__{below}"


def _undeclared(target: str) -> str:
    """Advice on each definition of the target's first module that defines anything."""
    module = object_of(target)
    if not isinstance(module, ModuleType):
        files = user_path(target).glob("*.py")
        unread = next((str(file) for file in sorted(files) if not _mentions_us(file)), "")
        check = f"{TO_CHECK}{unread}: conformance check {unread}"
        return unread and f"; files that never mention conformance are not imported{check}"
    where, name = split_target(target)
    where = where if name is None else target_of_module(module, where)
    modules = [(module, where), *_submodules(module, where)]
    defined = next(filter(None, (undeclared_in(*entry) for entry in modules)), "")
    return defined or "".join(f"{BELOW}{note}" for note in notes_of(module)[:_MOST_NOTES])


def object_of(target: str) -> Any:
    """The target's object or module, None for a folder, a file or another kind of name.

    Raises UsageError with one sentence for a missing target or a failed import.
    """
    where, name = split_target(split_site(target)[0])
    if not is_path(where):
        if name is None and where in [entry.name for entry in entry_points(group=ENTRY_POINTS)]:
            return None
        put_on_path(Path.cwd())
        module = import_named(checked_name(where), name).module
    else:
        path = user_path(where)
        require_there(path, where)
        if not (path / "__init__.py").is_file() and not is_source(path):
            return None
        module = import_for(path, name).module
    if name is None:
        return module
    return guarded(f"{where}:{name} cannot be read", lambda: attribute(module, name, where))[0]


def load(target: str) -> Any:
    """The object that a target names, such as ``"model/attention.py:attend"``.

    A path is looked for beside the file that calls, then in the working folder. Raises UsageError.
    """
    where, _ = split_target(target)
    caller = sys._getframe(1).f_globals.get("__file__")  # noqa: SLF001 (as an import statement does)
    beside = None if caller is None else Path(caller).parent / where
    if is_path(where) and beside is not None and exists(beside):
        target = f"{beside}{target[len(where) :]}"
    value = object_of(target)
    if value is None:
        msg = f"{target} names no object: write path/to/file.py:object"
        raise UsageError(msg)
    return value


def unique_names(candidates: Iterable[Candidate]) -> list[Candidate]:
    """The candidates without repetitions, the second of a name called ``name-2`` and so on."""
    taken: set[str] = set()
    first: dict[tuple[int, ...], Candidate] = {}
    for candidate in candidates:
        first.setdefault((id(candidate.function), id(candidate.declaration)), candidate)
    result = []
    for candidate in first.values():
        name, number = candidate.name, 1
        while name in taken:
            number += 1
            name = f"{candidate.name}-{number}"
        taken.add(name)
        result.append(candidate if name == candidate.name else renamed(candidate, name))
    return result


def _once(entries: Iterable[tuple[Resolved, str]]) -> Iterator[Resolved]:
    """The objects without repetitions, located at the first of their names."""
    yielded: set[int] = set()
    for entry, place in entries:
        own = id(entry.value) if isinstance(entry, Undeclared) else id(entry)
        if own not in yielded:
            yielded.add(own)
            yield entry.located(place)


def _find(target: str, graph_options: GraphOptions) -> Iterable[tuple[Resolved, str]]:
    definition = graph_options.definition
    if is_graph(target):
        if definition is not None:
            msg = f"{target} is an ONNX graph, and --definition can be given for functions only"
            raise UsageError(msg)
        return _graphs(target, graph_options)
    if definition is not None:
        return [(promised_core(target, {"definition": definition}), target)]
    if graph_options.names():
        names = " and ".join(graph_options.names())
        msg = f"{target} is no ONNX graph, and {names} can be given for graphs only"
        raise UsageError(msg)
    whole, number = split_site(target)
    if number is not None:
        return _attention(whole, number)
    where, name = split_target(target)
    if is_path(where):
        return _from_path(user_path(where), where, name)
    if name is None:
        registered = {entry.name: entry for entry in entry_points(group=ENTRY_POINTS)}
        if where in registered:
            return _from_entry_point(registered[where])
    put_on_path(Path.cwd())
    part = import_named(checked_name(where), name)
    return _noted(candidates_in(part.module, where, name), part.notes)


def _attention(target: str, number: int) -> list[tuple[Resolved, str]]:
    value = object_of(target)
    if callable(value) and not _is_candidate(value):
        value = _called(value, target)
    if not is_module(value):
        msg = f"{target} is no whole model that has an attention #{number}"
        raise UsageError(msg)
    return [(Undeclared(value=value, target=target, site=number), target)]


def _graphs(target: str, graph_options: GraphOptions) -> list[tuple[Candidate, str]]:
    """The candidate of an ONNX file with a single attention, or a model and its attentions."""
    from ..models.candidates import model_candidates  # noqa: PLC0415 (onnx: only for graphs)
    from ..models.recognition import model_sites  # noqa: PLC0415 (the same)

    file, number = split_site(target)
    path = user_path(file)
    sites = model_sites(path)
    if sites is not None:
        made = model_candidates(path, sites, number, graph_options)
        if graph_options.source is not None:
            from ..models.torch_model import with_source  # noqa: PLC0415 (only with a source)

            made = with_source(made, _source_object(graph_options.source), graph_options.source)
        return [
            (candidate, target if index is None else f"{file}#{index}") for index, candidate in made
        ]
    if number:
        require_there(path, file)
        msg = f"{file} is one attention, #0: there is no #{number}"
        raise UsageError(msg)
    return [(_graph(path, graph_options), target)]


def _graph(path: Path, graph_options: GraphOptions) -> Candidate:
    """The candidate of an ONNX file with the user's options for it."""
    from ..adapters.graph import GraphRequest, graph_candidate  # noqa: PLC0415 (onnx: only for graphs)

    request = GraphRequest(
        declaration=_file(graph_options.declaration, "--declaration"),
        state_dict=_file(graph_options.state_dict, "--state-dict"),
        source=None if graph_options.source is None else _source(graph_options.source),
    )
    return graph_candidate(path, request)


def _file(name: str | None, option: str) -> Path | None:
    if name is None:
        return None
    path = user_path(name)
    if not path.is_file():
        msg = f"{option} {name}: there is no such file"
        raise UsageError(msg)
    return path


def _source(target: str) -> ExportSource:
    from ..adapters.source import source_of  # noqa: PLC0415

    return source_of(_source_object(target), target)


def _source_object(target: str) -> Any:
    """The object of ``--source``; a function without arguments is called once."""
    value = object_of(target)
    if value is None or isinstance(value, ModuleType):
        msg = f"--source {target} names no object: write package.module:object"
        raise UsageError(msg)
    if callable(value) and not _is_candidate(value):
        value = _called(value, target)
    return value


def checked_name(name: str) -> str:
    """A dotted name unchanged; raises UsageError for a text that is no dotted name."""
    if all(part.isidentifier() for part in name.split(".")):
        return name
    msg = f"there is no file, module or registered candidate {name!r}"
    raise UsageError(msg)


def require_there(path: Path, where: str) -> None:
    """Require a file or a folder; raises UsageError with the nearest name there is."""
    if not exists(path):
        names = [entry.name for entry in path.parent.glob("*")] if exists(path.parent) else []
        names = [name for name in names if name != path.name]  # a link that leads nowhere
        msg = f"there is no file or folder {where}{closest(path.name, names)}"
        raise UsageError(msg)


def _from_path(path: Path, where: str, name: str | None) -> Iterable[tuple[Resolved, str]]:
    require_there(path, where)
    if path.is_dir() and not (path / "__init__.py").is_file():
        if name is not None:
            msg = f"{where} is a folder without an __init__.py and so has no object {name!r}"
            raise UsageError(msg)
        return _from_folder(path)
    if not path.is_dir() and not is_source(path):
        msg = f"{where} is not a Python file, a notebook, a folder or an ONNX graph"
        raise UsageError(msg)
    part = import_for(path, name)
    return _noted(candidates_in(part.module, where, name), part.notes)


def is_source(path: Path) -> bool:
    """Whether a path is that of a Python file or a notebook."""
    return path.is_file() and (path.suffix == ".py" or is_notebook(path))


def _noted(
    entries: Iterable[tuple[Resolved, str]], notes: tuple[str, ...]
) -> Iterator[tuple[Resolved, str]]:
    """The entries with notes on what of their file is missing."""
    for entry, target in entries:
        if not notes:
            yield entry, target
        elif isinstance(entry, Undeclared):
            yield replace(entry, notes=notes), target
        else:
            yield replace(entry, warnings=(*entry.warnings, *notes)), target


def _from_folder(folder: Path) -> Iterator[tuple[Resolved, str]]:
    """The candidates of a plain folder's files and packages.

    Hidden files, tests and files that never mention ``conformance`` are passed over: files beside
    the candidates may be scripts, which an import would run.
    """
    for path in sorted(folder.iterdir()):
        is_package = path.is_dir() and (path / "__init__.py").is_file()
        is_file = path.suffix == ".py" and path.is_file()
        files = path.rglob("*.py") if is_package else [path] if is_file else []
        if not _passed_over(path.stem) and any(map(_mentions_us, files)):
            yield from _declared_in(import_for(path, None).module, shown_path(path))


def _mentions_us(file: Path) -> bool:
    """Whether a file contains our name; an unreadable file counts, and its import refuses it."""
    try:
        return b"conformance" in file.read_bytes()
    except OSError:
        return True


def _passed_over(name: str) -> bool:
    return name in _NOT_CANDIDATES or name.startswith((".", "test_")) or name == "tests"


def _from_entry_point(entry: EntryPoint) -> Iterable[tuple[Resolved, str]]:
    loaded = guarded(f"the registered candidate {entry.name!r} cannot be loaded", entry.load)
    if isinstance(loaded, ModuleType):
        return _declared_in(loaded, entry.name)
    return candidates_of(loaded, entry.name)


def candidates_in(
    module: ModuleType, where: str, name: str | None
) -> Iterable[tuple[Resolved, str]]:
    """The candidates of a module, or of the module's attribute ``name``, each with its target."""
    if name is None:
        return _declared_in(module, where)
    result, _ = guarded(f"{where}:{name} cannot be read", lambda: attribute(module, name, where))
    if isinstance(result, ModuleType):
        return _declared_in(result, target_of_module(result, where))
    return candidates_of(result, f"{where}:{name}")


def _declared_in(module: ModuleType, where: str) -> Iterator[tuple[Resolved, str]]:
    """What ``__conformance__`` lists; without it every declared candidate, submodules included."""
    listed = vars(module).get("__conformance__")
    if listed is not None:
        yield from _listed(module, listed, where)
        return
    for name, value in list(vars(module).items()):
        entries = value if isinstance(value, (list, tuple)) else [value]
        if entries and all(isinstance(entry, Candidate) for entry in entries):
            yield from candidates_of(value, f"{where}:{name}")
    for submodule, place in _submodules(module, where):
        yield from _declared_in(submodule, place)


def _submodules(module: ModuleType, where: str) -> Iterator[tuple[ModuleType, str]]:
    for name in _submodule_names(module):
        if not _passed_over(name):
            yield import_dotted(f"{module.__name__}.{name}"), _below(where, name)


def _submodule_names(module: ModuleType) -> list[str]:
    return sorted(info.name for info in pkgutil.iter_modules(getattr(module, "__path__", [])))


def _below(where: str, name: str) -> str:
    """The target of a submodule, a path for a path and a dotted name for a dotted name."""
    if not is_path(where):
        return f"{where}.{name}"
    inside = Path(where) / name
    return str(inside) if inside.is_dir() else f"{inside}.py"


def _listed(module: ModuleType, listed: Any, where: str) -> Iterator[tuple[Resolved, str]]:
    if isinstance(listed, str) or not isinstance(listed, Iterable):
        msg = f"__conformance__ of {where} is {repr_of(listed)}: give a list of names or candidates"
        raise UsageError(msg)
    for entry in listed:
        if not isinstance(entry, str):
            yield from candidates_of(entry, where)
        elif entry in _submodule_names(module) and not _has(module, entry, where):
            submodule = import_dotted(f"{module.__name__}.{entry}")
            yield from _declared_in(submodule, _below(where, entry))
        else:
            yield from candidates_in(module, where, entry)


def _has(module: ModuleType, name: str, where: str) -> bool:
    read = guarded(f"{where}:{name} cannot be read", lambda: hasattr(module, name))
    return bool(read)


def candidates_of(value: Any, target: str) -> Iterator[tuple[Resolved, str]]:
    """The candidates that an object is or makes; raises UsageError for an object without any."""
    made = value if _is_candidate(value) else _called(value, target)
    if isinstance(made, type) and not is_module(made):
        raise UsageError(how_to_call(made, target))
    for entry in made if isinstance(made, (list, tuple)) else [made]:
        if isinstance(entry, Candidate):
            yield entry, target
        elif is_module(entry) or callable(entry):
            yield Undeclared(value=entry, target=target), target
        else:
            msg = f"{target} gives {repr_of(entry)}, which is not {_ACCEPTED}"
            raise UsageError(msg)


def _is_candidate(value: Any) -> bool:
    return isinstance(value, (Candidate, list, tuple)) or is_module(value)


def is_module(value: Any) -> bool:
    """Whether a value is a torch module, or a class of torch modules."""
    is_class = isinstance(value, type) and issubclass(value, torch.nn.Module)
    return is_class or isinstance(value, torch.nn.Module)


def _called(value: Any, target: str) -> Any:
    """The result of a function without arguments; a function with inputs itself."""
    if not callable(value):
        msg = f"{target} is {repr_of(value)}, which is not callable: name {_ACCEPTED}"
        raise UsageError(msg)
    try:
        signature = inspect.signature(value)
    except Exception:  # noqa: BLE001 (written in C, or it says no true one: calling it will tell)
        signature = signature_in_docstring(value) or inspect.Signature()
    try:
        signature.bind()
    except TypeError:
        return value  # a function with inputs is no builder
    return guarded(f"{target}() raised", value)
