"""An implementation called under one convention: its answer to a probe, or why it has none."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ..._golden import golden
from ...base.geometry import Geometry
from ...calls.calling import CandidateFailure, arguments, guarded
from ...problems.inputs import Inputs
from .convention import Convention, compiled
from .drawing import FREE, draw

Prepare = Callable[[Inputs], Callable[..., Any]]
Weigh = Callable[[Geometry, str, int], golden.ProjectionWeights | None]


@dataclass(frozen=True)
class Refusal:
    """No answer, and why: ``kind`` is ``raised`` or ``type``."""

    kind: str
    why: str


@dataclass(frozen=True)
class Observation:
    """A probe and its answer, batched, in float64; ``dtype`` is that of what was returned."""

    inputs: Inputs
    output: Tensor
    dtype: torch.dtype
    returned: Any = None


@dataclass(frozen=True, kw_only=True)
class SizeRule:
    """Ties between sizes: fields of a geometry, each with the source of its value from ``g``."""

    changes: tuple[tuple[str, str], ...] = ()

    def apply(self, geometry: Geometry) -> Geometry:
        """The drawn geometry with all ties obeyed."""
        for name, source in self.changes:
            value = eval(source, {"g": geometry})  # noqa: S307 (text of the harness)
            geometry = geometry.replace(**{name: int(value)})
        return geometry


@dataclass(kw_only=True)
class Caller:
    """One way of calling an implementation.

    prepare
        Makes the implementation to call for a probe: a layer has the probe's weights.
    convention
        How it is called.
    sizes
        Which of its sizes are tied.
    weigh
        The projections of a probe: by geometry, dtype and seed. None for a core.
    """

    prepare: Prepare
    convention: Convention
    sizes: SizeRule
    weigh: Weigh
    weights_known: bool = True
    biases: str = "qkvo"
    dtype: str = "float32"

    def under(self, **changes: Any) -> Caller:
        """A copy that differs in some fields of the convention."""
        other = copy.copy(self)
        other.convention = self.convention.replace(**changes)
        return other

    @property
    def kind(self) -> str:
        """``core`` or ``layer``."""
        return self.convention.kind

    def draw(
        self, sizes: Mapping[str, int] | None = None, *, seed: int = 0, dtype: str | None = None
    ) -> Inputs:
        """A probe of possible sizes, nearest to the requested ones."""
        geometry = self.sizes.apply(FREE.replace(**(sizes or {})))
        batched = self.convention.layout.batched
        if not batched:
            geometry = geometry.replace(batch=1)
        if self.convention.layout.single_head:
            geometry = geometry.replace(num_heads=1, num_kv_heads=1)
        if self.convention.inputs == "self":
            geometry = geometry.replace(query_length=geometry.key_length)
        return draw(
            geometry,
            kind=self.kind,
            mode=self.convention.inputs,
            batched=batched,
            dtype=dtype or self.dtype,
            seed=seed,
            weights=self.weigh(geometry, dtype or self.dtype, seed),
        )

    def call(self, inputs: Inputs) -> Observation | Refusal:
        """Call with copies of a probe."""
        try:
            called = guarded(self.prepare, (inputs,), {}, "building it")
            returned = guarded(partial(compiled(self.convention), called), *arguments(inputs))
        except CandidateFailure as failure:
            return Refusal("raised", failure.violation.message)
        return read(returned, inputs)

    def answer(self, inputs: Inputs) -> Observation | None:
        """Call; None for a refusal or for an answer of another shape than attention's."""
        result = self.call(inputs)
        if isinstance(result, Refusal) or tuple(result.output.shape) != inputs.output_shape:
            return None
        return result


def read(returned: Any, inputs: Inputs) -> Observation | Refusal:
    """What was returned, as an observation of the output; a pair's weights stay in ``returned``."""
    output = returned[0] if inputs.return_weights and isinstance(returned, tuple) else returned
    if not isinstance(output, Tensor):
        return Refusal("type", f"returned {_kind_of(output)}, not a tensor")
    if output.layout != torch.strided or output.is_nested or not output.is_floating_point():
        return Refusal("type", f"returned a tensor of {output.dtype}, {output.layout}")
    batched = output if inputs.batched else output.unsqueeze(0)
    return Observation(inputs, batched.detach().clone().double(), output.dtype, returned)


def _kind_of(value: Any) -> str:
    """``None``, ``a str``, ``a tuple of 2``: the kind of a value, for a sentence."""
    if value is None:
        return "None"
    size = f" of {len(value)}" if isinstance(value, (tuple, list)) else ""
    return f"a {type(value).__name__}{size}"
