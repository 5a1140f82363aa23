# ruff: noqa: INP001, T201 (a script that prints)
# Runs in the environment of the survey for timm.
"""timm: a mask with is_causal is obeyed by the fused attention and dropped by the other.

Exits 0 while the defect is there, 1 when it is gone.
"""

import sys

import cpu_torchvision  # noqa: F401 (lets timm be imported beside torch's build for CPUs)
import torch
from timm.layers import Attention
from torch.nn.attention import SDPBackend, sdpa_kernel

torch.manual_seed(0)
layer = Attention(12, num_heads=3).eval()
tokens = torch.randn(1, 5, 12)
mask = torch.ones(1, 1, 5, 5, dtype=torch.bool)
mask[..., 1] = False  # nobody may see the second token
combined = mask & torch.ones(5, 5, dtype=torch.bool).tril()


@torch.no_grad()
def answer(*, fused: bool, **options: object) -> torch.Tensor:
    """What one way of the layer makes of the tokens."""
    layer.fused_attn = fused
    return layer(tokens, **options)


def refused() -> bool:
    """Whether the fused way refuses both by torch's composite kernel."""
    try:
        with sdpa_kernel(SDPBackend.MATH):
            answer(fused=True, attn_mask=mask, is_causal=True)
    except RuntimeError as error:
        return "Explicit attn_mask should not be set when is_causal=True" in str(error)
    return False


def apart(first: torch.Tensor, second: torch.Tensor) -> float:
    """The largest difference."""
    return float((first - second).abs().max())


fused = answer(fused=True, attn_mask=mask, is_causal=True)
written_out = answer(fused=False, attn_mask=mask, is_causal=True)
same = {
    "a mask: fused and written out": apart(
        answer(fused=True, attn_mask=mask), answer(fused=False, attn_mask=mask)
    ),
    "is_causal: fused and written out": apart(
        answer(fused=True, is_causal=True), answer(fused=False, is_causal=True)
    ),
    "fused: both, and the two combined in one mask": apart(
        fused, answer(fused=True, attn_mask=combined)
    ),
    "written out: both, and is_causal alone": apart(
        written_out, answer(fused=False, is_causal=True)
    ),
}
for name, difference in same.items():
    print(f"{name}: {difference:.2g} apart")
both = apart(fused, written_out)
print(f"both: fused and written out: {both:.2g} apart")
composite = refused()
print(f"both, fused, by SDPBackend.MATH: {'refused' if composite else 'not refused'}")
limit = 1e-4
wrong = max(same.values()) < limit < both and composite
print("the written-out way drops the mask" if wrong else "the defect is gone")
sys.exit(0 if wrong else 1)
