# ruff: noqa: INP001, T201 (a script that prints)
# Runs in the environment of the survey for whisper.
"""openai-whisper: by torch's function a mask of anything, zeros too, is a causal one.

Exits 0 while the defect is there, 1 when it is gone.
"""

import sys

import torch
from whisper.model import MultiHeadAttention

torch.manual_seed(0)
layer = MultiHeadAttention(12, 3).eval()
tokens = torch.randn(1, 5, 12)
nothing = torch.zeros(5, 5)


@torch.no_grad()
def moved(*, by_torch: bool) -> float:
    """How far a mask of zeros, which hides nothing, moves the answer."""
    MultiHeadAttention.use_sdpa = by_torch
    return float((layer(tokens, mask=nothing)[0] - layer(tokens)[0]).abs().max())


@torch.no_grad()
def from_causal() -> float:
    """How far torch's function with a mask of zeros is from the other way with a causal mask."""
    MultiHeadAttention.use_sdpa = False
    causal = layer(tokens, mask=torch.full((5, 5), float("-inf")).triu(1))[0]
    MultiHeadAttention.use_sdpa = True
    return float((layer(tokens, mask=nothing)[0] - causal).abs().max())


default = MultiHeadAttention.use_sdpa
written_out, fused, near = moved(by_torch=False), moved(by_torch=True), from_causal()
print(f"use_sdpa is {default} by default")
print(f"use_sdpa=False: a mask of zeros moves the answer by {written_out:.2g}")
print(f"use_sdpa=True: a mask of zeros moves the answer by {fused:.2g}")
print(f"and is then {near:.2g} from that to a causal mask")
limit = 1e-4
wrong = default and max(written_out, near) < limit < fused
print("any mask is taken for a causal one" if wrong else "the defect is gone")
sys.exit(0 if wrong else 1)
