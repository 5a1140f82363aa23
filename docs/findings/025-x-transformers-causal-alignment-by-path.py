# ruff: noqa: INP001, T201 (a script that prints)
# Runs in the environment of the survey for x_transformers.
"""x-transformers: causal with fewer keys than queries is aligned by the way to compute.

Exits 0 while the defect is there, 1 when it is gone.
"""

import sys

import torch
from x_transformers.x_transformers import Attention

torch.manual_seed(0)
plain = Attention(dim=12, heads=3, dim_head=4, causal=True).eval()
fused = Attention(dim=12, heads=3, dim_head=4, causal=True, flash=True).eval()
fused.load_state_dict(plain.state_dict())
tokens = torch.randn(1, 7, 12)


@torch.no_grad()
def apart(keys: int) -> float:
    """How far the two are apart in the last row, which sees keys in either alignment."""
    context = torch.randn(1, keys, 12)
    answers = [layer(tokens, context=context) for layer in (plain, fused)]
    first, second = (one[0] if isinstance(one, tuple) else one for one in answers)
    return float((first - second)[0, 2:].abs().max())


shown = {keys: apart(keys) for keys in (9, 7, 5)}
for keys, difference in shown.items():
    print(f"7 queries, {keys} keys: {difference:.2g} apart, rows without keys left out")
limit = 1e-4
wrong = max(shown[9], shown[7]) < limit < shown[5]
print("flash=True aligns fewer keys differently" if wrong else "the defect is gone")
sys.exit(0 if wrong else 1)
