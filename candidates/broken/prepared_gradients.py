"""Mistakes in the backward pass of a rotation, a normalisation, and what follows them."""

from __future__ import annotations

from typing import Any, Final

import torch
from torch import Tensor
from torch.autograd import Function

from conformance import Semantics

from ..eager import EagerLayer
from ._kit import core, layer
from ._prepared import Prepared

ALSO = ("gradients.options", "gradients.any-length")
PLAIN: Final[dict[str, Any]] = {"masks": ["keep"], "features": ["scale", "gqa"]}
EVEN: Final[dict[str, Any]] = {**PLAIN, "geometry": {"head_size": [4, 8, 16]}}
TURNED: Final[dict[str, Any]] = {**EVEN, "semantics": Semantics(rotary="halves")}
NORMED: Final[dict[str, Any]] = {**PLAIN, "semantics": Semantics(qk_norm="rms")}
# Behind projections, where queries and keys of one length stand at the same places.
LAYER: Final[dict[str, Any]] = {"masks": ["keep"], "features": ["gqa"], "inputs": "self"}


class _Turned(Function):
    """A rotation of halves; the backward pass turns on instead of back."""

    @staticmethod
    def forward(ctx: Any, heads: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
        """``heads [B, H, L, D]`` by a table ``[L, D/2]``."""
        ctx.save_for_backward(cosine, sine)
        one, two = heads.chunk(2, dim=-1)
        return torch.cat((one * cosine - two * sine, one * sine + two * cosine), dim=-1)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        """The same rotation once more."""
        cosine, sine = ctx.saved_tensors
        one, two = gradients[0].chunk(2, dim=-1)
        return torch.cat((one * cosine - two * sine, one * sine + two * cosine), dim=-1), None, None


@core("gradients.golden", *ALSO, **TURNED)
class RotatedOnBackward(Prepared):
    """Gradients are turned on by the angle of their position instead of back."""

    pairing = "halves"

    def turn(self, heads: Tensor, place: Tensor) -> Tensor:
        angles = self.angles(place, heads.shape[-1])
        table = angles.cos().to(heads.dtype), angles.sin().to(heads.dtype)
        turned: Tensor = _Turned.apply(heads, *table)  # type: ignore[no-untyped-call]  # torch's own
        return turned


class _Straight(Function):
    """Heads as they were prepared, whose gradient goes past the preparation."""

    @staticmethod
    def forward(_ctx: Any, given: Tensor, prepared: Tensor) -> Tensor:
        """The prepared heads."""
        del given
        return prepared.clone()

    @staticmethod
    def backward(_ctx: Any, *gradients: Tensor) -> Any:
        """To the given heads, as it is."""
        return gradients[0], None


@core("gradients.golden", *ALSO, **TURNED)
class RotationForgottenBackward(Prepared):
    """The gradients of turned heads are returned for those of the given ones."""

    pairing = "halves"

    def turn(self, heads: Tensor, place: Tensor) -> Tensor:
        straight: Tensor = _Straight.apply(heads, super().turn(heads, place).detach())  # type: ignore[no-untyped-call]  # torch's own
        return straight


@core("gradients.golden", *ALSO, **NORMED)
class NormTakenForConstant(Prepared):
    """The norm is detached: only the direct part of its gradient flows."""

    norm = "rms"

    def normalise(self, heads: Tensor) -> Tensor:
        return heads * (heads.square().mean(-1, keepdim=True) + self.epsilon).rsqrt().detach()


@core("gradients.golden", *ALSO, **PLAIN, semantics=Semantics(alibi=True))
class QueryHalvedBesideDistances(Prepared):
    """Beside biases by distance the query gets half of its gradient."""

    linear = True

    def prepare(
        self, query: Tensor, key: Tensor, here: Tensor, there: Tensor
    ) -> tuple[Tensor, Tensor]:
        query, key = super().prepare(query, key, here, there)
        return 0.5 * query + 0.5 * query.detach(), key


class _PreparedLayer(EagerLayer):
    """Self-attention whose queries and keys are prepared behind their projections."""

    steps = Prepared()

    def __call__(self, x: Tensor, **options: Any) -> Any:  # type: ignore[override]  # one input
        return super().__call__(x, x, x, **options)

    def heads(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        one, two, three = super().heads(query, key, value)
        here, there = self.steps.places(one, two)
        return (*self.steps.prepare(one, two, here, there), three)


@layer(
    "gradients.golden",
    *ALSO,
    **LAYER,
    geometry={"head_size": [4, 8, 16]},
    semantics=Semantics(rotary="halves"),
)
class ProjectedRotationForgottenBackward(_PreparedLayer):
    """Gradients of projected heads are returned without being turned back by their angles."""

    steps = RotationForgottenBackward.function  # type: ignore[attr-defined]  # a candidate


@layer("gradients.golden", *ALSO, **LAYER, semantics=Semantics(qk_norm="rms"))
class ProjectedNormTakenForConstant(_PreparedLayer):
    """The norm of projected heads is detached: no gradient flows through it to the matrices."""

    steps = NormTakenForConstant.function  # type: ignore[attr-defined]  # a candidate


class _HalvedQuery(Prepared):
    """Normalised and turned; the query gets half of its gradient."""

    pairing = "interleaved"
    norm = "layer"

    def prepare(
        self, query: Tensor, key: Tensor, here: Tensor, there: Tensor
    ) -> tuple[Tensor, Tensor]:
        query, key = super().prepare(query, key, here, there)
        return 0.5 * query + 0.5 * query.detach(), key


@layer(
    "gradients.golden",
    "gradients.options",
    **LAYER,
    geometry={"head_size": [4, 8, 16]},
    semantics=Semantics(rotary="interleaved", qk_norm="layer"),
)
class PreparedQueryHalved(_PreparedLayer):
    """A layer that normalises and turns its heads gives queries half of their gradient."""

    steps = _HalvedQuery()
