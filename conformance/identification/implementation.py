"""Find the implementation that a target names: a function, a module, a builder of layers."""

from __future__ import annotations

import inspect
import re
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import torch
from torch import nn

from ..adapters.construction import instance_of, lines_needed
from ..adapters.matrices import as_module
from ..adapters.projection_search import ModuleRequest
from ..base.files import user_path
from ..declare.candidate import Candidate
from ..errors import ConstructionError, UsageError
from ..graphs.protocol import GraphRefused
from ..models.candidates import describe_sites
from ..models.model_inputs import UnknownInputError
from ..models.recognition import is_model, may_be_model
from ..models.sites import Sites, find_sites
from ..models.torch_model import open_torch_model
from ..targets.declaring import how_to_make, loaded
from ..targets.loading import (
    attribute,
    guarded,
    import_dotted,
    put_on_path,
    target_of_module,
)
from ..targets.partial_import import import_for
from ..targets.resolving import checked_name, is_source, require_there
from ..targets.target_strings import (
    ENTRY_POINTS,
    is_graph,
    is_path,
    split_site,
    split_target,
)
from .signature import Parameters, read_parameters

# The function in a declaration that loads an object from a file.
LOAD: Final = "conformance.load"
_BUILDER: Final = ("geometry", "weights")


@dataclass(frozen=True, kw_only=True)
class Implementation:
    """One object to identify.

    form
        ``function``, ``module`` (a class or an instance), ``builder`` of layers, ``graph`` (the
        attentions of an ONNX file) or ``model`` (the attentions of a module).
    declared
        The candidate of a declared object: probing ignores its promises.
    imports, expression
        The import lines and an expression for the object.
    request
        The search request for a module, with earlier search results.
    """

    target: str
    name: str
    form: str
    value: Any
    imports: tuple[str, ...]
    expression: str
    declared: Candidate | None = None
    request: ModuleRequest | None = None

    @property
    def parameters(self) -> Parameters:
        """The parameters of the called object."""
        return read_parameters(self.value)


def implementation_at(target: str) -> Implementation:
    """The object that a target names; raises UsageError with one sentence."""
    if is_graph(target):
        path, sites = open_graph(target)
        return Implementation(
            target=target, name=path.stem, form="graph", value=sites, imports=(), expression=""
        )
    value, imports, expression = _located(target)
    name = "_".join(re.findall(r"\w+", expression.rpartition(".")[2]))
    return implementation_of(
        value, target=target, name=name, imports=imports, expression=expression
    )


def implementation_of(
    value: Any,
    *,
    target: str,
    name: str,
    imports: tuple[str, ...],
    expression: str,
    whole: bool = True,
) -> Implementation:
    """The implementation in an object, after calling a factory. Raises UsageError.

    ``whole``: a module may be a whole model.
    """
    value, expression = _only(value, target, expression)
    form, declared = _form(value, target), None
    if form == "factory":
        value = guarded(f"{target}() raised", value)
        value, expression = _only(value, target, f"{expression}()")
        form = _form(value, target)
        if form == "factory":
            msg = (
                f"{target}() returned a function that needs no parameters: there is nothing to "
                "attend to"
            )
            raise UsageError(msg)
    if isinstance(value, Candidate):
        declared, name = value, value.name
        form = "builder" if value.kind == "layer" else "function"
        value, expression = value.function, f"{expression}.function"
    if form == "function" and (of_matrices := as_module(value, expression)) is not None:
        form, (value, expression) = "module", of_matrices
    if form == "module":
        value, expression = _built(value, expression, target)
        where = split_target(target)[0]
        imports = (*imports, *lines_needed(expression, lambda one: loaded(where, one)))
        attentions = _attentions_of(value, target) if whole else None
        if attentions is not None:
            return Implementation(
                target=target,
                name=name,
                form="model",
                value=attentions,
                imports=imports,
                expression=expression,
            )
        # A module without matrices has no projections.
        form = "module" if any(map(_may_be_projection, value.parameters())) else "function"
    return Implementation(
        target=target,
        name=name,
        form=form,
        value=value,
        imports=imports,
        expression=expression,
        declared=declared,
    )


def _only(value: Any, target: str, expression: str) -> tuple[Any, str]:
    if not isinstance(value, (list, tuple)):
        return value, expression
    if len(value) != 1:
        msg = f"{target} holds {len(value)} objects: name one of them"
        raise UsageError(msg)
    return value[0], f"{expression}[0]"


def _built(value: Any, expression: str, target: str) -> tuple[torch.nn.Module, str]:
    """An instance in eval mode and its expression; UsageError if the class needs more arguments."""
    if isinstance(value, type):
        try:
            value, how = instance_of(value, None)
        except ConstructionError as error:
            raise UsageError(how_to_make(error, target)) from error
        expression += how[how.index("(") :]
    built: torch.nn.Module = value
    return built.eval(), expression


def _form(value: Any, target: str) -> str:
    is_class = isinstance(value, type) and issubclass(value, torch.nn.Module)
    if is_class or isinstance(value, torch.nn.Module):
        return "module"
    if isinstance(value, Candidate):
        return "declared"
    if not callable(value):
        msg = (
            f"{target} is {value!r:.60}, which is not callable: name a function, a "
            "torch.nn.Module, a candidate, or a function without arguments that makes one"
        )
        raise UsageError(msg)
    parameters = read_parameters(value)
    inputs = [
        entry for entry in parameters.entries if entry.required or entry.meaning in ("q", "k", "v")
    ]
    if not inputs and not parameters.open_ended:
        return "factory"
    return "builder" if tuple(parameters.names[:2]) == _BUILDER else "function"


def _located(target: str) -> tuple[Any, tuple[str, ...], str]:
    """The object, its import lines, and its expression."""
    where, name = split_target(target)
    if is_path(where):
        path = user_path(where)
        require_there(path, where)
        if not is_source(path) and not (path / "__init__.py").is_file():
            msg = f"{where} is not a Python file, a notebook or a package"
            raise UsageError(msg)
        module = import_for(path, name).module
    else:
        if name is None:
            for entry in entry_points(group=ENTRY_POINTS):
                if entry.name == where:
                    return _located(entry.value)
        put_on_path(Path.cwd())
        module = import_dotted(checked_name(where))
    if name is None:
        return _sole(module, where)
    value, written = guarded(
        f"{where}:{name} cannot be read", lambda: attribute(module, name, where)
    )
    if isinstance(value, ModuleType):
        return _sole(value, target)
    return value, _import_lines(module, name, where), written


def _import_lines(module: ModuleType, name: str, where: str) -> tuple[str, ...]:
    return (loaded(target_of_module(module, where), name.partition(".")[0]),)


def _sole(module: ModuleType, where: str) -> tuple[Any, tuple[str, ...], str]:
    own = {
        name: value
        for name, value in vars(module).items()
        if not name.startswith("_") and _is_own(value, module)
    }
    if len(own) == 1:
        name, value = next(iter(own.items()))
        return value, _import_lines(module, name, where), name
    listed = ", ".join(list(own)[:8])
    has = f" (it has {listed})" if own else ""
    msg = f"{where} is a module: name one object in it, as {where}:object{has}"
    raise UsageError(msg)


def _is_own(value: Any, module: ModuleType) -> bool:
    if isinstance(value, (Candidate, torch.nn.Module)):
        return True
    is_class = isinstance(value, type) and issubclass(value, torch.nn.Module)
    own = getattr(value, "__module__", None) == module.__name__
    return own and (is_class or inspect.isroutine(value))


def open_graph(target: str) -> tuple[Path, Sites]:
    """The file of a target such as ``model.onnx#2``, and all attentions in the file.

    Raises UsageError with one sentence for a missing file, a refused graph or a missing attention.
    """
    file, number = split_site(target)
    path = user_path(file)
    if not path.is_file():
        msg = f"there is no file {file}: check the path"
        raise UsageError(msg)
    try:
        sites = find_sites(path)
    except GraphRefused as error:
        msg = f"{file} {error}"
        raise UsageError(msg) from None
    if number is not None and number >= len(sites.sites):
        msg = f"{file} has no attention #{number}: it has {len(sites.sites)}"
        raise UsageError(msg)
    return path, sites


def _attentions_of(module: nn.Module, target: str) -> dict[str, Any] | None:
    """The record entries for the attentions of a whole model; None for any other module."""
    if not may_be_model(module):
        return None
    try:
        made = open_torch_model(module, target)
    except UnknownInputError:
        return None
    if made is None:
        return None
    uncut = [entry.as_json() for entry in made.uncut]
    return {"sites": list(made.model.described), "uncut": uncut, "model": True}


def read_attentions(sites: Sites | dict[str, Any], target: str, record: dict[str, Any]) -> str:
    """Write ``sites``, ``uncut`` and ``model`` into a record; return why ``sites`` is empty, or "".

    ``model`` says whether the graph is more than one attention.
    """
    if isinstance(sites, dict):
        record |= sites
        return "" if sites["sites"] else "no attention in this module can be judged alone"
    entries = describe_sites(sites)
    number = split_site(target)[1]
    record["sites"] = entries if number is None else [entries[number]]
    record["uncut"] = [entry.as_json() for entry in sites.uncut]
    record["model"] = is_model(sites.graph)
    if entries:
        return ""
    judged = "no attention in this graph can be judged alone"
    return judged if sites.uncut else "there is no attention in this graph"


def _may_be_projection(parameter: nn.Parameter) -> bool:
    """Whether a parameter is a matrix, or is not initialised yet."""
    return isinstance(parameter, nn.UninitializedParameter) or parameter.dim() > 1
