"""Mistakes in the backward pass of a rotation, a normalisation, and what follows them."""

from __future__ import annotations

from typing import Any, Final

import torch
from torch import Tensor
from torch.autograd import Function

from conformance import Semantics

from ._kit import core
from ._prepared import Prepared

ALSO = ("gradients.options", "gradients.any-length")
PLAIN: Final[dict[str, Any]] = {"masks": ["keep"], "features": ["scale", "gqa"]}
EVEN: Final[dict[str, Any]] = {**PLAIN, "geometry": {"head_size": [4, 8, 16]}}
TURNED: Final[dict[str, Any]] = {**EVEN, "semantics": Semantics(rotary="halves")}
NORMED: Final[dict[str, Any]] = {**PLAIN, "semantics": Semantics(qk_norm="rms")}


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
