"""A candidate: an implementation that claims to be attention, with its declaration."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from .._golden import golden
from ..base.record import Reading, SiteEntry
from ..graphs.opened import OpenedGraph
from .declaration import WHOLE_MODEL, Declaration


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A declared candidate; calls go to the wrapped function.

    function
        For a core the kernel; for a layer the builder ``(geometry, weights) -> forward``; for a
        position encoding the function ``[B, L, E] -> [B, L, E]`` that adds the encoding to its
        input.
    fixed_weights
        A layer's own weights; None if the layer takes the weights of each problem. With
        ``weights_known=False`` its own weights are unknown: no golden answer exists.
    graph
        The ONNX graph behind the candidate, else None.
    first_name
        The declared name of a renamed candidate.
    declared_on
        The declared devices, where the declaration is narrowed to the judged device.
    eager
        The eager original of a compiled candidate.
    warnings
        Sentences for the record, such as unjudged contents of a file.
    site
        The place of an attention within a whole model.
    reading
        The harness' reading of an undeclared candidate.
    unjudged
        The unjudged part of the candidate, which leaves only failures certain; "" if none.
    isolated
        Whether ``function`` only sends calls to another process, where the candidate runs.
    """

    name: str
    declaration: Declaration
    function: Callable[..., Any]
    target: str = ""
    fixed_weights: golden.ProjectionWeights | None = None
    weights_known: bool = True
    graph: OpenedGraph | None = None
    declared_on: tuple[str, ...] = ()
    eager: Candidate | None = None
    warnings: tuple[str, ...] = ()
    reading: Reading | None = None
    unjudged: str = ""
    isolated: bool = False
    site: SiteEntry | None = None
    first_name: str = ""

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        """Call the wrapped function."""
        return self.function(*arguments, **keywords)

    @property
    def kind(self) -> str:
        """``core``, ``layer``, ``positions`` or ``model``."""
        return self.declaration.kind

    @property
    def shown_kind(self) -> str:
        """The kind for reports: ``graph`` for any ONNX graph."""
        return self.kind if self.graph is None else "graph"

    @property
    def of_model(self) -> bool:
        """Whether the candidate is a whole model, or an attention of a model."""
        return self.kind == WHOLE_MODEL or self.site is not None

    @property
    def arrays(self) -> str:
        """The array library of ``function``; torch where another process converts the arrays."""
        return "torch" if self.isolated else self.declaration.arrays

    @property
    def draws_weights(self) -> bool:
        """Whether a layer takes the weights of each problem."""
        return self.kind == "layer" and self.fixed_weights is None and self.weights_known

    @property
    def has_memory(self) -> bool:
        """Whether every query attends a key with a value that all items share."""
        own = self.fixed_weights is not None and self.fixed_weights.bias_k is not None
        return own or "bias_kv" in self.declaration.features

    @property
    def golden_known(self) -> bool:
        """Whether a golden answer exists: the weights and mixed-in positions are known."""
        return self.weights_known and self.declaration.positions_known

    def on(self, device: str) -> Candidate:
        """The candidate narrowed to one device, which decides the precision."""
        if self.declaration.devices == (device,):
            return self
        declared = self.declared_on or self.declaration.devices
        declaration = dataclasses.replace(self.declaration, devices=(device,))
        return dataclasses.replace(self, declaration=declaration, declared_on=declared)

    def located(self, target: str) -> Candidate:
        """A copy with the target of its origin."""
        return dataclasses.replace(self, target=target)


def like_nobody(*_arguments: object, **_keywords: object) -> Any:
    """Stand in for the function of a candidate that is never called."""
    raise NotImplementedError
