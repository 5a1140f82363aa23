# ruff: noqa: INP001, T201 (a script that prints)
# Runs in the environment of the survey for memory_efficient.
"""memory-efficient-attention-pytorch: causal with a longer context depends on the way to compute.

Exits 0 while the defect is there, 1 when it is gone.
"""

import sys

import torch
from memory_efficient_attention_pytorch import Attention, FlashAttention

torch.manual_seed(0)
plain = Attention(dim=12, heads=3, dim_head=4, causal=True).eval()
flash = FlashAttention(dim=12, heads=3, dim_head=4, causal=True).eval()
flash.load_state_dict(plain.state_dict())
tokens, longer = torch.randn(1, 7, 12), torch.randn(1, 9, 12)


@torch.no_grad()
def apart(context: torch.Tensor) -> tuple[float, float]:
    """How far the answer in buckets, and that of FlashAttention, are from the plain one."""
    whole = plain(tokens, context=context)
    buckets = plain(tokens, context=context, memory_efficient=True)
    other = flash(tokens, context=context)
    return float((buckets - whole).abs().max()), float((other - whole).abs().max())


same, more = apart(tokens), apart(longer)
for name, (buckets, other) in {"as many keys": same, "more keys than queries": more}.items():
    print(f"{name}: in buckets {buckets:.2g} from the plain answer, FlashAttention {other:.2g}")
limit = 1e-4
wrong = max(same) < limit < min(more)
print("the ways align queries and keys differently" if wrong else "the defect is gone")
sys.exit(0 if wrong else 1)
