"""Mistakes of layers as modules: modes, buffers, what a state dict holds."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

import conformance

from ..eager import Answer, EagerModule
from ._kit import layer


@layer("state.eval-deterministic", "state.repeatable", "state.bitwise-repeatable")
class DropoutInEval(EagerModule):
    """Dropout stays active in eval mode."""

    def forward(self, query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Answer:
        return super().forward(query, key, value, dropout=self.rate, **options)


@layer("state.eval-deterministic", "state.repeatable")
class NoiseInEval(EagerModule):
    """A little noise is added to the queries in both modes, though it is meant for training."""

    def forward(self, query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Answer:
        return super().forward(query + 0.01 * torch.randn_like(query), key, value, **options)


@layer("state.follows-to")
class ScaleLeftBehind(EagerModule):
    """The scale is a plain tensor, one a channel: it does not follow ``.to(dtype)``."""

    def __init__(self, geometry: conformance.Geometry, weights: Any) -> None:
        super().__init__(geometry, weights)
        size = geometry.head_size
        self.factor = torch.full((1, 1, size), size**-0.5, dtype=weights.q.dtype)

    def forward(self, query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Answer:
        options["scale"] = float(self.factor[..., 0])
        return super().forward(query, key, value, **options)


@layer("state.follows-to", "state.state-dict")
class WeightsLeftBehind(EagerModule):
    """The value projection is a plain tensor: it neither follows ``.to`` nor is it saved."""

    def __init__(self, geometry: conformance.Geometry, weights: Any) -> None:
        super().__init__(geometry, weights)
        del self._parameters["v"]
        self.v: Tensor = weights.v.detach().clone()


@layer("state.state-dict")
class BufferNotSaved(EagerModule):
    """The key projection is a buffer that is left out of the state dict."""

    def __init__(self, geometry: conformance.Geometry, weights: Any) -> None:
        super().__init__(geometry, weights)
        del self._parameters["k"]
        self.register_buffer("k", weights.k.detach().clone(), persistent=False)


@layer("state.state-dict")
class FusedAtFirstCall(EagerModule):
    """The output projection is copied at the first call: a state that is loaded later is lost."""

    copied: Tensor | None = None

    def forward(self, query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Answer:
        output: Any = self.o
        if self.copied is None:
            self.copied = output.detach().clone()
        with torch.no_grad():
            output.copy_(self.copied)
        return super().forward(query, key, value, **options)


@layer("state.state-dict")
class FusedOnce(EagerModule):
    """The output projection is copied when the module is built: loading a state has no effect."""

    def __init__(self, geometry: conformance.Geometry, weights: Any) -> None:
        super().__init__(geometry, weights)
        self.original = self.o
        del self.o
        self.register_buffer("o", weights.o.detach().clone(), persistent=False)


@layer("state.state-dict")
class BiasesNotLoaded(EagerModule):
    """Loading a state sets all biases to zero, because their names are not recognised."""

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        known = {
            name: torch.zeros_like(entry) if name.endswith("_bias") else entry
            for name, entry in state_dict.items()
        }
        super()._load_from_state_dict(known, prefix, *rest)


@layer("state.train-agrees")
class UnscaledInTraining(EagerModule):
    """In training mode, where another path is taken, the scores are not scaled."""

    rate = 0.0

    def forward(self, query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Answer:
        if self.training:
            options.setdefault("scale", 1.0)
        return super().forward(query, key, value, **options)
