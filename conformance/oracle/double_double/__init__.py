"""The answer to about 106 bits, for judging candidates that compute in float64 themselves.

A number is the unevaluated sum of two float64 tensors, ``high + low``; nothing but IEEE 754
additions, products and quotients of float64 is used, so it runs wherever torch does. What the
arithmetic promises stands in ``numbers``; a result that overflows on the way, or is not finite
to begin with, is the golden's float64 answer with a ``low`` of zero.
"""

from __future__ import annotations

from .attention import core_output, layer_output, supports

__all__ = ["core_output", "layer_output", "supports"]
