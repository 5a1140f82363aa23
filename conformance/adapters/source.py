"""The eager module that a graph was exported from, as the reference for the export."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor, nn

from ..declare.candidate import Candidate
from ..errors import DeclarationError, UsageError
from ..graphs.opened import GraphProjections
from ..graphs.process import Array, Feeds, Run
from ..graphs.protocol import GraphRefused
from ..graphs.reading import GraphReading
from .graph_forward import GraphForward, array_of, tensor_of
from .module import understand
from .projection_search import ModuleRequest
from .trial import with_plain_weights

_TAKES_A_TENSOR: Final = (
    inspect.Parameter.POSITIONAL_ONLY,
    inspect.Parameter.POSITIONAL_OR_KEYWORD,
    inspect.Parameter.KEYWORD_ONLY,
)
_ACCEPTED: Final = "a torch.nn.Module instance, or a function without arguments that returns one"


@dataclass(frozen=True, kw_only=True)
class ExportSource:
    """The object that ``--source`` names.

    module
        The eager module in eval mode, None for a declared candidate.
    candidate
        The declared candidate, None for a module.
    projections
        Weights and heads, None where the harness does not understand the module.
    note
        The reason why the harness does not understand the module.
    """

    shown: str
    module: nn.Module | None = None
    candidate: Candidate | None = None
    projections: GraphProjections | None = None
    note: str = ""

    def lacking(self, reading: GraphReading) -> tuple[list[str], list[str]]:
        """Parameters without an input of the graph: required names, and optional names."""
        if self.module is None:
            return [], []
        parameters = inspect.signature(self.module.forward).parameters
        names = [role.name for role in reading.inputs]
        named = all(name in parameters for name in names)
        left = [
            parameter
            for position, parameter in enumerate(parameters.values())
            if parameter.kind in _TAKES_A_TENSOR
            and (parameter.name not in names if named else position >= len(names))
        ]
        needed = [
            parameter.name for parameter in left if parameter.default is inspect.Parameter.empty
        ]
        offered = [parameter.name for parameter in left if parameter.default is None]
        return needed, offered

    def runner(self, reading: GraphReading, refusals: list[str]) -> Run:
        """A function that runs the module on the graph's inputs; raises GraphRefused on exceptions.

        ``refusals`` lists the exceptions until the module first answers.
        """
        run, answers = self._run(reading), 0

        def guarded(feeds: Feeds) -> Mapping[str, Array]:
            nonlocal answers
            try:
                answer = run(feeds)
            except Exception as error:
                msg = f"{type(error).__name__}: {error}"
                if not answers:
                    refusals.append(" ".join(msg.split()))
                raise GraphRefused(msg) from error
            answers += 1
            refusals.clear()
            return answer

        return guarded

    def forward(self, reading: GraphReading, num_heads: int | None) -> Callable[..., Any]:
        """The source as a forward of the harness, with the graph's inputs."""
        if self.candidate is not None:
            return _of_candidate(self.candidate)
        return GraphForward(self._run(reading), reading, num_heads)

    def exported(self, reading: GraphReading, num_heads: int | None) -> Callable[..., Any] | None:
        """The exported program, the step before the graph, as a forward of the harness."""
        if self.module is None:
            return None
        return GraphForward(self._run(reading, exported=True), reading, num_heads)

    def _run(self, reading: GraphReading, *, exported: bool = False) -> Run:
        module = self.module
        if module is None:
            msg = f"{self.shown} is no module"
            raise TypeError(msg)
        programs: dict[str, Callable[..., Any]] = {}

        def run(feeds: Feeds) -> dict[str, Array]:
            positional, keywords = arguments_of(module, feeds)
            callee: Callable[..., Any] = module
            if exported:
                shapes = str({name: array.shape for name, array in feeds.items()})
                if shapes not in programs:
                    programs[shapes] = torch.export.export(module, positional, keywords).module()
                callee = programs[shapes]
            with torch.no_grad():
                return _named(callee(*positional, **keywords), reading)

        return run


def source_of(value: Any, shown: str) -> ExportSource:
    """The source that an object describes; raises UsageError for other objects."""
    if isinstance(value, Candidate):
        return _candidate_source(value, shown)
    if isinstance(value, type) and issubclass(value, nn.Module):
        msg = (
            f"--source {shown} is a class, whose instances have other weights than the graph: name "
            f"{_ACCEPTED}"
        )
        raise UsageError(msg)
    if not isinstance(value, nn.Module):
        msg = f"--source {shown} is {value!r:.60}: name {_ACCEPTED}"
        raise UsageError(msg)
    module = value.eval()
    projections, note = _understood(module, shown)
    return ExportSource(shown=shown, module=module, projections=projections, note=note)


def _candidate_source(candidate: Candidate, shown: str) -> ExportSource:
    weights = candidate.fixed_weights
    if candidate.kind == "layer" and weights is None:
        own = (
            "takes the weights of each problem"
            if candidate.draws_weights
            else "does not tell the weights that it brings"
        )
        msg = (
            f"--source {shown} {own}, so it has none to compare: name {_ACCEPTED}, or a "
            "conformance.fixed_layer"
        )
        raise UsageError(msg)
    projections = None
    if weights is not None:
        sizes = candidate.declaration.pins.sizes
        projections = GraphProjections(
            weights=weights,
            num_heads=sizes["num_heads"][0],
            num_kv_heads=sizes["num_kv_heads"][0],
            how="source",
        )
    return ExportSource(shown=shown, candidate=candidate, projections=projections)


def _of_candidate(candidate: Candidate) -> Callable[..., Any]:
    if candidate.kind != "layer":
        return candidate.function
    built: Callable[..., Any] = candidate.function(None, candidate.fixed_weights)
    return built


def _understood(module: nn.Module, shown: str) -> tuple[GraphProjections | None, str]:
    request, module = ModuleRequest(shown=shown), with_plain_weights(module)
    try:
        _, finding, _ = understand(module, request)
        weights = finding.recipe.read(module, finding.sizes)
    except DeclarationError as error:
        return None, str(error)
    heads, kv_heads = finding.sizes.num_heads, finding.sizes.num_kv_heads
    return GraphProjections(
        weights=weights, num_heads=heads, num_kv_heads=kv_heads, how="source"
    ), ""


def arguments_of(module: nn.Module, feeds: Feeds) -> tuple[tuple[Tensor, ...], dict[str, Tensor]]:
    """A graph's inputs as the module's arguments: by name if all names agree, else in order."""
    dtype = next((entry.dtype for entry in module.parameters() if entry.is_floating_point()), None)
    tensors = {name: tensor_of(array) for name, array in feeds.items()}
    if dtype is not None:
        tensors = {
            name: tensor.to(dtype) if tensor.is_floating_point() else tensor
            for name, tensor in tensors.items()
        }
    parameters = inspect.signature(module.forward).parameters
    if all(name in parameters for name in tensors):
        return (), tensors
    return tuple(tensors.values()), {}


def _named(answer: Any, reading: GraphReading) -> dict[str, Array]:
    """A module's results under the names of the graph's outputs, in order."""
    flat = [entry for entry in _flattened(answer) if isinstance(entry, Tensor)]
    names = [role.name for role in reading.outputs]
    return {
        name: array_of(entry, str(entry.dtype).removeprefix("torch."))
        for name, entry in zip(names, flat, strict=False)
    }


def _flattened(answer: Any) -> list[Any]:
    if isinstance(answer, Mapping):
        answer = list(answer.values())
    if isinstance(answer, (tuple, list)):
        return [part for entry in answer for part in _flattened(entry)]
    return [answer]
