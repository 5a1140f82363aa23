"""A candidate: something that claims to be attention, with its declaration."""

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
    """A declared candidate. It still calls like the function it wraps.

    function
        For a core the kernel; for a layer the builder ``(geometry, weights) -> forward``; for a
        position encoding the function that adds it to its input.
    fixed_weights
        The weights a layer brings along; None when it takes those of each problem. With
        ``weights_known=False`` it brings weights that are unknown: no golden answer exists.
    graph
        The ONNX graph behind it, when there is one.
    first_name
        The name that it was declared under, for one that was renamed.
    declared_on
        The declared devices, where the declaration is narrowed to the one that is judged.
    eager
        What it was compiled from, for one that was.
    warnings
        Sentences for the record, such as what else a file holds that is not judged.
    site
        Where in a whole model it lies, for an attention of one.
    reading
        How it was read, for one that nobody declared.
    unjudged
        What of it could not be judged, so that nothing but a failure is certain; "" where all was.
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
        """The kind as a report says it: ``graph`` for any ONNX graph."""
        return self.kind if self.graph is None else "graph"

    @property
    def of_model(self) -> bool:
        """Whether it is a whole model, or an attention of one."""
        return self.kind == WHOLE_MODEL or self.site is not None

    @property
    def arrays(self) -> str:
        """Whose arrays ``function`` takes: torch's where another process converts them."""
        return "torch" if self.isolated else self.declaration.arrays

    @property
    def draws_weights(self) -> bool:
        """Whether a layer takes the weights of each problem."""
        return self.kind == "layer" and self.fixed_weights is None and self.weights_known

    @property
    def golden_known(self) -> bool:
        """Whether a golden answer exists: its weights, and the positions it mixes in, are known."""
        return self.weights_known and self.declaration.positions_known

    def on(self, device: str) -> Candidate:
        """The candidate as it is judged on one device: its precision follows from that."""
        if self.declaration.devices == (device,):
            return self
        declared = self.declared_on or self.declaration.devices
        declaration = dataclasses.replace(self.declaration, devices=(device,))
        return dataclasses.replace(self, declaration=declaration, declared_on=declared)

    def located(self, target: str) -> Candidate:
        """The candidate with the target that it comes from."""
        return dataclasses.replace(self, target=target)


def like_nobody(*_arguments: object, **_keywords: object) -> Any:
    """In the place of a candidate that is never called."""
    raise NotImplementedError
