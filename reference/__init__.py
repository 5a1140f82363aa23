"""The golden reference of multi-head attention: float64, any point of ``Semantics``.

It imports torch and nothing else, is built on none of torch's attention functions, and reads like
the paper. ``STANDARD`` is the specification.
"""

from .attention import Attention, attend, repeat_heads, scaled_dot_product_attention, softmax
from .layer import (
    MultiHeadAttention,
    ProjectionWeights,
    merge_heads,
    multi_head_attention,
    project,
    split_heads,
)
from .masks import structural_mask
from .positions import frequencies, rotate, sinusoidal_positions
from .semantics import STANDARD, Semantics, scale_value

__all__ = [
    "STANDARD",
    "Attention",
    "MultiHeadAttention",
    "ProjectionWeights",
    "Semantics",
    "attend",
    "frequencies",
    "merge_heads",
    "multi_head_attention",
    "project",
    "repeat_heads",
    "rotate",
    "scale_value",
    "scaled_dot_product_attention",
    "sinusoidal_positions",
    "softmax",
    "split_heads",
    "structural_mask",
]
