"""Graphs of the device ``fake``: what was done is kept and done again, in the same tensors."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

Step = tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any], Any]


class CUDAGraph:
    """The steps of a capture."""

    def __init__(self) -> None:
        self.steps: list[Step] = []

    def replay(self) -> None:
        """Do every step again; results go to where they went before."""
        for function, positional, keywords, before in self.steps:
            after = function(*positional, **keywords)
            if isinstance(before, Tensor) and before.data_ptr() != after.data_ptr():
                before.copy_(after)


class Capture(TorchDispatchMode):
    """Keeps what is done while it is active."""

    def __init__(self, graph: CUDAGraph) -> None:
        super().__init__()
        self.graph = graph

    def __torch_dispatch__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Do a step, and keep it."""
        del types
        result = func(*args, **(kwargs or {}))
        self.graph.steps.append((func, args, kwargs or {}, result))
        return result


@contextlib.contextmanager
def graph(into: CUDAGraph) -> Iterator[None]:
    """Capture what is done meanwhile."""
    with Capture(into), torch.no_grad():
        yield
