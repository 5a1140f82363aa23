"""Mistakes that show only once a kernel goes through ``torch.compile``."""

from __future__ import annotations

import torch
from torch import Tensor

import conformance
from conformance import Mistake

from ._kit import DECLARED


def _fused(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Attention whose path for compiled code leaves the scale out."""
    if key.shape[2] != value.shape[2]:
        msg = f"there are {key.shape[2]} keys and {value.shape[2]} values"
        raise ValueError(msg)
    scale = 1.0 if torch.compiler.is_compiling() else query.shape[-1] ** -0.5
    return (query @ key.mT * scale).softmax(dim=-1) @ value


ScaleLostWhenCompiled = conformance.compiled(
    conformance.core(name="fused", without=["gradients"])(_fused), name="ScaleLostWhenCompiled"
)
DECLARED.append(
    Mistake(
        name="ScaleLostWhenCompiled",
        sentence="The path that is taken under torch.compile leaves the scale out.",
        primary="compile.agrees",
        also=("numerics.golden",),
        candidate=ScaleLostWhenCompiled,
    )
)
