"""Mistakes with several dtypes in one call: silent casts."""

from __future__ import annotations

import torch
from torch import Tensor

from ..eager import Answer, Call, EagerCore
from ._kit import core
from .half_precision import HALVES, FusedCore
from .precision import converted


def cast(call: Call, working: torch.dtype) -> Call:
    """The same call with query, key and value in one dtype."""
    return call.replace(
        query=call.query.to(working), key=call.key.to(working), value=call.value.to(working)
    )


def narrowest(call: Call) -> torch.dtype:
    """The dtype of the inputs that has the fewest bits."""
    dtypes = [tensor.dtype for tensor in (call.query, call.key, call.value)]
    return min(dtypes, key=lambda dtype: torch.finfo(dtype).bits)


@core("mixed.inputs", mixed="promote")
class PromotedAfterRounding(EagerCore):
    """Inputs of several dtypes are rounded to the narrowest; only the answer is promoted."""

    def attend(self, call: Call) -> Answer:
        dtypes = [call.key.dtype, call.value.dtype]
        widest = torch.promote_types(torch.promote_types(*dtypes), call.query.dtype)
        return converted(super().attend(cast(call, narrowest(call))), widest)


@core("mixed.inputs", mixed="promote")
class AnswerNotPromoted(EagerCore):
    """Inputs of several dtypes are promoted, but the answer comes in the dtype of the query."""

    def attend(self, call: Call) -> Answer:
        return converted(super().attend(cast(call, torch.float32)), call.query.dtype)


@core("mixed.inputs", mixed="refuse")
class CastThoughRefused(EagerCore):
    """Inputs of several dtypes are to be refused, but they are cast to the query's dtype."""

    def attend(self, call: Call) -> Answer:
        return super().attend(cast(call, call.query.dtype))


@core("mixed.inputs", mixed="query")
class QueryCastToItsCache(EagerCore):
    """The query is cast to the dtype of the keys, and the answer back: half of its digits."""

    def attend(self, call: Call) -> Answer:
        return converted(super().attend(cast(call, call.key.dtype)), call.query.dtype)


@core("mixed.undeclared-inputs")
class CastToTheNarrowest(EagerCore):
    """Without a word, inputs of several dtypes are cast to the narrowest of them."""

    def attend(self, call: Call) -> Answer:
        return super().attend(cast(call, narrowest(call)))


@core("mixed.undeclared-inputs", dtypes=["float16"], scores="fused")
class WideKeysCastToHalf(FusedCore):
    """Keys in float32 are cast to the float16 of the query, where large ones become infinite."""

    def attend(self, call: Call) -> Answer:
        return super().attend(cast(call, call.query.dtype))


@core("mixed.mask-dtype", scores="fused", dtypes=HALVES)
class MaskCastToHalf(FusedCore):
    """A float32 mask is cast to the dtype of the query, which rounds it or makes it infinite."""

    def attend(self, call: Call) -> Answer:
        bias = None if call.bias is None else call.bias.to(call.query.dtype)
        return super().attend(call.replace(bias=bias))


@core("mixed.mask-dtype")
class WideMaskCastToSingle(EagerCore):
    """A float64 mask under float32 inputs is cast to float32."""

    def attend(self, call: Call) -> Answer:
        bias = None if call.bias is None else call.bias.to(call.query.dtype)
        return super().attend(call.replace(bias=bias))


@core("mixed.autocast", features=["scale", "gqa", "weights", "dropout", "autocast"])
class UnscaledUnderAutocast(EagerCore):
    """A path of its own under autocast forgets the scale."""

    def scale(self, call: Call) -> float:
        return 1.0 if torch.is_autocast_enabled("cpu") else super().scale(call)


@core("mixed.autocast", features=["scale", "gqa", "weights", "dropout", "autocast"])
class ValuesOfEightBitsUnderAutocast(EagerCore):
    """Under autocast the values pass through eight bits, as a path for another device has it."""

    def mix(self, weights: Tensor, value: Tensor) -> Tensor:
        if torch.is_autocast_enabled("cpu"):
            value = value.to(torch.float8_e4m3fn).to(value.dtype)
        return super().mix(weights, value)
