# ruff: noqa: INP001, T201 (a script that prints)
# Runs in the environment of the survey for timm.
"""timm: a mask with is_causal is obeyed by the fused attention and dropped by the other.

Exits 0 while the defect is there, 1 when it is gone.
"""

import sys

import cpu_torchvision  # noqa: F401 (lets timm be imported beside torch's build for CPUs)
import torch
from timm.layers import Attention

torch.manual_seed(0)
layer = Attention(12, num_heads=3).eval()
tokens = torch.randn(1, 5, 12)
mask = torch.ones(1, 1, 5, 5, dtype=torch.bool)
mask[..., 1] = False  # nobody may see the second token


@torch.no_grad()
def apart(**options: object) -> float:
    """How far the two ways of one layer are apart."""
    answers = []
    for layer.fused_attn in (True, False):
        answers.append(layer(tokens, **options))
    return float((answers[0] - answers[1]).abs().max())


limit = 1e-4
shown = {
    "a mask": apart(attn_mask=mask),
    "is_causal": apart(is_causal=True),
    "both": apart(attn_mask=mask, is_causal=True),
}
for name, difference in shown.items():
    print(f"{name}: fused and written out are {difference:.2g} apart")
wrong = max(shown["a mask"], shown["is_causal"]) < limit < shown["both"]
print("the written-out way drops the mask" if wrong else "the defect is gone")
sys.exit(0 if wrong else 1)
